"""Batching: concurrent calls of one set-based operation are sent to Postgres together.

The first call is sent immediately; calls that arrive while it is in flight are sent together in the next batch.
There is no timer: a single call is not delayed, and the busier the process, the more calls share a round trip.

An operation does not wait for a lock of a user's transaction. If it can tell which item is locked, it answers
`RowLocked` for that item; otherwise it raises `RowLocked`, and the items of the batch are sent alone, one after the
other. A locked item is sent again with growing pauses. It occupies no connection in between.
"""

import asyncio
import copy
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from flowfabric.errors import FlowFabricError, RowLocked, ShuttingDown
from flowfabric.postgres.backoff import Backoff, lock_backoff

log = logging.getLogger("flowfabric.postgres")

WARN_INTERVAL = 10.0  # seconds between two warnings about locks, and until the first

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _Call(msgspec.Struct, Generic[Item, Outcome], frozen=True):
    """One call: its item and its size, how its caller is answered, and how to send it again if it is locked."""

    item: Item
    size: int
    answered: Callable[[Outcome | Exception], None]
    is_dropped: Callable[[], bool]  # whether the caller was cancelled, or has its answer
    alone: bool = False  # whether it must be sent alone, because a batch met a lock
    locked_at: float = 0.0  # when it was found locked first, on the clock of the event loop
    backoff: Backoff | None = None


def _weightless(_: object) -> int:
    return 0


def _never() -> bool:
    return False


class Batch(Generic[Item, Outcome]):
    """Merges concurrent calls of one set-based operation.

    `run` takes the items in the order of the calls and returns one outcome per item, in that order: a value, or the
    error to raise for that caller alone. A batch holds at most `most` items and `most_bytes`, as counted by `size`; a
    larger item is sent alone. Up to `in_flight` batches run at the same time, and one item that is sent alone because
    its batch met a lock. A locked item is sent again for `patience` seconds, by default without end, before its caller
    gets `RowLocked`. An instance belongs to the event loop that it is first used on.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | FlowFabricError]]],
        *,
        most: int = 1_000,
        most_bytes: int = 8 * 2**20,
        size: Callable[[Item], int] = _weightless,
        in_flight: int = 1,
        patience: float = math.inf,
    ) -> None:
        if most < 1 or in_flight < 1:
            raise ValueError(f"most {most} or in_flight {in_flight} is invalid; use 1 or more")
        self._run = run
        self._most = most
        self._most_bytes = most_bytes
        self._size = size
        self._in_flight = in_flight
        self._patience = patience
        self._queue: deque[_Call[Item, Outcome]] = deque()
        self._split: deque[_Call[Item, Outcome]] = deque()  # of split batches; most of them are not locked, so first
        self._alone: deque[_Call[Item, Outcome]] = deque()  # were locked when they were sent alone
        self._sending_alone: asyncio.Task[None] | None = None
        self._batches: set[asyncio.Task[None]] = set()
        self._pausing: set[asyncio.Task[None]] = set()
        self._warned_at = 0.0  # when callers were found waiting for a lock for long, on the clock of the event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __call__(self, item: Item) -> Outcome:
        """Run the operation for one item, in one batch with other waiting calls.

        Raises this item's error, or a copy of the exception that `run` raised. If the call is cancelled while it waits,
        the item is not sent; if it is cancelled later, the item takes effect and its outcome is dropped.
        """
        caller: asyncio.Future[Outcome | Exception] = asyncio.get_running_loop().create_future()
        self.send(item, caller.set_result, caller.done)
        answer = await caller  # errors too: asyncio logs an exception that no caller retrieves
        if isinstance(answer, Exception):
            raise _own(answer)
        return answer

    def send(
        self, item: Item, answered: Callable[[Outcome | Exception], None], is_dropped: Callable[[], bool] = _never
    ) -> None:
        """Run the operation for one item and call `answered` with its outcome, or with its error, which may be shared.

        This costs neither a task nor a future. An item that `is_dropped` before it is sent is not sent.
        """
        if self._closed:
            raise ShuttingDown("this process is closing and accepts no more calls; repeat the call in another process")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        self._queue.append(_Call(item, self._size(item), answered, is_dropped))
        self._start()

    async def close(self) -> None:
        """Accept no more calls, and return when all accepted calls have their outcome. Safe to repeat."""
        self._closed = True
        while unanswered := self._batches | self._pausing | ({self._sending_alone} if self._sending_alone else set()):
            await asyncio.wait(unanswered)

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise RuntimeError("this Batch belongs to another event loop; create one per event loop")
        self._loop = loop

    def _start(self) -> None:
        if (self._split or self._alone) and self._sending_alone is None:
            self._sending_alone = asyncio.create_task(self._send_alone())
            self._sending_alone.add_done_callback(self._ended)
        if self._queue and len(self._batches) < self._in_flight:
            batch = asyncio.create_task(self._send())  # separate, so that cancelling a caller does not cancel the batch
            self._batches.add(batch)
            batch.add_done_callback(self._ended)

    def _ended(self, batch: asyncio.Task[None]) -> None:
        # The answered callers run before this callback, so a caller that calls again immediately joins the next batch.
        self._batches.discard(batch)
        if batch is self._sending_alone:
            self._sending_alone = None
        if not batch.cancelled():
            batch.exception()  # mark as retrieved: only an interrupt, which asyncio has already raised
        self._start()

    async def _send(self) -> None:
        if calls := self._take():
            await self._answer(calls)

    async def _send_alone(self) -> None:
        while waiting := self._split or self._alone:
            call = waiting.popleft()
            if not call.is_dropped():
                await self._answer([call])

    async def _answer(self, calls: Sequence[_Call[Item, Outcome]]) -> None:
        """Send a batch and answer its calls. A batch that meets a lock twice is split: most locks are short."""
        interrupted = RuntimeError("the batch was cancelled while in flight; it is not known whether it took effect")
        answers: Sequence[Outcome | Exception] = [interrupted] * len(calls)
        try:
            answers = await self._try(calls, again=len(calls) > 1)
        except RowLocked as locked:
            calls = [replace(call, alone=True) for call in calls]
            answers = [locked] * len(calls)
        except Exception as raised:
            answers = [raised] * len(calls)
        finally:
            for call, answer in zip(calls, answers, strict=True):
                self._settle(call, answer, split=len(calls) > 1 and call.alone)

    async def _try(self, calls: Sequence[_Call[Item, Outcome]], *, again: bool) -> Sequence[Outcome | FlowFabricError]:
        try:
            return _one_each(await self._run([call.item for call in calls]), len(calls))
        except RowLocked:
            if not again:
                raise
        return await self._try(calls, again=False)

    def _settle(self, call: _Call[Item, Outcome], answer: Outcome | Exception, *, split: bool) -> None:
        """Pass the answer to the caller, or send a locked item again: at once if its batch was split, else later."""
        if split:
            self._split.append(call)
        elif isinstance(answer, RowLocked) and (again := self._again(call)) is not None:
            self._pausing.add(pause := asyncio.create_task(self._send_again(again)))
            pause.add_done_callback(self._pausing.discard)
        elif not call.is_dropped():
            try:
                call.answered(answer)
            except Exception:
                log.exception("could not handle the answer to a call; the other calls of its batch are answered")

    def _again(self, call: _Call[Item, Outcome]) -> _Call[Item, Outcome] | None:
        """Return a locked call as it is sent again; `None` when it has been locked for longer than `patience`."""
        now = asyncio.get_running_loop().time()
        locked_at = call.locked_at or now
        if now >= locked_at + self._patience:
            return None
        self._warn(now, locked_at)
        return replace(call, locked_at=locked_at, backoff=call.backoff or lock_backoff())

    def _warn(self, now: float, locked_at: float) -> None:
        if now - locked_at > WARN_INTERVAL and now - self._warned_at > WARN_INTERVAL:
            self._warned_at = now
            log.warning(
                "calls have waited %.0f s for a row that another transaction has locked, retrying; "
                "`ff doctor --longest-transaction 1s` lists open transactions",
                now - locked_at,
            )

    async def _send_again(self, call: _Call[Item, Outcome]) -> None:
        if call.backoff is not None:
            await call.backoff.wait()
        (self._alone if call.alone else self._queue).append(call)
        self._start()

    def _take(self) -> list[_Call[Item, Outcome]]:
        """Take the calls of the next batch from the queue, without those that were cancelled while they waited."""
        taken: list[_Call[Item, Outcome]] = []
        room = self._most_bytes
        while self._queue and len(taken) < self._most:
            call = self._queue[0]
            if not call.is_dropped():
                if taken and call.size > room:
                    break
                taken.append(call)
                room -= call.size
            self._queue.popleft()
        return taken


def _one_each(outcomes: Sequence[Outcome | FlowFabricError], count: int) -> Sequence[Outcome | FlowFabricError]:
    if len(outcomes) != count:
        raise RuntimeError(
            f"{count} items were sent and {len(outcomes)} outcomes came back; they cannot be matched to the callers"
        )
    return outcomes


def _own(raised: Exception) -> Exception:
    """Copy an exception for one caller, because each raise changes its traceback and context.

    An exception that cannot be copied exactly is shared.
    """
    try:
        own = copy.copy(raised)
        if type(own) is not type(raised) or own.args != raised.args:
            return raised
    except Exception:
        return raised
    own.__cause__, own.__context__ = raised.__cause__, raised.__context__
    own.__suppress_context__ = raised.__suppress_context__
    return own.with_traceback(raised.__traceback__)
