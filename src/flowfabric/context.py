"""The context: what a handler holds while it runs.

A handler that waits is unwound, and when the wait is over it runs again from the top: what it did in steps comes from
the journal, what it waited for is there. `step`, `sleep` and the waits count their occurrence when they are called, not
when they are awaited.
"""

import asyncio
import inspect
import random as randomness
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, overload

import msgspec

from flowfabric import payloads, spans
from flowfabric.approvals import Verdict, approval, read_verdict
from flowfabric.errors import Fenced, Invalid, InvalidName, ShapeChanged, TooManySteps
from flowfabric.ids import ExecutionId, shown
from flowfabric.journal import Place, Places
from flowfabric.model import Claim, CreatedWaitpoint, JournalEntry, Signal, Suspension

T = TypeVar("T")

SHORTEST_SLEEP = timedelta(milliseconds=50)
LONGEST_PAUSE = 60.0  # seconds between two tries of a step

_step_running: ContextVar[str | None] = ContextVar("step_running", default=None)


class Permanent(Exception):
    """Raised by a handler whose failure no retry would mend."""


HOPELESS = (Permanent, Invalid, ShapeChanged, TooManySteps)
"""What would happen again, however often a handler is tried."""


class Unwind(BaseException):
    """Carries a run out of its handler because it waits. Not an `Exception`: a handler has no business catching it."""


class Sleep(msgspec.Struct, frozen=True):
    """A wish to go on at a moment."""

    name: str
    occurrence: int
    until: datetime


class Wait(msgspec.Struct, frozen=True):
    """A wish to step aside until something has come."""

    name: str
    occurrence: int
    suspension: Suspension


class Engine(Protocol):
    """What a context asks of the worker that runs it."""

    async def save_step(self, claim: Claim, name: str, occurrence: int, result: bytes) -> bytes: ...
    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint: ...
    async def clock(self) -> datetime: ...


class Context:
    """One run of a handler: its steps, its waits, and what it is a run of."""

    def __init__(self, engine: Engine, claim: Claim, journal: Sequence[JournalEntry]) -> None:
        self._engine = engine
        self._claim = claim
        self._places = Places(journal)
        self._busy_with = 0
        self._idle = asyncio.Event()
        self._asked: list[Sleep | Wait] = []
        self._unwinding: asyncio.Future[None] | None = None

    @property
    def execution_id(self) -> ExecutionId:
        """What this is a run of."""
        return self._claim.execution_id

    @property
    def attempt(self) -> int:
        """Which try at it this is, from 1."""
        return self._claim.attempt.number

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the execution."""
        return self._claim.tags

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: object,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        **kwargs: object,
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once and keep its result: whatever crashes, it is not run again after it was saved.

        The result is what JSON makes of it, read as the type the function is annotated to return. Retries happen at
        once, under the lease, after `backoff` and then twice as long each time; when they are used up, the failure is
        the run's.
        """
        if retries < 0:
            raise ValueError(f"retries is {retries}; a step is retried 0 times or more")
        pause = spans.read_span(backoff)
        returns = payloads.returned(function)
        place = self._ask("step", name)
        return self._step(place, lambda: _with_retries(lambda: function(*args, **kwargs), retries, pause), returns)

    def sleep(self, span: str | timedelta, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Go on after a while. Nothing is held meanwhile: no lease, no slot, no connection."""
        wanted = spans.read_span(span)
        return self._sleep(self._ask("sleep", name), wanted)

    def sleep_until(self, moment: datetime, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Go on at a moment, or at once if it has passed."""
        wanted = spans.read_moment(moment)
        return self._sleep(self._ask("sleep", name), wanted)

    def wait_for_signal(
        self, name: str, *, timeout: str | timedelta | datetime | None = None
    ) -> Coroutine[Any, Any, Signal | None]:
        """Step aside until a signal comes, to the waitpoint of the same name; `None` when none did in time."""
        wish = Suspension(
            condition={"kind": "single", "waitpoint": name, "name": name},
            waitpoints=[name],
            timeout=spans.read_time(timeout),
            timeout_behavior="auto_resume",
        )
        return self._first_signal(self._ask("wait", name), wish)

    def suspend(self, name: str, wish: Suspension) -> Coroutine[Any, Any, Sequence[Signal]]:
        """Step aside for any condition; returns the signals that satisfied it."""
        return self._signals(self._ask("wait", name), wish)

    def approval(
        self,
        title: str,
        *,
        of: object = None,
        approvers: int = 1,
        timeout: str | timedelta | datetime | None = None,
        bind: bool = True,
    ) -> Coroutine[Any, Any, Verdict]:
        """Ask people: so many different ones say yes, or one says no. `of` is what they are shown and decide on."""
        wish = approval(title, of=of, approvers=approvers, timeout=spans.read_time(timeout), bind=bind)
        return self._verdict(self._ask("wait", title), wish)

    def create_waitpoint(
        self, key: str, *, expires_in: str | timedelta = "1d"
    ) -> Coroutine[Any, Any, CreatedWaitpoint]:
        """A waitpoint whose token can be given away before the run steps aside for it; saved like a step."""
        span = spans.read_span(expires_in)

        async def created() -> CreatedWaitpoint:
            return await self._engine.create_waitpoint(self._claim, key, span)

        return self.step(f"waitpoint:{key}", created)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """What time it is, saved: a run that begins again sees the same."""
        return self.step("now", self._clock)

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number from 0 to 1, saved: a run that begins again sees the same."""
        return self.step("random", randomness.random)

    def unasked(self) -> list[str]:
        """What the journal held and the run never asked for: a handler that completes so has changed its shape."""
        return self._places.unasked()

    @property
    def asked(self) -> Sequence[Sleep | Wait]:
        """What the run waits for, when it was unwound."""
        return self._asked

    def _ask(self, kind: str, name: str) -> Place:
        if self._unwinding is not None and self._unwinding.done():
            raise Unwind  # this run has left: what it does in `finally`, or left running, is for the one that ends
        if (outer := _step_running.get()) is not None:
            raise InvalidName(f"{shown(name)} is asked for inside step {shown(outer)}; a step holds no steps or waits")
        return self._places.ask(kind, name)

    async def _step(self, place: Place, run: Callable[[], Awaitable[Any]], returns: Any) -> Any:
        if place.entry is not None:
            return place.read(place.entry.result, returns)
        with self._busy():
            within = _step_running.set(place.name)
            try:
                encoded, result = place.keep(await run(), returns)
            finally:
                _step_running.reset(within)
            saved = await self._engine.save_step(self._claim, place.name, place.occurrence, encoded)
        return result if saved == encoded else place.read(saved, returns)

    async def _sleep(self, place: Place, until: timedelta | datetime) -> None:
        with self._busy():
            now = await self._engine.clock()
        if place.entry is not None and place.entry.due_at is not None:
            due_at = place.entry.due_at
        else:
            due_at = now + until if isinstance(until, timedelta) else until
        if due_at - now <= SHORTEST_SLEEP and place.entry is None:
            await asyncio.sleep(max((due_at - now).total_seconds(), 0))
        elif due_at > now:
            await self._unwind(Sleep(place.name, place.occurrence, due_at))

    async def _first_signal(self, place: Place, wish: Suspension) -> Signal | None:
        signals = await self._signals(place, wish)
        return next((signal for signal in signals if signal.category != "system"), None)

    async def _signals(self, place: Place, wish: Suspension) -> Sequence[Signal]:
        if place.entry is None:
            await self._unwind(Wait(place.name, place.occurrence, wish))
        return () if place.entry is None else place.entry.signals

    async def _verdict(self, place: Place, wish: Suspension) -> Verdict:
        return read_verdict(await self._signals(place, wish))

    async def _clock(self) -> datetime:
        return await self._engine.clock()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """While this lasts, the run does not leave for a wait beside it."""
        self._busy_with += 1
        try:
            yield
        finally:
            self._busy_with -= 1
            self._idle.set()

    async def _unwind(self, wish: Sleep | Wait) -> None:
        """Ask for a wait and leave the handler; waits asked for side by side leave together."""
        self._asked.append(wish)
        if self._unwinding is None:
            self._unwinding = asyncio.get_running_loop().create_future()
            self._leaving = asyncio.create_task(self._leave(self._unwinding))
        await asyncio.shield(self._unwinding)

    async def _leave(self, unwinding: "asyncio.Future[None]") -> None:
        # Those that were called together ask one after the other in this same turn of the loop, or the next few.
        while True:
            for _ in range(3):
                await asyncio.sleep(0)
            if not self._busy_with:
                break
            self._idle.clear()
            await self._idle.wait()
        unwinding.set_exception(Unwind())


async def _with_retries(call: Callable[[], Any], retries: int, pause: timedelta) -> Any:
    for made in range(retries + 1):
        try:
            result = call()
            return await result if inspect.isawaitable(result) else result
        except (*HOPELESS, Fenced):
            raise
        except Exception:
            if made == retries:
                raise
            await asyncio.sleep(min(pause.total_seconds() * 2 ** min(made, 20), LONGEST_PAUSE))
    raise AssertionError("a step was tried no time at all")
