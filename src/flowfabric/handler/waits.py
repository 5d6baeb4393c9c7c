"""Waiting: what a handler asks for and is unwound by, alone or side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from flowfabric.handler.journal import Place
from flowfabric.model import Wish

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SHORTEST_SLEEP = timedelta(milliseconds=50)


class Unwind(BaseException):
    """Carries a run out of its handler because it waits. Not an `Exception`: a handler has no business catching it."""


class Stop(Unwind):
    """Carries a run out of its handler because the engine has ended it or let it step aside: there is no report."""


class First(msgspec.Struct, Generic[T], frozen=True):
    """Which of several waits was over first, counted from 0, and what it brought."""

    index: int
    value: T


class Waiting(Coroutine[Any, Any, T_co]):
    """A wait of a handler, to be awaited once: by itself, under `asyncio.gather`, or with others in `ctx.any_of`."""

    def __init__(
        self, place: Place, wait: Callable[[], Coroutine[Any, Any, T_co]], wish: Callable[[], Awaitable[Wish]]
    ) -> None:
        self._place = place
        self._begin = wait
        self._begun: Coroutine[Any, Any, T_co] | None = None
        self.wish = wish

    def __repr__(self) -> str:
        return f"<wait {self._place.name}>"

    @property
    def over(self) -> bool:
        """Whether an earlier run has waited for it to the end."""
        return self._place.entry is not None and self._place.entry.by is not None

    def send(self, value: Any) -> Any:
        """Go on with it, as the event loop does."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Let something happen to it, as the event loop does."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """Give it up."""
        if self._begun is not None:
            self._begun.close()

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine().__await__()

    def _coroutine(self) -> Coroutine[Any, Any, T_co]:
        # Not before it is awaited: one that loses in `any_of` never is, and nobody should be warned of that.
        if self._begun is None:
            self._begun = self._begin()
        return self._begun


class Leaving:
    """How a run leaves its handler: what is asked for side by side leaves together, when nothing beside it is busy."""

    def __init__(self) -> None:
        self._busy_with = 0
        self._idle: asyncio.Event | None = None
        self._choices = 0
        self._unwinding: asyncio.Future[None] | None = None
        self.stopped = False
        """Whether the engine has ended the run, or let it step aside, before it asked to leave."""
        self.asked: list[Sequence[Wish]] = []
        """What the run waits for, when it was unwound: all of these, and of each the first that is over."""

    @property
    def left(self) -> bool:
        """Whether the run has been carried out of its handler."""
        return self.stopped or (self._unwinding is not None and self._unwinding.done())

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While this lasts, the run does not leave for a wait beside it."""
        self._busy_with += 1
        try:
            yield
        finally:
            self._busy_with -= 1
            if self._idle is not None:
                self._idle.set()

    async def unwind(self, wish: Wish) -> None:
        """Ask for a wait and leave the handler."""
        await self._unwind([wish])

    async def unwind_for_first(self, wishes: Sequence[Wish]) -> None:
        """Ask for the first of several waits and leave the handler."""
        self._choices += 1
        await self._unwind([msgspec.structs.replace(wish, choice=self._choices) for wish in wishes])

    async def _unwind(self, wishes: Sequence[Wish]) -> None:
        self.asked.append(wishes)
        if self._unwinding is None:
            self._unwinding = asyncio.get_running_loop().create_future()
            self._leaving = asyncio.create_task(self._leave(self._unwinding))
        try:
            await asyncio.shield(self._unwinding)
        except asyncio.CancelledError:
            if not self.left:  # given up before the run left: by a timeout, or since a task beside it failed
                self.asked.remove(wishes)
            raise

    async def _leave(self, unwinding: "asyncio.Future[None]") -> None:
        # Those that were called together ask one after the other in this same turn of the loop, or the next few.
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
    leaving: Leaving, place: Place, span: timedelta | datetime, clock: Callable[[], Awaitable[datetime]]
) -> Waiting[None]:
    """A wait for a moment, or for so long from the first time it is asked for."""

    async def times() -> tuple[datetime, datetime]:
        """What time it is, and when the sleep ends: as saved, or from now."""
        with leaving.busy():
            now = await clock()
        if place.entry is not None and place.entry.due_at is not None:
            return now, place.entry.due_at
        return now, now + span if isinstance(span, timedelta) else span

    async def wish() -> Wish:
        return Wish(name=place.name, occurrence=place.occurrence, what=(await times())[1])

    async def wait() -> None:
        if place.entry is not None and place.entry.by is not None:
            return
        now, due_at = await times()
        if due_at - now <= SHORTEST_SLEEP and place.entry is None:
            await asyncio.sleep(max((due_at - now).total_seconds(), 0))
        elif due_at > now:
            await leaving.unwind(Wish(name=place.name, occurrence=place.occurrence, what=due_at))

    return Waiting(place, wait, wish)


def check_waits(given: Sequence[object]) -> Sequence[Waiting[Any]]:
    """The waits themselves. Raises `TypeError` for anything else: what else a coroutine does would be lost with it."""
    waits = [wait for wait in given if isinstance(wait, Waiting)]
    if len(waits) < len(given) or not waits:
        strange = next((f"a {type(wait).__name__}" for wait in given if not isinstance(wait, Waiting)), "nothing")
        raise TypeError(f"any_of was given {strange}; give it waits of the context, such as ctx.sleep('1h')")
    return waits


async def first_of(leaving: Leaving, waits: Sequence[Waiting[Any]]) -> First[Any]:
    """Wait until one is over; the journal has no more than one that is, since the first takes the others out."""
    for index, wait in enumerate(waits):
        if wait.over:
            return First(index, await wait)
    await leaving.unwind_for_first([await wait.wish() for wait in waits])
    raise AssertionError("a run that waits has left its handler")
