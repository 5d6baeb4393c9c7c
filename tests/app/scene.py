"""An app at work, and ways to follow it without sleeping."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flowfabric import App, Execution
from flowfabric.engine import waits
from flowfabric.postgres.notify import Notification
from flowfabric.worker import Worker
from tests.given import Given

TIMEOUT = 20


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[App]:
    """The app, open, with a worker that runs its tasks."""
    async with app:
        worker = Worker(app, **options)
        running = asyncio.create_task(worker.run())
        try:
            yield app
        finally:
            worker.stop()
            await running


async def happens(execution: Execution[Any], kind: str, times: int = 1) -> None:
    """Return when an event of that kind has occurred so many times."""
    seen = 0
    async for event in execution.events():
        seen += event.kind == kind
        if seen == times:
            return
    raise AssertionError(f"{execution} ended with {seen} of {times} {kind}")


class Heard:
    """The lanes that this process is notified of, in order."""

    def __init__(self, app: App) -> None:
        self.lanes: list[str] = []
        self._more = asyncio.Event()
        app.notifier.listen(self._receive)

    @classmethod
    async def listening(cls, app: App) -> "Heard":
        """Return when this process listens; the first notification says so, and names no lane."""
        heard = cls(app)
        async with asyncio.timeout(TIMEOUT):
            await heard._more.wait()
        return heard

    def _receive(self, notification: Notification) -> None:
        self.lanes += notification.lanes
        self._more.set()

    async def first(self) -> str:
        """Wait for the next notification of a lane, and take it."""
        async with asyncio.timeout(TIMEOUT):
            while not self.lanes:
                self._more.clear()
                await self._more.wait()
        return self.lanes.pop(0)


async def later(app: App, given: Given, execution: Execution[Any], **span: float) -> None:
    """Move the clock, time out the waits that are due, and notify the workers of the lane."""
    await given.time_passes(**span)
    await waits.time_out_waits(given.conn)
    await app.wake((await execution.describe()).lane)
