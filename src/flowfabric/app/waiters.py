"""Waiters: wakes callers that wait for executions to end, by notification and by polling."""

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

ListEnded = Callable[[Sequence[ExecutionId]], Awaitable[Sequence[ExecutionId]]]


class Waiters:
    """The callers in this process that wait for executions to end.

    `list_ended` returns those of the given executions that have ended. An execution is polled when a caller begins to
    wait for it, soon after, and then less and less often. All executions that are due are polled in one call, so a
    thousand waiting callers cost no more calls than one.
    """

    def __init__(self, notifier: Notifier, list_ended: ListEnded) -> None:
        self._list_ended = list_ended
        self._waiting: dict[str, tuple[ExecutionId, set[asyncio.Event]]] = {}
        self._due: list[tuple[float, float, str]] = []  # a heap: when to poll, the pause after that, the execution
        self._next: dict[str, float] = {}  # the entry of the heap that counts, if an execution has several
        self._changed = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False
        self._stop_listening = notifier.listen(self._notified)

    async def close(self) -> None:
        """Stop polling, and wake every waiting caller with `ShuttingDown`."""
        self._closed = True
        self._stop_listening()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        self.wake(list(self._waiting))

    async def wait(self, execution_id: ExecutionId, *, fresh: bool = False) -> None:
        """Return when the execution may have ended, as polled after this call, never before.

        A fresh execution has just been submitted, so it is polled a little later. Raises `ShuttingDown` when this
        process closes.
        """
        ended = asyncio.Event()
        _, waiting = self._waiting.setdefault(str(execution_id), (execution_id, set()))
        waiting.add(ended)
        self._poll_soon(str(execution_id), SHORTEST_PAUSE if fresh else 0.0)
        try:
            if not self._closed:
                await ended.wait()
        finally:
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop(str(execution_id), None)
                self._next.pop(str(execution_id), None)
        if self._closed:
            raise ShuttingDown(f"this process is closing and no longer waits for {execution_id}; wait in another one")

    def wake(self, execution_ids: Iterable[str]) -> None:
        """Wake the callers in this process that wait for these executions."""
        for execution_id in execution_ids:
            for ended in self._waiting.get(execution_id, (None, ()))[1]:
                ended.set()

    def _notified(self, notification: Notification) -> None:
        self.wake(notification.ended)
        if not (notification.ended or notification.lanes):  # notifications may have been missed
            for execution_id in self._waiting:
                self._poll_soon(execution_id)

    def _poll_soon(self, execution_id: str, pause: float = 0.0) -> None:
        self._push(asyncio.get_running_loop().time() + pause, SHORTEST_PAUSE, execution_id)
        self._changed.set()
        if self._polling is None and not self._closed:
            self._polling = asyncio.create_task(self._poll_forever(), name="waiters: poll")

    def _push(self, due: float, pause: float, execution_id: str) -> None:
        self._next[execution_id] = due
        heapq.heappush(self._due, (due, pause, execution_id))

    async def _poll_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if due := self._take_due(loop.time()):
                await self._poll(due, loop)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                    await self._changed.wait()

    def _take_due(self, now: float) -> dict[str, tuple[float, float]]:
        """Take the executions to poll now out of the heap, each with its due time and the pause after that."""
        due: dict[str, tuple[float, float]] = {}
        while self._due and self._due[0][0] <= now + SHORTEST_PAUSE / 2 and len(due) < MOST:
            at, pause, execution_id = heapq.heappop(self._due)
            if self._next.get(execution_id) == at:
                due[execution_id] = at, pause
        return due

    async def _poll(self, due: dict[str, tuple[float, float]], loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.wake(map(str, await self._list_ended([self._waiting[execution_id][0] for execution_id in due])))
        except FlowFabricError as error:
            log.warning("could not poll %d executions for their end; retrying: %s", len(due), error.message)
        except Exception:  # the callers would wait for ever if this task ended
            log.exception("could not poll %d executions for their end; retrying", len(due))
        now = loop.time()
        for execution_id, (at, pause) in due.items():
            if self._next.get(execution_id) == at:  # still waited for
                self._push(now + pause, min(pause * 2, LONGEST_PAUSE), execution_id)
