"""Natural batching: concurrent calls of one set-based operation go to Postgres together.

The first call goes at once; those that arrive while it is in flight go together in the next batch. There is no timer:
a lone call is not delayed, and the busier the process, the more calls share a round trip.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from flowfabric.errors import FlowFabricError, ShuttingDown

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def _weightless(_: object) -> int:
    return 0


class Batch(Generic[Item, Outcome]):
    """Merges concurrent calls of one set-based operation.

    `run` takes the items in the order of the calls and gives one outcome per item, in that order: a value, or the
    refusal to raise for that caller alone. A batch ends at `most` items or `most_bytes`, as `size` counts them; an item
    over `most_bytes` goes alone. Up to `in_flight` batches are under way at once. An instance belongs to the event loop
    it is first used on.
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
            raise ValueError(f"most and in_flight are 1 or more, not {most} and {in_flight}: nothing would ever go out")
        self._run = run
        self._most = most
        self._most_bytes = most_bytes
        self._size = size
        self._in_flight = in_flight
        self._queue: deque[tuple[Item, int, asyncio.Future[Outcome | Exception]]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __call__(self, item: Item) -> Outcome:
        """Run the operation for one item, together with whatever else is waiting.

        Raises this item's refusal, or a copy of what `run` raised. Cancelled while it waits, the item is left out;
        cancelled later, it takes effect and its outcome is dropped.
        """
        if self._closed:
            raise ShuttingDown("this process is closing and takes no more calls; make the call in another one")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        caller: asyncio.Future[Outcome | Exception] = loop.create_future()
        self._queue.append((item, self._size(item), caller))
        self._start()
        answer = await caller
        if isinstance(answer, Exception):
            raise _own(answer)
        return answer

    async def close(self) -> None:
        """Take no more calls, and return when all those taken have their outcome. Safe to repeat."""
        self._closed = True
        while self._batches:
            await asyncio.wait(self._batches)

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise RuntimeError("this batch belongs to another event loop: make one per loop")
        self._loop = loop

    def _start(self) -> None:
        if self._queue and len(self._batches) < self._in_flight:
            batch = asyncio.create_task(self._go())  # of its own: no caller's cancellation may reach it
            self._batches.add(batch)
            batch.add_done_callback(self._ended)

    def _ended(self, batch: asyncio.Task[None]) -> None:
        # The callers just answered were woken before this runs, so those that call again at once join the next batch.
        self._batches.discard(batch)
        if not batch.cancelled():
            batch.exception()  # only an interrupt gets here, and asyncio has raised that already
        self._start()

    async def _go(self) -> None:
        items, callers = self._take()
        if not items:
            return
        interrupted = RuntimeError("the batch was cancelled while in flight: whether it took effect is not known")
        answers: Sequence[Outcome | Exception] = [interrupted] * len(callers)
        try:
            answers = _one_each(await self._run(items), len(callers))
        except Exception as raised:
            answers = [raised] * len(callers)
        finally:
            for caller, answer in zip(callers, answers, strict=True):
                if not caller.done():
                    caller.set_result(answer)  # a refusal too: an exception nobody is left to retrieve would be logged

    def _take(self) -> tuple[list[Item], list[asyncio.Future[Outcome | Exception]]]:
        """The next batch, without those that were cancelled while they waited."""
        items: list[Item] = []
        callers: list[asyncio.Future[Outcome | Exception]] = []
        room = self._most_bytes
        while self._queue and len(items) < self._most:
            item, size, caller = self._queue[0]
            if not caller.done():
                if items and size > room:
                    break
                items.append(item)
                callers.append(caller)
                room -= size
            self._queue.popleft()
        return items, callers


def _one_each(outcomes: Sequence[Outcome | FlowFabricError], count: int) -> Sequence[Outcome | FlowFabricError]:
    if len(outcomes) != count:
        raise RuntimeError(
            f"{count} items were run and {len(outcomes)} outcomes came back: whose is whose is not known"
        )
    return outcomes


def _own(raised: Exception) -> Exception:
    """A copy for one caller, since many may raise it and each raise writes to the traceback and the context.

    An exception that cannot be copied faithfully is shared.
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
