"""The context: what a handler holds while it runs.

A handler that waits is unwound, and when the wait is over it runs again from the top: what it did in steps comes from
the journal, what it waited for is there. `step`, `sleep` and the waits count their occurrence when they are called, not
when they are awaited.
"""

import asyncio
import random as randomness
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from flowfabric import durations, payloads
from flowfabric.errors import InvalidName
from flowfabric.handler.approvals import Verdict, approval, read_verdict
from flowfabric.handler.budgets import Reservation, Spender, place_name
from flowfabric.handler.children import Child, read_end
from flowfabric.handler.journal import Place, Places
from flowfabric.handler.retries import with_retries
from flowfabric.handler.runtime import Runtime
from flowfabric.handler.waits import First, Leaving, Stop, Unwind, Waiting, check_waits, first_of, sleeping
from flowfabric.ids import ExecutionId, parse_execution_id, shown
from flowfabric.model import Claim, CreatedWaitpoint, JournalEntry, Signal, Suspension, Usage, Wish

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, SubmitOptions, Task

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

MOST_PARTITIONS = 1 << 15  # of an id that we have written ourselves

_step_running: ContextVar[str | None] = ContextVar("step_running", default=None)


class Context:
    """One run of a handler: its steps, its waits, and what it is a run of."""

    def __init__(self, runtime: Runtime, claim: Claim, journal: Sequence[JournalEntry]) -> None:
        self._runtime = runtime
        self._claim = claim
        self._places = Places(journal)
        self._leaving = Leaving()

    @property
    def _spender(self) -> Spender:
        return Spender(self._runtime, self._claim, self._leaving)

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
        pause = durations.read_duration(backoff)
        returns = payloads.returned(function)
        place = self._ask("step", name)
        return self._step(place, lambda: with_retries(lambda: function(*args, **kwargs), retries, pause), returns)

    @overload
    def submit(self, task: "Task[P, R]", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Child[R]]: ...
    @overload
    def submit(
        self, task: str, options: "SubmitOptions | None" = None, /, **arguments: object
    ) -> Coroutine[Any, Any, Child[Any]]: ...
    def submit(self, task: "Task[..., Any] | str", /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Child[Any]]:
        """Have another task run, as a child of this run: `child = await ctx.submit(search, topic)`, or by name.

        A step: a run that begins again finds the same child. SubmitOptions are given by `task.with_options(...)`, or behind the
        name. When this execution ends otherwise than completed the child is cancelled, unless it has
        `on_parent_end="let_run"`.
        """
        call = self._runtime.read_call(task, args, kwargs)
        return self._submit(self._ask("step", f"submit:{call.submission.options.task}"), call)

    def sleep(self, span: str | timedelta, *, name: str = "sleep") -> Waiting[None]:
        """Go on after a while. Nothing is held meanwhile: no lease, no slot, no connection."""
        return self._sleeping(name, durations.read_duration(span))

    def sleep_until(self, moment: datetime, *, name: str = "sleep") -> Waiting[None]:
        """Go on at a moment, or at once if it has passed."""
        return self._sleeping(name, durations.read_timestamp(moment))

    def wait_for_signal(
        self, name: str, *, timeout: str | timedelta | datetime | None = None
    ) -> Waiting[Signal | None]:
        """Step aside until a signal comes, to the waitpoint of the same name; `None` when none did in time."""
        wish = Suspension(
            condition={"kind": "single", "waitpoint": name, "name": name},
            waitpoints=[name],
            timeout=durations.read_time(timeout),
            timeout_behavior="auto_resume",
        )
        return self._waiting(name, wish, _first_signal)

    def suspend(self, name: str, wish: Suspension) -> Waiting[Sequence[Signal]]:
        """Step aside for any condition; returns the signals that satisfied it."""
        return self._waiting(name, wish, lambda signals: signals)

    def approval(
        self,
        title: str,
        *,
        subject: object = None,
        approvers: int = 1,
        timeout: str | timedelta | datetime | None = None,
        bind: bool = True,
    ) -> Waiting[Verdict]:
        """Ask people: so many different ones say yes, or one says no. `of` is what they are shown and decide on."""
        wish = approval(title, subject=subject, approvers=approvers, timeout=durations.read_time(timeout), bind=bind)
        return self._waiting(title, wish, read_verdict)

    @overload
    def any_of(self, first: Waiting[A], /) -> Coroutine[Any, Any, First[A]]: ...
    @overload
    def any_of(self, first: Waiting[A], second: Waiting[B], /) -> Coroutine[Any, Any, First[A | B]]: ...
    @overload
    def any_of(
        self, first: Waiting[A], second: Waiting[B], third: Waiting[C], /
    ) -> Coroutine[Any, Any, First[A | B | C]]: ...
    @overload
    def any_of(self, /, *waits: Waiting[T]) -> Coroutine[Any, Any, First[T]]: ...
    def any_of(self, /, *waits: Waiting[Any]) -> Coroutine[Any, Any, First[Any]]:
        """Step aside until the first of several waits is over: its index and what it brought, the same in every run.

        The others are taken back: their waitpoints stay open, and what arrives there is kept for the next wait of that
        name. Takes waits of this context, children's results among them, and nothing else.
        """
        return first_of(self._leaving, check_waits(waits))

    def all_of(self, /, *waits: Waiting[T]) -> Coroutine[Any, Any, list[T]]:
        """Step aside until all of several waits are over, and give what each brought; the same as `asyncio.gather`."""

        async def gathered() -> list[T]:
            return list(await asyncio.gather(*waits))

        return gathered()

    def report_usage(self, budget: str, /, **amounts: int) -> Coroutine[Any, Any, Usage]:
        """Count what was used: `await ctx.report_usage("team-a", tokens=1_900)`. Answers `ok` or `soft_breach`.

        A step, so it counts once however often the handler runs; inside a step it counts whenever that step runs. Past
        the hard limit nothing is counted, and `BudgetExhausted` is raised, or the run ends or waits for room, as the
        budget says.
        """
        return self._spender.report(self._spent_at("usage", budget), budget, amounts)

    def reserve(self, budget: str, /, *, ttl: str | timedelta = "1h", **estimate: int) -> Reservation:
        """Set aside what something may cost, before it is begun: `async with ctx.reserve("team-a", tokens=4_000)`.

        Refused as `report_usage` is. It lapses after `ttl`, a day at most, and comes back when its attempt ends.
        """
        place = self._spent_at("reserve", budget)
        return Reservation(self._spender, place, budget, estimate, durations.read_duration(ttl))

    def create_waitpoint(
        self, key: str, *, expires_in: str | timedelta = "1d"
    ) -> Coroutine[Any, Any, CreatedWaitpoint]:
        """A waitpoint whose token can be given away before the run steps aside for it; saved like a step."""
        span = durations.read_duration(expires_in)

        async def created() -> CreatedWaitpoint:
            return await self._runtime.create_waitpoint(self._claim, key, span)

        return self._step(self._ask("step", f"waitpoint:{key}"), created, CreatedWaitpoint)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """What time it is, saved: a run that begins again sees the same."""
        return self.step("now", self._runtime.clock)

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number from 0 to 1, saved: a run that begins again sees the same."""
        return self.step("random", randomness.random)

    def unasked(self) -> list[str]:
        """What the journal held and the run never asked for: a handler that completes so has changed its shape."""
        return self._places.unasked()

    @property
    def asked(self) -> Sequence[Sequence[Wish]]:
        """What the run waits for, when it was unwound: all of these, and of each the first that is over."""
        return self._leaving.asked if self._leaving.left else ()

    def _ask(self, kind: str, name: str) -> Place:
        if self._leaving.left:
            # This run has left: what it does in `finally`, or left running, is for the one that ends.
            raise Stop if self._leaving.stopped else Unwind
        if (outer := _step_running.get()) is not None:
            raise InvalidName(f"{shown(name)} is asked for inside step {shown(outer)}; a step holds no steps or waits")
        return self._places.ask(kind, name)

    def _spent_at(self, what: str, budget: str) -> Place | None:
        """The place in the journal of what is done to a budget; inside a step there is none but the step's."""
        if _step_running.get() is not None and not self._leaving.left:
            return None
        return self._ask("step", place_name(what, budget, self._claim.namespace))

    async def _step(self, place: Place, run: Callable[[], Awaitable[Any]], returns: Any) -> Any:
        if place.entry is not None:
            return place.read(place.entry.result, returns)
        with self._leaving.busy():
            within = _step_running.set(place.name)
            try:
                encoded, result = place.keep(await run(), returns)
            finally:
                _step_running.reset(within)
            saved = await self._runtime.save_step(self._claim, place.name, place.occurrence, encoded)
        return result if saved == encoded else place.read(saved, returns)

    async def _submit(self, place: Place, call: "ChildCall") -> Child[Any]:
        if place.entry is not None:
            child = parse_execution_id(place.read(place.entry.result, str), MOST_PARTITIONS)
        else:
            with self._leaving.busy():
                child = await self._runtime.submit_child(self._claim, place.name, place.occurrence, call)
        return Child(child, call.returns, self._child_end)

    def _child_end(self, child: ExecutionId, returns: Any) -> Waiting[Any]:
        return self._waiting(f"child:{child}", child, lambda signals: read_end(child, signals, returns))

    def _waiting(self, name: str, what: ExecutionId | Suspension, read: Callable[[Sequence[Signal]], T]) -> Waiting[T]:
        place = self._ask("wait", name)

        async def wish() -> Wish:
            return Wish(name=place.name, occurrence=place.occurrence, what=what)

        async def wait() -> T:
            if place.entry is None:
                await self._leaving.unwind(await wish())
            return read(() if place.entry is None else place.entry.signals)

        return Waiting(place, wait, wish)

    def _sleeping(self, name: str, span: timedelta | datetime) -> Waiting[None]:
        return sleeping(self._leaving, self._ask("sleep", name), span, self._runtime.clock)


def _first_signal(signals: Sequence[Signal]) -> Signal | None:
    return next((signal for signal in signals if signal.source_type != "system"), None)
