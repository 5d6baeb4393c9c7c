"""A worker that a test can wait for until it is idle."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from flowfabric.model import Claim
from flowfabric.worker import Worker

LONGEST_PAUSE = 0.05  # seconds between two claims while a test waits for the worker


class ObservedWorker(Worker):
    """A worker that counts what it does, and knows when a claim has found no work.

    It runs no sweeps. When stopped, it requeues unfinished executions immediately.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **{"drain": "0s", **options, "sweeps": False})
        self.running: asyncio.Task[None] | None = None
        self.acts = 0
        self._claims = 0
        self._last_empty_claim = 0
        self._acted = asyncio.Event()

    @property
    def runs(self) -> list[str]:
        """The running handlers, each as a task name and an execution id."""
        return [running.get_name() for _, running in self._running.values()]

    async def idle(self) -> None:
        """Wait until the worker is idle: a claim found no work, after this call and after it was last busy."""
        before = self._claims
        while self.busy or self._last_empty_claim <= before:
            if self.busy:
                before = self._claims
            if self.running is not None and self.running.done():
                await self.running  # raises the error that ended it
            self._acted.clear()
            self._pauses.shorten()
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE):
                    await self._acted.wait()

    def renew(self) -> None:
        """Renew the leases now, so that the worker notices lost ones."""
        self._heartbeat.renew_now()

    async def _claim(self, room: int) -> int:
        self._claims += 1
        number = self._claims
        taken = await super()._claim(room)
        if taken:
            self.acts += taken
        else:
            self._last_empty_claim = number
        self._acted.set()
        return taken

    def _borrowed(self, claims: Sequence[Claim], asked_at: float) -> None:
        super()._borrowed(claims, asked_at)
        self.acts += len(claims)
        self._acted.set()

    def _ended(self, claim: Claim) -> None:
        super()._ended(claim)
        self.acts += 1
        self._acted.set()


@asynccontextmanager
async def working(worker: ObservedWorker) -> AsyncIterator[None]:
    """Run the worker for as long as the block lasts. Raises the error that ends the worker."""
    async with in_background(worker.run()) as worker.running:
        running = worker.running
        ready = asyncio.ensure_future(worker.ready.wait())
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            await running
        try:
            yield
        finally:
            worker.stop()
            await running


@asynccontextmanager
async def in_background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a coroutine in the background for as long as the block lasts."""
    running = asyncio.create_task(coroutine)
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait([running])
