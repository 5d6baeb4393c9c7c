"""The context: the steps, waits, children and budgets of one run of a handler.

A handler that waits is unwound. When the wait is over, it runs again from the top: completed steps return their saved
results, and completed waits return what arrived. `step`, `sleep` and the waits count their occurrence when they are
called, not when they are awaited.
"""

import asyncio
import inspect
import random as randomness
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from flowfabric import durations
from flowfabric.errors import ChildFailed, InvalidName
from flowfabric.handler.approvals import Verdict, approval, first_signal, read_verdict
from flowfabric.handler.budgets import Reservation, Spender, place_name
from flowfabric.handler.captured import capturing
from flowfabric.handler.children import Child, read_end
from flowfabric.handler.failures import Failures
from flowfabric.handler.frames import Output, Pending, Progress, read_ttl
from flowfabric.handler.journal import Place, Places, earlier_names, step_running
from flowfabric.handler.maps import Family, Mapped, bounded, read_calls, settle
from flowfabric.handler.runtime import Runtime
from flowfabric.handler.steps import Steps, returned
from flowfabric.handler.streams import OutputStream
from flowfabric.handler.unawaited import Calls
from flowfabric.handler.waits import First, Leaving, Waiting, check_waits, first_of, sleeping
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import Appended, Claim, CreatedWaitpoint, JournalEntry, Signal, Suspension, Usage, Wish

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall, SubmitOptions, Task

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


class Context:
    """One run of a handler: its steps and waits, and the execution it belongs to."""

    def __init__(self, runtime: Runtime, claim: Claim, journal: Sequence[JournalEntry]) -> None:
        self._runtime = runtime
        self._claim = claim
        self._places = Places(journal)
        self._leaving = Leaving()
        self._calls = Calls()
        self._failures = Failures(runtime, claim)
        self._output = Output(runtime, claim, journal, self._leaving)

    @property
    def _steps(self) -> Steps:
        return Steps(self._runtime, self._claim, self._leaving, self._output, self._failures)

    @property
    def _spender(self) -> Spender:
        return Spender(self._runtime, self._claim, self._leaving, self._output, self._failures)

    @property
    def execution_id(self) -> ExecutionId:
        """The id of the execution."""
        return self._claim.execution_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim.attempt.number

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the execution."""
        return self._claim.tags

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: type[R],
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: UnionType,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        returns: None = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: object,
        returns: None = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        returns: Any = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, Any]:
        """Run a function once and save its result; once saved, it never runs again, whatever crashes.

        The result is saved as JSON and read as the type that the function is annotated to return, or as `returns`. If
        neither is known, only plain JSON is saved, and other values are refused. Retries run immediately, while the
        worker holds the lease: after `backoff`, and then twice as long each time. When the last one fails, so does the
        run. A function that is not async runs in a thread.

        Rename a step with `was="old name"`: what is saved under the old name counts as saved.
        """
        if retries < 0:
            raise ValueError(f"retries {retries} is invalid; use a whole number from 0")
        pause = durations.read_duration(backoff)
        kind = returned(name, function, returns)
        place = self._ask("step", name, was)
        call = partial(function, *args, **kwargs)
        return self._noted("ctx.step", name, self._steps.call(place, call, retries, pause, kind))

    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., Awaitable[object]],
        /,
        *args: object,
        returns: type[R],
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., Awaitable[object]],
        /,
        *args: object,
        returns: UnionType,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: object,
        returns: None = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, T]: ...
    def transaction_step(
        self,
        name: str,
        function: Callable[..., Awaitable[Any]],
        /,
        *args: object,
        returns: Any = None,
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> Coroutine[Any, Any, Any]:
        """Run a step that writes to your own tables, exactly once: the writes and its result commit together.

        The function gets a connection to FlowFabric's database, inside an open transaction, before the other arguments:
        `await ctx.transaction_step("charge", charge, order)`. If it raises, or if the lease is lost before the commit,
        nothing of it remains. It may run more than once, but its writes count once, so do nothing else in it.
        """
        if retries < 0:
            raise ValueError(f"retries {retries} is invalid; use a whole number from 0")
        pause = durations.read_duration(backoff)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"transaction step {name!r} needs an async function, because its connection is async")
        kind = returned(name, function, returns)
        made = self._steps.run_transaction(
            self._ask("step", name, was), lambda conn: function(conn, *args, **kwargs), retries, pause, kind
        )
        return self._noted("ctx.transaction_step", name, made)

    @overload
    def submit(self, task: "Task[P, R]", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Child[R]]: ...
    @overload
    def submit(
        self, task: str, options: "SubmitOptions | None" = None, /, *, returns: type[R], **arguments: object
    ) -> Coroutine[Any, Any, Child[R]]: ...
    @overload
    def submit(
        self,
        task: str,
        options: "SubmitOptions | None" = None,
        /,
        *,
        returns: UnionType | None = None,
        **arguments: object,
    ) -> Coroutine[Any, Any, Child[Any]]: ...
    def submit(self, task: "Task[..., Any] | str", /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Child[Any]]:
        """Submit another task as a child of this execution: `child = await ctx.submit(search, topic)`, or by name.

        Saved like a step: a later run finds the same child. Give options with `task.with_options(...)`, or after the
        name. A task of another program is submitted by its name and its lane; give the type of its result as
        `returns`. Another unknown name raises `UnknownTask`. If this execution does not complete, the child is
        cancelled, unless it has `on_parent_end="let_run"`.
        """
        call = self._runtime.read_call(task, args, kwargs)
        name = call.submission.options.task
        place = self._ask("step", f"submit:{name}", [f"submit:{old}" for old in call.was])
        return self._noted("ctx.submit", name, self._submit(place, call))

    def sleep(self, span: str | timedelta, *, name: str = "sleep", was: str | Sequence[str] = ()) -> Waiting[None]:
        """Suspend for a duration. A sleeping execution holds no lease, no slot and no connection."""
        return self._noted("ctx.sleep", span, self._sleeping(name, durations.read_duration(span), was))

    def sleep_until(self, moment: datetime, *, name: str = "sleep", was: str | Sequence[str] = ()) -> Waiting[None]:
        """Suspend until a moment; return at once if it has passed."""
        return self._noted("ctx.sleep_until", moment, self._sleeping(name, durations.read_timestamp(moment), was))

    def wait_for_signal(
        self,
        name: str,
        *,
        timeout: str | timedelta | datetime | None = None,
        was: str | Sequence[str] = (),
    ) -> Waiting[Signal | None]:
        """Suspend until a signal arrives at the waitpoint of this name; return `None` if the wait times out.

        With `was`, the old name of the wait, a signal that ended the wait under that name counts.
        """
        wish = Suspension(
            condition={"kind": "single", "waitpoint": name, "name": name},
            waitpoints=[name],
            timeout=durations.read_time(timeout),
            timeout_behavior="auto_resume",
        )
        return self._noted("ctx.wait_for_signal", name, self._waiting(name, wish, first_signal, was))

    def suspend(self, name: str, wish: Suspension, *, was: str | Sequence[str] = ()) -> Waiting[Sequence[Signal]]:
        """Suspend until a condition of your own is satisfied; return the signals that satisfied it."""
        return self._noted("ctx.suspend", name, self._waiting(name, wish, lambda signals: signals, was))

    def approval(
        self,
        title: str,
        *,
        subject: object = None,
        approvers: int = 1,
        timeout: str | timedelta | datetime | None = None,
        bind: bool = True,
        was: str | Sequence[str] = (),
    ) -> Waiting[Verdict]:
        """Suspend until `approvers` different people approve, or one rejects. `subject` is what they are shown.

        With `bind`, a decision counts only if it is about this subject.
        """
        wish = approval(title, subject=subject, approvers=approvers, timeout=durations.read_time(timeout), bind=bind)
        return self._noted("ctx.approval", title, self._waiting(title, wish, read_verdict, was))

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
        """Suspend until the first of several waits completes; return its index and value, the same in every run.

        The other waits are withdrawn. Their waitpoints stay open, and signals that arrive there are kept for the next
        wait of that name. Takes only waits of this context, which include the results of children.
        """
        return self._noted("ctx.any_of", None, first_of(self._leaving, check_waits(waits), self._output.leave_out))

    def all_of(self, /, *waits: Waiting[T]) -> Coroutine[Any, Any, list[T]]:
        """Suspend until several waits have all completed, and return their values, as `asyncio.gather` does."""

        async def gathered() -> list[T]:
            return list(await asyncio.gather(*waits))

        return self._noted("ctx.all_of", None, gathered())

    @overload
    def all_settled(self, mapped: Mapped[R], /) -> Coroutine[Any, Any, list[R | ChildFailed]]: ...
    @overload
    def all_settled(self, /, *waits: Waiting[T]) -> Coroutine[Any, Any, list[T | ChildFailed]]: ...
    def all_settled(self, /, *waits: Waiting[Any] | Mapped[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Suspend until all children have ended; of one that did not complete, return the `ChildFailed` instead.

        Takes a map, `await ctx.all_settled(ctx.map(search, topics, max_running=50))`, or waits, such as those of
        children. A `ChildFailed` has the `state` of the child, such as `failed` or `cancelled`.
        """
        return self._noted("ctx.all_settled", None, settle(waits))

    @overload
    def map(
        self, task: "Task[Concatenate[T, P], R]", items: Iterable[T], /, *, max_running: int | None = None
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        task: str,
        items: Iterable[Mapping[str, object]],
        options: "SubmitOptions | None" = None,
        /,
        *,
        returns: type[R],
        max_running: int | None = None,
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        task: str,
        items: Iterable[Mapping[str, object]],
        options: "SubmitOptions | None" = None,
        /,
        *,
        returns: UnionType | None = None,
        max_running: int | None = None,
    ) -> Mapped[Any]: ...
    def map(
        self,
        task: "Task[..., Any] | str",
        items: Iterable[Any],
        options: "SubmitOptions | None" = None,
        /,
        *,
        returns: Any = None,
        max_running: int | None = None,
    ) -> Mapped[Any]:
        """Submit a task once per item and wait for all results: `await ctx.map(search, topics, max_running=50)`.

        The results are in the order of the items, of which there are at most 10,000. At most `max_running` children
        have started and not ended; the others wait for their turn. The run suspends once, until all have ended. If one
        does not complete, raises its `ChildFailed`, which names the item; `ctx.all_settled` returns it instead. A task
        given by name takes items that are its arguments by name, and the options of `ctx.submit`.
        """
        calls = read_calls(self._runtime, task, items, options, returns)
        name = task if isinstance(task, str) else task.name
        places = [self._ask("step", f"submit:{name}", [f"submit:{old}" for old in call.was]) for call in calls]
        family = Family(self._steps, self._ask, bounded(calls, places, self.execution_id, max_running), places)
        return self._noted("ctx.map", name, Mapped(name, family.collect))

    def report_usage(self, budget: str, /, **amounts: int) -> Coroutine[Any, Any, Usage]:
        """Charge a budget with usage: `await ctx.report_usage("team-a", tokens=1_900)`. Returns `ok` or `soft_breach`.

        Saved like a step, so it counts once however often the handler runs. Inside a step, it counts each time that
        step runs. Beyond the hard limit nothing is counted. Then `on_hard_limit` of the budget decides: raise
        `BudgetExhausted`, end the run, or suspend it until there is room.
        """
        made = self._spender.report(self._budget_place("usage", budget), budget, amounts)
        return self._noted("ctx.report_usage", budget, made)

    def reserve(self, budget: str, /, *, ttl: str | timedelta = "1h", **estimate: int) -> Reservation:
        """Reserve an estimate before the work begins: `async with ctx.reserve("team-a", tokens=4_000)`.

        Refused as `report_usage` is. The reservation expires after `ttl`, at most a day, and is released when its
        attempt ends.
        """
        place = self._budget_place("reserve", budget)
        made = Reservation(self._spender, place, budget, estimate, durations.read_duration(ttl))
        return self._noted("async with ctx.reserve", budget, made)

    def create_waitpoint(
        self, key: str, *, expires_in: str | timedelta = "1d", was: str | Sequence[str] = ()
    ) -> Coroutine[Any, Any, CreatedWaitpoint]:
        """Create a waitpoint whose token can be given away before the run waits for it; saved like a step."""
        duration = durations.read_duration(expires_in)
        create = partial(self._runtime.create_waitpoint, self._claim, key, duration)
        place = self._ask("step", f"waitpoint:{key}", [f"waitpoint:{old}" for old in earlier_names(was)])
        made = self._steps.run(place, create, CreatedWaitpoint)
        return self._noted("ctx.create_waitpoint", key, made)

    def append_frame(
        self,
        type: str,  # noqa: A002
        data: object = None,
        *,
        kind: str = "event",
        mode: str = "durable",
        ttl: str | timedelta | None = None,
        correlation_id: str | None = None,
    ) -> Coroutine[Any, Any, Appended | None]:
        """Append a frame to the stream of this attempt, and return when it is committed: readers see it at once.

        `type` is a word of your own, such as `tool_call`; `data` is anything that JSON can represent, or bytes, up to
        64 KiB. Also inside steps. A run that resumes or retries gets `None` for what readers have seen before, and
        appends nothing. A refused frame raises; the next one is appended as usual.
        """
        frame = Pending(type, data, kind=kind, mode=mode, ttl=read_ttl(ttl), correlation_id=correlation_id)
        return self._noted("ctx.append_frame", type, self._output.append(frame))

    def stream(
        self,
        name: str,
        *,
        kind: str = "stdout",
        mode: str = "durable",
        ttl: str | timedelta | None = None,
        correlation_id: str | None = None,
    ) -> OutputStream:
        """Write text or bytes piece by piece, as frames of type `name`: `async with ctx.stream("answer") as out`.

        `await out.write(token)` sends the first piece at once, and those that follow while a call is in flight
        together. At the end of the block everything is committed.
        """
        return OutputStream(self._output, name, kind, mode, read_ttl(ttl), correlation_id)

    def progress(self, percent: float, message: str | None = None) -> Coroutine[Any, Any, None]:
        """Report how far the run is, from 0 to 100: `await ctx.progress(40, "indexing")`.

        Patches `progress` and `message` of the summary of this attempt. It does not wait for the commit, so call it as
        often as you like: of several reports that wait for a call in flight, only the newest is sent.
        """
        return self._noted("ctx.progress", percent, self._output.send(Progress(percent, message)))

    def now(self) -> Coroutine[Any, Any, datetime]:
        """Return the current time and save it: a later run gets the same."""
        return self.step("now", self._runtime.clock)

    def random(self) -> Coroutine[Any, Any, float]:
        """Return a random number from 0 to 1 and save it: a later run gets the same."""

        async def draw() -> float:
            return randomness.random()  # noqa: S311 - not for secrets

        return self.step("random", draw)

    def unasked(self, retired: Collection[str] = ()) -> list[str]:
        """List the saved names that this run never asked for; if a handler completes with any, its code has changed."""
        return self._places.unasked(retired)

    def unawaited(self) -> list[str]:
        """List the calls of this run that the handler has not awaited, such as `ctx.sleep('1h')`: they did nothing."""
        return self._calls.unawaited()

    @property
    def leaving(self) -> Leaving:
        """How the run was unwound, and what did not fit what earlier runs had saved."""
        return self._leaving

    @property
    def asked(self) -> Sequence[Sequence[Wish]]:
        """The groups of waits for which the run was unwound: it needs one wait of each group to complete."""
        return self._leaving.asked if self._leaving.left else ()

    def capturing_logs(self, level: int | None) -> AbstractContextManager[None]:
        """Show what the handler logs, from this level on, in the stream of this attempt."""
        return nullcontext() if level is None else capturing(self._output, level)

    async def close_output(self, *, suspends: bool) -> None:
        """Drop later frames; return when earlier ones, and failures that a suspending run has survived, are saved."""
        if suspends:
            await self._failures.save()
        self._output.close()
        await self._output.flush()

    def _noted(self, call: str, about: object, made: M) -> M:
        self._calls.add(call, about, made)
        return made

    def _ask(self, kind: str, name: str, was: str | Sequence[str] = ()) -> Place:
        if self._leaving.left:
            self._leaving.leave_again()
        if (outer := step_running.get()) is not None:
            raise InvalidName(
                f"{shown(name)} is inside step {shown(outer)}; a step cannot contain steps or waits, so call it outside"
            )
        with self._leaving.noting_changes():
            return self._places.ask(kind, name, was)

    def _budget_place(self, operation: str, budget: str) -> Place | None:
        """Return the journal place of a budget operation, or `None` inside a step, which has its own place."""
        if step_running.get() is not None and not self._leaving.left:
            return None
        return self._ask("step", place_name(operation, budget, self._claim.namespace))

    async def _submit(self, place: Place, call: "ChildCall") -> Child[Any]:
        return Child(await self._steps.submit(place, call), call.returns, self._child_end)

    def _child_end(self, child: ExecutionId, returns: Any) -> Waiting[Any]:
        made = self._waiting(f"child:{child}", child, lambda signals: read_end(child, signals, returns))
        return self._noted("result of child", child, made)

    def _waiting(
        self,
        name: str,
        what: ExecutionId | Suspension,
        read: Callable[[Sequence[Signal]], T],
        was: str | Sequence[str] = (),
    ) -> Waiting[T]:
        place = self._ask("wait", name, was)

        async def wish() -> Wish:
            return Wish(name=place.name, occurrence=place.occurrence, what=what)

        async def wait() -> T:
            if place.entry is None:
                await self._leaving.unwind(await wish())
            self._output.pass_entry(place)
            return read(() if place.entry is None else place.entry.signals)

        return Waiting(place, wait, wish)

    def _sleeping(self, name: str, span: timedelta | datetime, was: str | Sequence[str]) -> Waiting[None]:
        place = self._ask("sleep", name, was)
        return sleeping(self._leaving, place, span, self._runtime.clock, self._output.pass_entry)
