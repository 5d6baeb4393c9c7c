"""Batching: concurrent calls of one set-based operation are sent to Postgres together.

The first call is sent immediately; calls that arrive while it is in flight are sent together in the next batch.
There is no timer: a single call is not delayed, and the busier the process, the more calls share a round trip.

An operation should not wait for a lock of a user's transaction: it answers `ExecutionLocked` for that item, and only
that call is sent again, with growing pauses. It occupies no connection in between.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from flowfabric.errors import ExecutionLocked, FlowFabricError, ShuttingDown
from flowfabric.postgres.backoff import Backoff

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# Most locks are those of other calls and last a few milliseconds; the others are those of a user's transaction.
FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.2


class _Call(NamedTuple, Generic[Item, Outcome]):
    """One call: its item and its size, the future that its caller awaits, and the pauses once the item was locked."""

    item: Item
    size: int
    caller: "asyncio.Future[Outcome | Exception]"
    backoff: Backoff | None = None


def _weightless(_: object) -> int:
    return 0


class Batch(Generic[Item, Outcome]):
    """Merges concurrent calls of one set-based operation.

    `run` takes the items in the order of the calls and returns one outcome per item, in that order: a value, or the
    error to raise for that caller alone. An item answered with `ExecutionLocked` is sent again later. A batch holds at
    most `most` items and `most_bytes`, as counted by `size`; a larger item is sent alone. Up to `in_flight` batches run
    at the same time. An instance belongs to the event loop that it is first used on.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | FlowFabricError]]],
        *,
        most: int = 1_000,
        most_bytes: int = 8 * 2**20,
        size: Callable[[Item], int] = _weightless,
        in_flight: int = 1,
    ) -> None:
        if most < 1 or in_flight < 1:
            raise ValueError(f"most {most} or in_flight {in_flight} is invalid; use 1 or more")
        self._run = run
        self._most = most
        self._most_bytes = most_bytes
        self._size = size
        self._in_flight = in_flight
        self._queue: deque[_Call[Item, Outcome]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._pausing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __call__(self, item: Item) -> Outcome:
        """Run the operation for one item, in one batch with other waiting calls.

        Raises this item's error, or a copy of the exception that `run` raised. If the call is cancelled while it waits,
        the item is not sent; if it is cancelled later, the item takes effect and its outcome is dropped.
        """
        if self._closed:
            raise ShuttingDown("this process is closing and accepts no more calls; repeat the call in another process")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        caller: asyncio.Future[Outcome | Exception] = loop.create_future()
        self._queue.append(_Call(item, self._size(item), caller))
        self._start()
        answer = await caller
        if isinstance(answer, Exception):
            raise _own(answer)
        return answer

    async def close(self) -> None:
        """Accept no more calls, and return when all accepted calls have their outcome. Safe to repeat."""
        self._closed = True
        while unanswered := self._batches | self._pausing:
            await asyncio.wait(unanswered)

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise RuntimeError("this Batch belongs to another event loop; create one per event loop")
        self._loop = loop

    def _start(self) -> None:
        if self._queue and len(self._batches) < self._in_flight:
            batch = asyncio.create_task(self._send())  # separate, so that cancelling a caller does not cancel the batch
            self._batches.add(batch)
            batch.add_done_callback(self._ended)

    def _ended(self, batch: asyncio.Task[None]) -> None:
        # The answered callers run before this callback, so a caller that calls again immediately joins the next batch.
        self._batches.discard(batch)
        if not batch.cancelled():
            batch.exception()  # mark as retrieved: only an interrupt, which asyncio has already raised
        self._start()

    async def _send(self) -> None:
        calls = self._take()
        if not calls:
            return
        interrupted = RuntimeError("the batch was cancelled while in flight; it is not known whether it took effect")
        answers: Sequence[Outcome | Exception] = [interrupted] * len(calls)
        try:
            answers = _one_each(await self._run([call.item for call in calls]), len(calls))
        except Exception as raised:
            answers = [raised] * len(calls)
        finally:
            for call, answer in zip(calls, answers, strict=True):
                if isinstance(answer, ExecutionLocked):
                    self._pausing.add(pause := asyncio.create_task(self._send_again(call)))
                    pause.add_done_callback(self._pausing.discard)
                elif not call.caller.done():
                    call.caller.set_result(answer)  # errors too: asyncio logs an exception that no caller retrieves

    async def _send_again(self, call: _Call[Item, Outcome]) -> None:
        backoff = call.backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)
        await backoff.wait()
        self._queue.append(call._replace(backoff=backoff))
        self._start()

    def _take(self) -> list[_Call[Item, Outcome]]:
        """Take the calls of the next batch from the queue, without those that were cancelled while they waited."""
        taken: list[_Call[Item, Outcome]] = []
        room = self._most_bytes
        while self._queue and len(taken) < self._most:
            call = self._queue[0]
            if not call.caller.done():
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
