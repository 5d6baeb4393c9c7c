"""The sync classes of what a handler holds while it runs. Written by `make sync`; do not edit.

A method does what the method of the async class does, and waits for the result.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from flowfabric.blocking import Sync

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from typing import Concatenate

    from flowfabric.app.tasks import SubmitOptions, Task
    from flowfabric.errors import ChildFailed
    from flowfabric.handler.approvals import Verdict
    from flowfabric.handler.budgets import Reservation
    from flowfabric.handler.children import Child
    from flowfabric.handler.context import Context
    from flowfabric.handler.maps import Mapped
    from flowfabric.handler.runtime import Amounts
    from flowfabric.handler.streams import OutputStream
    from flowfabric.handler.waits import First, Waiting
    from flowfabric.ids import ExecutionId
    from flowfabric.model import Appended, CreatedWaitpoint, Settled, Signal, Suspension, Usage
    from flowfabric.postgres.driver import Connection, Row
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncConnection(Sync):
    """A connection to Postgres, as asyncpg has it, from a pool or not. Arguments replace `$1`, `$2`, … of a query.

    The sync version of `Connection`.
    """

    __slots__ = ()
    _thing: Connection

    def fetch(self, query: str, *args: object) -> Sequence[Row]:
        """Run a query and return its rows."""
        answer: Sequence[Row] = self._wait(self._thing.fetch, query, *args)
        return answer

    def fetchrow(self, query: str, *args: object) -> Row | None:
        """Run a query and return its first row, or `None`."""
        answer: Row | None = self._wait(self._thing.fetchrow, query, *args)
        return answer

    def fetchval(self, query: str, *args: object) -> Any:
        """Run a query and return the first value of its first row, or `None`."""
        answer: Any = self._wait(self._thing.fetchval, query, *args)
        return answer

    def execute(self, query: str, *args: object) -> str:
        """Run a statement and return its status, such as `INSERT 0 1`."""
        answer: str = self._wait(self._thing.execute, query, *args)
        return answer

    def executemany(self, command: str, args: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each list of arguments."""
        self._wait(self._thing.executemany, command, args)


class SyncReservation(Sync):
    """An amount of a budget that is reserved before it is spent: `with ctx.reserve("team-a", tokens=4_000)`.

    The sync version of `Reservation`.
    """

    __slots__ = ()
    _thing: Reservation

    @property
    def budget(self) -> str:
        answer: str = self._thing.budget
        return answer

    @property
    def estimate(self) -> Amounts:
        answer: Amounts = self._thing.estimate
        return answer

    @property
    def expires_at(self) -> datetime | None:
        answer: datetime | None = self._thing.expires_at
        return answer

    def __enter__(self) -> Self:
        self._wait(self._thing.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._wait(self._thing.__aexit__, kind, error, _)

    def settle(self, **actual: int) -> Settled:
        """Spend the actual amounts, or the estimate if none are given; the unspent rest is released immediately.

        More than the estimate counts if it fits under the hard limit. If it does not, the estimate is spent, the rest
        is counted as the budget's `overrun`, and the answer is `hard_breach`. Nothing is raised, because the handler
        already has what it paid for.
        """
        answer: Settled = self._wait(self._thing.settle, **actual)
        return answer

    def release(self) -> None:
        """Release the whole reservation, because nothing was spent. Safe to repeat."""
        self._wait(self._thing.release)


class SyncChild(Sync, Generic[R]):
    """The handle of an execution submitted by a handler.

    The sync version of `Child`.
    """

    __slots__ = ()
    _thing: Child[R]

    @property
    def execution_id(self) -> ExecutionId:
        answer: ExecutionId = self._thing.execution_id
        return answer

    def result(self) -> R:
        """Wait for the end of the child and return its result; the run suspends meanwhile, as in any wait.

        Raises `ChildFailed` if the child failed, was cancelled or expired.
        """
        answer: R = self._wait(self._thing.result)
        return answer

    @property
    def unwaited(self) -> Child[R]:
        """The same object, whose methods return waits, to wait for several together: `ctx.any_of(ctx.unwaited...)`."""
        unwaited: Child[R] = self._unwaited()
        return unwaited


class SyncOutputStream(Sync):
    """Text and bytes that a handler writes piece by piece: `with ctx.stream("answer") as out`.

    The sync version of `OutputStream`.
    """

    __slots__ = ()
    _thing: OutputStream

    @property
    def name(self) -> str:
        answer: str = self._thing.name
        return answer

    def __enter__(self) -> Self:
        self._wait(self._thing.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._wait(self._thing.__aexit__, kind, error, _)

    def write(self, data: str | bytes) -> None:
        """Write a piece; it waits only if readers would otherwise be far behind: too much has not been sent yet.

        Long pieces are divided. Raises the error of an earlier piece that was refused, once; the stream can be used on.
        """
        self._wait(self._thing.write, data)

    def flush(self) -> None:
        """Return when everything that was written is committed. Raises the error of a piece that was refused."""
        self._wait(self._thing.flush)


class SyncContext(Sync):
    """One run of a handler: its steps and waits, and the execution it belongs to.

    The sync version of `Context`.
    """

    __slots__ = ()
    _thing: Context

    @property
    def execution_id(self) -> ExecutionId:
        """The id of the execution."""
        answer: ExecutionId = self._thing.execution_id
        return answer

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        answer: int = self._thing.attempt
        return answer

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the execution."""
        answer: Mapping[str, str] = self._thing.tags
        return answer

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
    ) -> R: ...
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
    ) -> Any: ...
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
    ) -> T: ...
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
    ) -> T: ...
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
    ) -> Any:
        """Run a function once and save its result; once saved, it never runs again, whatever crashes.

        The result is saved as JSON and read as the type that the function is annotated to return, or as `returns`. If
        neither is known, only plain JSON is saved, and other values are refused. Retries run immediately, while the
        worker holds the lease: after `backoff`, and then twice as long each time. When the last one fails, so does the
        run. A function that is not async runs in a thread.

        Rename a step with `was="old name"`: what is saved under the old name counts as saved.
        """
        answer: Any = self._wait(
            self._thing.step,
            name,
            function,
            *args,
            returns=returns,
            retries=retries,
            backoff=backoff,
            was=was,
            **kwargs,
        )
        return answer

    @overload
    def submit(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncChild[R]: ...
    @overload
    def submit(
        self, task: str, options: SubmitOptions | None = None, /, *, returns: type[R], **arguments: object
    ) -> SyncChild[R]: ...
    @overload
    def submit(
        self,
        task: str,
        options: SubmitOptions | None = None,
        /,
        *,
        returns: UnionType | None = None,
        **arguments: object,
    ) -> SyncChild[Any]: ...
    def submit(self, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> SyncChild[Any]:
        """Submit another task as a child of this execution: `child = ctx.submit(search, topic)`, or by name.

        Saved like a step: a later run finds the same child. Give options with `task.with_options(...)`, or after the
        name. A task of another program is submitted by its name and its lane; give the type of its result as
        `returns`. Another unknown name raises `UnknownTask`. If this execution does not complete, the child is
        cancelled, unless it has `on_parent_end="let_run"`.
        """
        return SyncChild(self._wait(self._thing.submit, task, *args, **kwargs), self._loop)

    def sleep(self, span: str | timedelta, *, name: str = "sleep", was: str | Sequence[str] = ()) -> None:
        """Suspend for a duration. A sleeping execution holds no lease, no slot and no connection."""
        self._wait(self._thing.sleep, span, name=name, was=was)

    def sleep_until(self, moment: datetime, *, name: str = "sleep", was: str | Sequence[str] = ()) -> None:
        """Suspend until a moment; return at once if it has passed."""
        self._wait(self._thing.sleep_until, moment, name=name, was=was)

    def wait_for_signal(
        self, name: str, *, timeout: str | timedelta | datetime | None = None, was: str | Sequence[str] = ()
    ) -> Signal | None:
        """Suspend until a signal arrives at the waitpoint of this name; return `None` if the wait times out.

        With `was`, the old name of the wait, a signal that ended the wait under that name counts.
        """
        answer: Signal | None = self._wait(self._thing.wait_for_signal, name, timeout=timeout, was=was)
        return answer

    def suspend(self, name: str, wish: Suspension, *, was: str | Sequence[str] = ()) -> Sequence[Signal]:
        """Suspend until a condition of your own is satisfied; return the signals that satisfied it."""
        answer: Sequence[Signal] = self._wait(self._thing.suspend, name, wish, was=was)
        return answer

    def approval(
        self,
        title: str,
        *,
        subject: object = None,
        approvers: int = 1,
        timeout: str | timedelta | datetime | None = None,
        bind: bool = True,
        was: str | Sequence[str] = (),
    ) -> Verdict:
        """Suspend until `approvers` different people approve, or one rejects. `subject` is what they are shown.

        With `bind`, a decision counts only if it is about this subject.
        """
        answer: Verdict = self._wait(
            self._thing.approval, title, subject=subject, approvers=approvers, timeout=timeout, bind=bind, was=was
        )
        return answer

    @overload
    def any_of(self, first: Waiting[A], /) -> First[A]: ...
    @overload
    def any_of(self, first: Waiting[A], second: Waiting[B], /) -> First[A | B]: ...
    @overload
    def any_of(self, first: Waiting[A], second: Waiting[B], third: Waiting[C], /) -> First[A | B | C]: ...
    @overload
    def any_of(self, /, *waits: Waiting[T]) -> First[T]: ...
    def any_of(self, /, *waits: Waiting[Any]) -> First[Any]:
        """Suspend until the first of several waits completes; return its index and value, the same in every run.

        The other waits are withdrawn. Their waitpoints stay open, and signals that arrive there are kept for the next
        wait of that name. Takes only waits of this context, which include the results of children.
        """
        answer: First[Any] = self._wait(self._thing.any_of, *waits)
        return answer

    def all_of(self, /, *waits: Waiting[T]) -> list[T]:
        """Suspend until several waits have all completed, and return their values, as `asyncio.gather` does."""
        answer: list[T] = self._wait(self._thing.all_of, *waits)
        return answer

    @overload
    def all_settled(self, mapped: Mapped[R], /) -> list[R | ChildFailed]: ...
    @overload
    def all_settled(self, /, *waits: Waiting[T]) -> list[T | ChildFailed]: ...
    def all_settled(self, /, *waits: Waiting[Any] | Mapped[Any]) -> list[Any]:
        """Suspend until all children have ended; of one that did not complete, return the `ChildFailed` instead.

        Takes a map, `ctx.all_settled(ctx.map(search, topics, max_running=50))`, or waits, such as those of
        children. A `ChildFailed` has the `state` of the child, such as `failed` or `cancelled`.
        """
        answer: list[Any] = self._wait(self._thing.all_settled, *waits)
        return answer

    @overload
    def map(
        self, task: Task[Concatenate[T, P], R], items: Iterable[T], /, *, max_running: int | None = None
    ) -> list[R]: ...
    @overload
    def map(
        self,
        task: str,
        items: Iterable[Mapping[str, object]],
        options: SubmitOptions | None = None,
        /,
        *,
        returns: type[R],
        max_running: int | None = None,
    ) -> list[R]: ...
    @overload
    def map(
        self,
        task: str,
        items: Iterable[Mapping[str, object]],
        options: SubmitOptions | None = None,
        /,
        *,
        returns: UnionType | None = None,
        max_running: int | None = None,
    ) -> list[Any]: ...
    def map(
        self,
        task: Task[..., Any] | str,
        items: Iterable[Any],
        options: SubmitOptions | None = None,
        /,
        *,
        returns: Any = None,
        max_running: int | None = None,
    ) -> list[Any]:
        """Submit a task once per item and wait for all results: `ctx.map(search, topics, max_running=50)`.

        The results are in the order of the items, of which there are at most 10,000. At most `max_running` children
        have started and not ended; the others wait for their turn. The run suspends once, until all have ended. If one
        does not complete, raises its `ChildFailed`, which names the item; `ctx.all_settled` returns it instead. A task
        given by name takes items that are its arguments by name, and the options of `ctx.submit`.
        """
        answer: list[Any] = self._wait(self._thing.map, task, items, options, returns=returns, max_running=max_running)
        return answer

    def report_usage(self, budget: str, /, **amounts: int) -> Usage:
        """Charge a budget with usage: `ctx.report_usage("team-a", tokens=1_900)`. Returns `ok` or `soft_breach`.

        Saved like a step, so it counts once however often the handler runs. Inside a step, it counts each time that
        step runs. Beyond the hard limit nothing is counted. Then `on_hard_limit` of the budget decides: raise
        `BudgetExhausted`, end the run, or suspend it until there is room.
        """
        answer: Usage = self._wait(self._thing.report_usage, budget, **amounts)
        return answer

    def reserve(self, budget: str, /, *, ttl: str | timedelta = "1h", **estimate: int) -> SyncReservation:
        """Reserve an estimate before the work begins: `with ctx.reserve("team-a", tokens=4_000)`.

        Refused as `report_usage` is. The reservation expires after `ttl`, at most a day, and is released when its
        attempt ends.
        """
        return SyncReservation(self._wait(self._thing.reserve, budget, ttl=ttl, **estimate), self._loop)

    def create_waitpoint(
        self, key: str, *, expires_in: str | timedelta = "1d", was: str | Sequence[str] = ()
    ) -> CreatedWaitpoint:
        """Create a waitpoint whose token can be given away before the run waits for it; saved like a step."""
        answer: CreatedWaitpoint = self._wait(self._thing.create_waitpoint, key, expires_in=expires_in, was=was)
        return answer

    def append_frame(
        self,
        type: str,
        data: object = None,
        *,
        kind: str = "event",
        mode: str = "durable",
        ttl: str | timedelta | None = None,
        correlation_id: str | None = None,
    ) -> Appended | None:
        """Append a frame to the stream of this attempt, and return when it is committed: readers see it at once.

        `type` is a word of your own, such as `tool_call`; `data` is anything that JSON can represent, or bytes, up to
        64 KiB. Also inside steps. A run that resumes or retries gets `None` for what readers have seen before, and
        appends nothing. A refused frame raises; the next one is appended as usual.
        """
        answer: Appended | None = self._wait(
            self._thing.append_frame, type, data, kind=kind, mode=mode, ttl=ttl, correlation_id=correlation_id
        )
        return answer

    def stream(
        self,
        name: str,
        *,
        kind: str = "stdout",
        mode: str = "durable",
        ttl: str | timedelta | None = None,
        correlation_id: str | None = None,
    ) -> SyncOutputStream:
        """Write text or bytes piece by piece, as frames of type `name`: `with ctx.stream("answer") as out`.

        `out.write(token)` sends the first piece at once, and those that follow while a call is in flight
        together. At the end of the block everything is committed.
        """
        return SyncOutputStream(
            self._wait(self._thing.stream, name, kind=kind, mode=mode, ttl=ttl, correlation_id=correlation_id),
            self._loop,
        )

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report how far the run is, from 0 to 100: `ctx.progress(40, "indexing")`.

        Patches `progress` and `message` of the summary of this attempt. It does not wait for the commit, so call it as
        often as you like: of several reports that wait for a call in flight, only the newest is sent.
        """
        self._wait(self._thing.progress, percent, message)

    def now(self) -> datetime:
        """Return the current time and save it: a later run gets the same."""
        answer: datetime = self._wait(self._thing.now)
        return answer

    def random(self) -> float:
        """Return a random number from 0 to 1 and save it: a later run gets the same."""
        answer: float = self._wait(self._thing.random)
        return answer

    @overload
    def transaction_step(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        returns: type[T],
        retries: int = 0,
        backoff: str | timedelta = "100ms",
        was: str | Sequence[str] = (),
        **kwargs: object,
    ) -> T: ...
    @overload
    def transaction_step(
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
    ) -> Any: ...
    @overload
    def transaction_step(
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
    ) -> T: ...
    def transaction_step(
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
    ) -> Any:
        """Run a step that writes to your own tables, exactly once: the writes and its result commit together.

        As `Context.transaction_step`, with a `SyncConnection` as the first argument of the function.
        """

        @functools.wraps(function)
        def write(conn: Connection) -> object:
            return function(SyncConnection(conn, self._loop), *args, **kwargs)

        options = {"returns": returns, "retries": retries, "backoff": backoff, "was": was}
        return self._wait(self._thing.transaction_step, name, write, **options)

    @property
    def unwaited(self) -> Context:
        """The same object, whose methods return waits, to wait for several together: `ctx.any_of(ctx.unwaited...)`."""
        unwaited: Context = self._unwaited()
        return unwaited
