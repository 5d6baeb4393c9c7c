"""Waiters: wakes those who wait for executions to end, by hint, and by one look at all of them now and then."""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from flowfabric.errors import FlowFabricError, ShuttingDown
from flowfabric.ids import ExecutionId
from flowfabric.postgres.notify import Notification, Notifier

log = logging.getLogger("flowfabric.app")

SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 1.0
MOST = 1_000

Look = Callable[[Sequence[ExecutionId]], Awaitable[Sequence[ExecutionId]]]


class Waiters:
    """Who waits for which execution.

    `look` says which of some have ended. Each is looked at when somebody begins to wait, soon after, and then ever less
    often, all that are due together in one call: a thousand who wait cost no more calls than one.
    """

    def __init__(self, notifier: Notifier, look: Look) -> None:
        self._look = look
        self._waiting: dict[str, tuple[ExecutionId, set[asyncio.Event]]] = {}
        self._due: list[tuple[float, float, str]] = []  # when to look, the pause behind that, at what
        self._next: dict[str, float] = {}  # which of them counts, where there are several
        self._stir = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self._forget = notifier.listen(self._heard)

    async def close(self) -> None:
        """Look no more, and tell everybody who waits that this process is closing."""
        self._closed = True
        self._forget()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        self.wake(list(self._waiting))

    async def wait(self, execution_id: ExecutionId, *, fresh: bool = False) -> None:
        """Return when the execution may have ended: it is looked at after this is called, never before.

        One that is fresh has only just been submitted: the first look at it is a little later, when it may have ended.
        Raises `ShuttingDown` when this process waits no more.
        """
        ended = asyncio.Event()
        _, waiting = self._waiting.setdefault(str(execution_id), (execution_id, set()))
        waiting.add(ended)
        self._look_soon(str(execution_id), SHORTEST_PAUSE if fresh else 0.0)
        try:
            if not self._closed:
                await ended.wait()
        finally:
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop(str(execution_id), None)
                self._next.pop(str(execution_id), None)
        if self._closed:
            raise ShuttingDown(f"this process is closing and waits for {execution_id} no more; wait in another one")

    def wake(self, execution_ids: Iterable[str]) -> None:
        """Wake those in this process who wait for these."""
        for execution_id in execution_ids:
            for ended in self._waiting.get(execution_id, (None, ()))[1]:
                ended.set()

    def _heard(self, notification: Notification) -> None:
        self.wake(notification.ended)
        if not (notification.ended or notification.lanes):  # something may have been missed
            for execution_id in self._waiting:
                self._look_soon(execution_id)

    def _look_soon(self, execution_id: str, pause: float = 0.0) -> None:
        self._push(asyncio.get_running_loop().time() + pause, SHORTEST_PAUSE, execution_id)
        self._stir.set()
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look_for_ever(), name="ends: look")

    def _push(self, due: float, pause: float, execution_id: str) -> None:
        self._next[execution_id] = due
        heapq.heappush(self._due, (due, pause, execution_id))

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._stir.clear()
            if due := self._take(loop.time()):
                await self._look_at(due, loop)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                    await self._stir.wait()

    def _take(self, now: float) -> dict[str, tuple[float, float]]:
        """What is due, or nearly, and still waited for: when it was to be looked at, and the pause behind that."""
        due: dict[str, tuple[float, float]] = {}
        while self._due and self._due[0][0] <= now + SHORTEST_PAUSE / 2 and len(due) < MOST:
            at, pause, execution_id = heapq.heappop(self._due)
            if self._next.get(execution_id) == at:
                due[execution_id] = at, pause
        return due

    async def _look_at(self, due: dict[str, tuple[float, float]], loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.wake(map(str, await self._look([self._waiting[execution_id][0] for execution_id in due])))
        except FlowFabricError as error:
            log.warning("cannot see what has ended, trying again: %s", error.message)
        except Exception:  # whoever waits would wait for ever if this ended
            log.exception("cannot see what has ended, trying again")
        now = loop.time()
        for execution_id, (at, pause) in due.items():
            if self._next.get(execution_id) == at:  # still waited for
                self._push(now + pause, min(pause * 2, LONGEST_PAUSE), execution_id)
