"""The context: what a handler holds while it runs.

A handler that waits is unwound, and when the wait is over it runs again from the top: what it did in steps comes from
the journal, what it waited for is there. `step`, `sleep` and the waits count their occurrence when they are called, not
when they are awaited.
"""

import asyncio
import inspect
import random as randomness
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from flowfabric import payloads, spans
from flowfabric.errors import ShapeChanged
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, CreatedWaitpoint, JournalEntry, Signal, Suspension

T = TypeVar("T")

SHORTEST_SLEEP = timedelta(milliseconds=50)


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


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided on an approval, and by whom."""

    approved: bool
    timed_out: bool = False
    by: Sequence[str] = ()
    note: str | None = None


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
        self._journal = {(entry.name, entry.occurrence): entry for entry in journal}
        self._unasked = set(self._journal)
        self._uses: Counter[str] = Counter()
        self._steps_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._asked: list[Sleep | Wait] = []
        self._unwinding: asyncio.Future[Any] | None = None

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

    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T] | T],
        *args: object,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]:
        """Run a function once and keep its result: whatever crashes, it is not run again after it was saved.

        Retries happen at once, under the lease; when they are used up, the failure is the run's.
        """
        entry, occurrence = self._ask("step", name)
        return self._step(entry, name, occurrence, lambda: function(*args, **kwargs), retries, spans.read_span(backoff))

    def sleep(self, span: str | timedelta, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Go on after a while. Nothing is held meanwhile: no lease, no slot, no connection."""
        entry, occurrence = self._ask("sleep", name)
        return self._sleep(entry, name, occurrence, spans.read_span(span))

    def sleep_until(self, moment: datetime, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Go on at a moment, or at once if it has passed."""
        entry, occurrence = self._ask("sleep", name)
        return self._sleep(entry, name, occurrence, moment)

    def wait_for_signal(
        self,
        name: str,
        *,
        timeout: str | timedelta | datetime | None = None,
    ) -> Coroutine[Any, Any, Signal | None]:
        """Step aside until a signal comes, to the waitpoint of the same name; `None` when none did in time."""
        wish = Suspension(
            condition={"kind": "single", "waitpoint": name, "name": name},
            waitpoints=[name],
            timeout=spans.read_time(timeout),
            timeout_behavior="auto_resume",
        )
        entry, occurrence = self._ask("wait", name)
        return self._first_signal(entry, Wait(name, occurrence, wish))

    def suspend(self, name: str, wish: Suspension) -> Coroutine[Any, Any, Sequence[Signal]]:
        """Step aside for any condition; returns the signals that satisfied it."""
        entry, occurrence = self._ask("wait", name)
        return self._signals(entry, Wait(name, occurrence, wish))

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
        source = {"source_type": "operator"} if approvers > 1 else {}
        yes = {"kind": "count", "n": approvers, "of": "distinct_sources", "name": "approve", "waitpoints": [title]}
        no = {"kind": "single", "waitpoint": title, "name": "reject"}
        wish = Suspension(
            condition={"kind": "any_of", "members": [yes | source, no | source]},
            waitpoints=[title],
            reason_code="waiting_for_approval",
            timeout=spans.read_time(timeout),
            timeout_behavior="auto_resume",
            about=None if of is None else payloads.encode(of),
            bind=bind and of is not None,
        )
        entry, occurrence = self._ask("wait", title)
        return self._verdict(entry, Wait(title, occurrence, wish))

    async def create_waitpoint(self, key: str, *, expires_in: str | timedelta = "1d") -> CreatedWaitpoint:
        """A waitpoint whose token can be given away before the run steps aside for it."""
        return await self._engine.create_waitpoint(self._claim, key, spans.read_span(expires_in))

    async def now(self) -> datetime:
        """What time it is, saved: a run that begins again sees the same."""
        return datetime.fromisoformat(await self.step("now", self._clock))

    async def random(self) -> float:
        """A random number from 0 to 1, saved: a run that begins again sees the same."""
        return await self.step("random", randomness.random)

    async def _clock(self) -> str:
        return (await self._engine.clock()).isoformat()

    def _ask(self, kind: str, name: str) -> tuple[JournalEntry | None, int]:
        """Look a place up in the journal; asked for as another kind than it was saved, the handler has changed."""
        self._uses[name] += 1
        place = (name, self._uses[name])
        entry = self._journal.get(place)
        self._unasked.discard(place)
        if entry is not None and entry.kind != kind:
            raise ShapeChanged(
                f"{name!r} (occurrence {place[1]}) was a {entry.kind} when it was saved and is a {kind} now; "
                "give changed code a new name, or replay without saved steps",
                name=name,
            )
        return entry, place[1]

    def unasked(self) -> list[str]:
        """What the journal held and the run never asked for: a handler that completes so has changed its shape."""
        return sorted({name for name, _ in self._unasked})

    @property
    def asked(self) -> Sequence[Sleep | Wait]:
        """What the run waits for, when it was unwound."""
        return self._asked

    async def _step(
        self,
        entry: JournalEntry | None,
        name: str,
        occurrence: int,
        call: Callable[[], Awaitable[T] | T],
        retries: int,
        pause: timedelta,
    ) -> T:
        if entry is not None:
            return payloads.decode(entry.result, Any)  # type: ignore[no-any-return]
        self._steps_running += 1
        self._idle.clear()
        try:
            result = await _with_retries(call, retries, pause)
            saved = await self._engine.save_step(self._claim, name, occurrence, payloads.encode(result))
        finally:
            self._steps_running -= 1
            if not self._steps_running:
                self._idle.set()
        return payloads.decode(saved, Any)  # type: ignore[no-any-return]

    async def _sleep(self, entry: JournalEntry | None, name: str, occurrence: int, until: timedelta | datetime) -> None:
        now = await self._engine.clock()
        if entry is not None and entry.due_at is not None:
            due_at = entry.due_at
        else:
            due_at = now + until if isinstance(until, timedelta) else until
        if due_at - now <= SHORTEST_SLEEP and entry is None:
            await asyncio.sleep(max((due_at - now).total_seconds(), 0))
        elif due_at > now:
            await self._unwind(Sleep(name, occurrence, due_at))

    async def _first_signal(self, entry: JournalEntry | None, wait: Wait) -> Signal | None:
        signals = await self._signals(entry, wait)
        return next((signal for signal in signals if signal.category != "system"), None)

    async def _signals(self, entry: JournalEntry | None, wait: Wait) -> Sequence[Signal]:
        if entry is None:
            await self._unwind(wait)
        return () if entry is None else entry.signals

    async def _verdict(self, entry: JournalEntry | None, wait: Wait) -> Verdict:
        signals = await self._signals(entry, wait)
        timed_out = any(signal.name == "timeout" and signal.category == "system" for signal in signals)
        approved = bool(signals) and all(signal.name == "approve" for signal in signals)
        return Verdict(approved=approved, timed_out=timed_out, by=[signal.source_identity for signal in signals])

    async def _unwind(self, wish: Sleep | Wait) -> None:
        """Ask for a wait and leave the handler; waits asked for side by side leave together."""
        self._asked.append(wish)
        if self._unwinding is None:
            self._unwinding = asyncio.get_running_loop().create_future()
            self._leaving = asyncio.create_task(self._leave(self._unwinding))
        await asyncio.shield(self._unwinding)

    async def _leave(self, unwinding: asyncio.Future[Any]) -> None:
        # Those that were called together ask one after the other in this same turn of the loop, or the next few.
        for _ in range(3):
            await asyncio.sleep(0)
        await self._idle.wait()
        unwinding.set_exception(Unwind())


async def _with_retries(call: Callable[[], Awaitable[T] | T], retries: int, pause: timedelta) -> T:
    for made in range(retries + 1):
        try:
            result = call()
            return await result if inspect.isawaitable(result) else result
        except Exception:
            if made == retries:
                raise
            await asyncio.sleep(pause.total_seconds() * 2**made)
    raise AssertionError("a step was tried no time at all")
