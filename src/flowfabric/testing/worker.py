"""A worker of which a test can ask whether it has anything left to do."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from flowfabric.model import Claim
from flowfabric.worker import Worker

LONGEST_LOOK = 0.05


class AttentiveWorker(Worker):
    """A worker that counts what it does, and tells when it has looked for work and found none.

    It sweeps nothing by itself, and hands back at once what still runs when it is stopped.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **{"drain": "0s", **options, "sweeps": False})
        self.running: asyncio.Task[None] | None = None
        self.acts = 0
        self._looks = 0
        self._last_in_vain = 0
        self._acted = asyncio.Event()

    @property
    def runs(self) -> list[str]:
        """The tasks that run now, each with its execution."""
        return [going.get_name() for _, going in self._running.values()]

    async def idle(self) -> None:
        """Return when it holds nothing, and has looked for work since then and since this was called, in vain."""
        looked = self._looks
        while self.busy or self._last_in_vain <= looked:
            if self.busy:
                looked = self._looks
            if self.running is not None and self.running.done():
                await self.running  # which says why
            self._acted.clear()
            self._pauses.shorten()
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_LOOK):
                    await self._acted.wait()

    def renew(self) -> None:
        """Renew the leases now, which tells it of those that are gone."""
        self._heartbeat.renew_now()

    async def _claim(self, room: int) -> int:
        self._looks += 1
        look = self._looks
        taken = await super()._claim(room)
        if taken:
            self.acts += taken
        else:
            self._last_in_vain = look
        self._acted.set()
        return taken

    def _ended(self, claim: Claim, name: str, going: "asyncio.Task[None]") -> None:
        super()._ended(claim, name, going)
        self.acts += 1
        self._acted.set()


@asynccontextmanager
async def working(worker: AttentiveWorker) -> AsyncIterator[None]:
    """While this lasts, the worker works. Raises what keeps it from working."""
    async with going_on(worker.run()) as worker.running:
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
async def going_on(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """While this lasts, so does the other."""
    going = asyncio.create_task(coroutine)
    try:
        yield going
    finally:
        going.cancel()
        await asyncio.wait([going])
