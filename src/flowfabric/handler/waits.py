"""Waits of a handler, and how a run is unwound for them: one wait, or several together."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from flowfabric.errors import ShapeChanged
from flowfabric.handler.journal import Place
from flowfabric.model import Wish

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SHORTEST_SLEEP = timedelta(milliseconds=50)


class Unwind(BaseException):
    """Unwinds a handler because the run waits. A `BaseException`, so that `except Exception` does not swallow it."""


class Stop(Unwind):
    """Unwinds a handler because the engine has ended or suspended the run; the worker reports nothing."""


class First(msgspec.Struct, Generic[T], frozen=True):
    """The wait that completed first among several: its index, from 0, and its value."""

    index: int
    value: T


class Lazy(Coroutine[Any, Any, T_co]):
    """A coroutine that is created when it is first awaited: one that never is costs nothing, and Python is silent."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T_co]]) -> None:
        self._begin = begin
        self._begun: Coroutine[Any, Any, T_co] | None = None
        self._taken = False

    @property
    def is_begun(self) -> bool:
        """Whether it was awaited, or given to a call that awaits it."""
        return self._taken or self._begun is not None

    def take(self) -> None:
        """Count it as awaited, because the call that has it now may not await it."""
        self._taken = True

    def send(self, value: Any) -> Any:
        """Resume the coroutine, as the event loop does."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine, as the event loop does."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """Close the coroutine, if it was started."""
        if self._begun is not None:
            self._begun.close()

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine().__await__()

    def _coroutine(self) -> Coroutine[Any, Any, T_co]:
        if self._begun is None:
            self._begun = self._begin()
        return self._begun


class Waiting(Lazy[T_co]):
    """A wait of a handler, to be awaited once: alone, under `asyncio.gather`, or with others in `ctx.any_of`."""

    def __init__(
        self, place: Place, wait: Callable[[], Coroutine[Any, Any, T_co]], wish: Callable[[], Awaitable[Wish]]
    ) -> None:
        super().__init__(wait)
        self.place = place
        self.wish = wish

    def __repr__(self) -> str:
        return f"<wait {self.place.name}>"

    @property
    def over(self) -> bool:
        """Whether the wait has completed before this run."""
        return self.place.entry is not None and self.place.entry.by is not None


class Leaving:
    """Unwinds a run from its handler: once for all waits that were asked for together, when no step is busy."""

    def __init__(self) -> None:
        self._busy_with = 0
        self._idle: asyncio.Event | None = None
        self._choices = 0
        self._unwinding: asyncio.Future[None] | None = None
        self.stopped = False
        """Whether the engine has ended or suspended the run before it asked for a wait."""
        self.changed: ShapeChanged | None = None
        """The first thing that did not fit what earlier runs have saved, even if the handler has caught the error."""
        self.asked: list[Sequence[Wish]] = []
        """The groups of waits for which the run is unwound: it needs one wait of each group to complete."""
        self.swallowed = False
        """Whether the handler has gone on after it was unwound."""
        self._run = asyncio.current_task()
        self._unwound: set[asyncio.Task[Any] | None] = set()

    @property
    def left(self) -> bool:
        """Whether the run has been unwound."""
        return self.stopped or (self._unwinding is not None and self._unwinding.done())

    @property
    def is_in_gather(self) -> bool:
        """Whether the waits were unwound in asyncio tasks that the handler has started, as `asyncio.gather` does."""
        return self._run not in self._unwound

    def leave_again(self) -> NoReturn:
        """Raise what unwinds the run, because the handler calls the context after the run was unwound.

        Calls in `finally` blocks and in tasks that the handler left running belong to a later run. A call of the
        handler itself while nothing unwinds it says that it has swallowed the exception.
        """
        if not self.stopped and sys.exception() is None and asyncio.current_task() is self._run:
            self.swallowed = True
        raise Stop if self.stopped else Unwind

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside this block, no wait that runs concurrently unwinds the run."""
        self._busy_with += 1
        try:
            yield
        finally:
            self._busy_with -= 1
            if self._idle is not None:
                self._idle.set()

    @contextmanager
    def noting_changes(self) -> Iterator[None]:
        """Remember what inside this block does not fit what earlier runs have saved."""
        try:
            yield
        except ShapeChanged as changed:
            self.changed = self.changed or changed
            raise

    async def unwind(self, wish: Wish) -> None:
        """Ask for a wait and unwind the handler."""
        await self._unwind([wish])

    async def unwind_for_all(self, wishes: Sequence[Wish]) -> None:
        """Ask for several waits and unwind the handler."""
        await self._unwind(*([wish] for wish in wishes))

    async def unwind_for_first(self, wishes: Sequence[Wish]) -> None:
        """Ask for the first of several waits and unwind the handler."""
        self._choices += 1
        await self._unwind([msgspec.structs.replace(wish, choice=self._choices) for wish in wishes])

    async def _unwind(self, *groups: Sequence[Wish]) -> None:
        self.asked += groups
        self._unwound.add(asyncio.current_task())
        if self._unwinding is None:
            self._unwinding = asyncio.get_running_loop().create_future()
            self._leaving = asyncio.create_task(self._leave(self._unwinding))
        try:
            await asyncio.shield(self._unwinding)
        except asyncio.CancelledError:
            if not self.left:  # cancelled before the run was unwound: by a timeout, or because another task failed
                dropped = {id(group) for group in groups}
                self.asked = [group for group in self.asked if id(group) not in dropped]
            raise

    async def _leave(self, unwinding: "asyncio.Future[None]") -> None:
        # Waits that were started together ask one after the other, in this turn of the event loop or the next few.
        while True:
            for _ in range(3):
                await asyncio.sleep(0)
            if not self._busy_with:
                break
            self._idle = asyncio.Event()
            await self._idle.wait()
        if self.asked:
            unwinding.set_exception(Unwind())
        else:
            self._unwinding = None


def sleeping(
    leaving: Leaving,
    place: Place,
    until: timedelta | datetime,
    clock: Callable[[], Awaitable[datetime]],
    pass_entry: Callable[[Place], None],
) -> Waiting[None]:
    """Build a wait until a moment, or for a duration that starts when the sleep is first asked for."""

    async def times() -> tuple[datetime, datetime]:
        """Return the current time, and the end of the sleep: the saved one, or counted from now."""
        with leaving.busy():
            now = await clock()
        if place.entry is not None and place.entry.due_at is not None:
            return now, place.entry.due_at
        return now, now + until if isinstance(until, timedelta) else until

    async def wish() -> Wish:
        return Wish(name=place.name, occurrence=place.occurrence, what=(await times())[1])

    async def wait() -> None:
        if place.entry is not None and place.entry.by is not None:
            pass_entry(place)
            return
        now, due_at = await times()
        if due_at - now <= SHORTEST_SLEEP and place.entry is None:
            await asyncio.sleep(max((due_at - now).total_seconds(), 0))
        elif due_at > now:
            await leaving.unwind(Wish(name=place.name, occurrence=place.occurrence, what=due_at))
        pass_entry(place)

    return Waiting(place, wait, wish)


def check_waits(given: Sequence[object]) -> Sequence[Waiting[Any]]:
    """Return the waits. Raises `TypeError` for other coroutines, whose work would be lost when the run is unwound."""
    waits = [wait for wait in given if isinstance(wait, Waiting)]
    for wait in waits:
        wait.take()
    if len(waits) < len(given) or not waits:
        strange = next((type(wait).__name__ for wait in given if not isinstance(wait, Waiting)), "nothing")
        raise TypeError(f"any_of got {strange}; use waits of the context, such as ctx.sleep('1h')")
    return waits


async def first_of(leaving: Leaving, waits: Sequence[Waiting[Any]], leave_out: Callable[[Place], None]) -> First[Any]:
    """Wait until one completes. The journal has at most one, because the first to complete withdraws the others."""
    for index, wait in enumerate(waits):
        if wait.over:
            for other in waits:
                leave_out(other.place)
            return First(index, await wait)
    await leaving.unwind_for_first([await wait.wish() for wait in waits])
    raise AssertionError("a run that waits is unwound")
