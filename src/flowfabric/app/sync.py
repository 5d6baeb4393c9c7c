"""The sync classes of an app, and of what it returns. Written by `make sync`; do not edit.

A method does what the method of the async class does, and waits for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from flowfabric.app.namespaces_sync import (
    SyncApprovals,
    SyncBudgets,
    SyncEvents,
    SyncExecutions,
    SyncFlows,
    SyncLanes,
    SyncQuotas,
    SyncSchedules,
    SyncSigningKeys,
    SyncWaitpoints,
    SyncWorkers,
)
from flowfabric.app.opening import Opening
from flowfabric.app.subscriptions import EVERYTHING
from flowfabric.blocking import Sync
from flowfabric.engine import events
from flowfabric.model import CancelPolicy

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from flowfabric.app.app import App
    from flowfabric.app.executions import Execution
    from flowfabric.app.flows import Flow, FlowHandle, Node
    from flowfabric.app.subscriptions import EventLog, Subscription
    from flowfabric.app.tails import Attempts, Tails
    from flowfabric.app.tasks import SubmitOptions, Task
    from flowfabric.ids import ExecutionId, FlowId
    from flowfabric.model import (
        CancelledFlow,
        Delivered,
        Description,
        Event,
        EventFilter,
        Explanation,
        FlowDescription,
        FlowState,
        Frame,
        Outcome,
        Overview,
        Progress,
        PublicState,
        SignalToSend,
        StepSummary,
        StreamSummary,
        Superseded,
        Trimmed,
    )
P = ParamSpec("P")
R = TypeVar("R")


class SyncExecution(Sync, Generic[R]):
    """The handle of a submitted execution.

    The sync version of `Execution`.
    """

    __slots__ = ()
    _thing: Execution[R]

    @property
    def execution_id(self) -> ExecutionId:
        answer: ExecutionId = self._thing.execution_id
        return answer

    def result(self, timeout: str | float | timedelta | None = None) -> R:
        """Wait for the end and return the result; `timeout` is in seconds, or a duration such as `"10m"`.

        Returns as soon as the end has committed. Raises `ExecutionFailed`, or its subclass `ExecutionCancelled`,
        `ExecutionExpired` or `ExecutionSkipped`, with the remote traceback in a note. Raises `TimeoutError` if the
        execution has not ended in time, with the sentence of `explain`; the execution continues.
        """
        answer: R = self._wait(self._thing.result, timeout)
        return answer

    def wait(self) -> Outcome:
        """Wait until the execution has ended and return its outcome."""
        answer: Outcome = self._wait(self._thing.wait)
        return answer

    def state(self) -> PublicState:
        """Return the public state, such as `suspended`."""
        answer: PublicState = self._wait(self._thing.state)
        return answer

    def describe(self) -> Description:
        """Return everything the engine knows about the execution."""
        answer: Description = self._wait(self._thing.describe)
        return answer

    def explain(self) -> Explanation:
        """Say in one sentence what the execution waits for and what would release it."""
        answer: Explanation = self._wait(self._thing.explain)
        return answer

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> PublicState:
        """Cancel the execution; a worker that is running it is notified and cancels the handler."""
        answer: PublicState = self._wait(self._thing.cancel, reason, by=by)
        return answer

    def override(
        self, outcome: Literal["success", "failed"], result: object = None, *, reason: str, by: str
    ) -> PublicState:
        """Complete the execution with a result, or fail it for good, without its lease: an act of an operator.

        Works in every unfinished state; a worker that is running it is notified and cancels the handler. The result is
        not checked against the task's return type. Safe to repeat. Raises `ExecutionEnded`, `InvalidBody`.
        """
        answer: PublicState = self._wait(self._thing.override, outcome, result, reason=reason, by=by)
        return answer

    def replay(
        self, *, by: str, from_step: str | None = None, from_occurrence: int = 1, from_scratch: bool = False
    ) -> PublicState:
        """Run an ended execution again; what was saved from a step on, or `from_scratch` all of it, runs again too.

        So does an execution that is held because its code has changed, with one of the two.

        Raises `ExecutionNotTerminal`, `MaxReplaysExhausted`, `LaneDraining`.
        """
        answer: PublicState = self._wait(
            self._thing.replay, by=by, from_step=from_step, from_occurrence=from_occurrence, from_scratch=from_scratch
        )
        return answer

    def signal(
        self, waitpoint: str, payload: object = None, *, token: str, name: str | None = None, source: str = "unknown"
    ) -> Delivered:
        """Send a signal to the waitpoint with this key, with the waitpoint's token; `name` defaults to the key.

        The effect in the answer says whether the signal counts, is kept for a later wait, or is ignored because the
        wait does not count signals of this name; that is logged too. Raises the errors of `App.signal`, such as
        `InvalidToken`, also if no waitpoint has this key.
        """
        answer: Delivered = self._wait(self._thing.signal, waitpoint, payload, token=token, name=name, source=source)
        return answer

    def approve(self, name: str, *, by: str, subject: object = None, note: str | None = None) -> Delivered:
        """Approve, as a person whom you have authenticated (`by`); each person counts once.

        `subject` is what the person was shown. Raises `ApprovalDigestMismatch` if the handler asks about another
        subject, `WaitpointNotFound`, `TargetNotSignalable`, `WaitpointClosed`.
        """
        answer: Delivered = self._wait(self._thing.approve, name, by=by, subject=subject, note=note)
        return answer

    def reject(self, name: str, *, by: str, subject: object = None, note: str | None = None) -> Delivered:
        """Reject, as a person whom you have authenticated (`by`); one rejection is enough. Raises as `approve` does."""
        answer: Delivered = self._wait(self._thing.reject, name, by=by, subject=subject, note=note)
        return answer

    def events(self, cursor: str = events.OLDEST) -> Iterator[Event]:
        """Yield the events of the execution, past and new, until it has ended."""
        return self._iterate(self._thing.events, cursor)

    def steps(self, *, results: bool = False) -> Iterator[StepSummary]:
        """Yield the steps and sleeps that the handler has saved, in that order, and then the steps that it runs now.

        A step that runs is listed when it has run for about a second. `results` reads the results too,
        as the bytes that were stored.
        """
        return self._iterate(self._thing.steps, results=results)

    def frames(
        self, cursor: str | None = None, *, attempts: Attempts = "current", best_effort: bool = True
    ) -> Iterator[Frame | Superseded | Trimmed]:
        """Yield what the execution puts out, past and new, until it has ended.

        Starts with the current attempt, or after the frame with this cursor. `attempts="all"` starts with the first
        attempt; `"valid"` does too, and leaves out what another attempt has replaced; a number reads only that one. If
        another attempt replaces the one that is read, a `Superseded` says which frames stay valid, and the frames of
        the next attempt follow. A slow reader loses no durable frame that the stream still keeps; if retention has
        deleted frames before the reader came to them, it gets a `Trimmed` in their place.

        Raises `ExecutionNotFound`, `InvalidCursor`, and `StreamDisconnected` if the database is unavailable for longer
        than the setting `subscription_timeout`.
        """
        return self._iterate(self._thing.frames, cursor, attempts=attempts, best_effort=best_effort)

    def summary(self, *, attempt: int | None = None) -> StreamSummary | None:
        """Return the summary of the current attempt, or of another: a JSON document; `None` if it has none."""
        answer: StreamSummary | None = self._wait(self._thing.summary, attempt=attempt)
        return answer

    def progress(self) -> Progress | None:
        """Return how far the current attempt is, as its handler has said; `None` if it has not said so."""
        answer: Progress | None = self._wait(self._thing.progress)
        return answer


class SyncFlowHandle(Sync):
    """The handle of a submitted flow, with the executions of its nodes.

    The sync version of `FlowHandle`.
    """

    __slots__ = ()
    _thing: FlowHandle

    @property
    def flow_id(self) -> FlowId:
        answer: FlowId = self._thing.flow_id
        return answer

    @property
    def outcome(self) -> Literal["created", "duplicate"]:
        answer: Literal["created", "duplicate"] = self._thing.outcome
        return answer

    def __getitem__(self, node: Node[R]) -> SyncExecution[R]:
        """Return the execution of a node: `handle[notes].result()`."""
        return SyncExecution(self._thing[node], self._loop)

    def execution(self, name: str) -> SyncExecution[Any]:
        """Return the execution of a node by name, which must be one of the flow's."""
        return SyncExecution(self._thing.execution(name), self._loop)

    def wait(self, timeout: str | float | timedelta | None = None) -> FlowState:
        """Wait until every execution submitted with the flow has ended, and return the state of the flow.

        Raises `TimeoutError` if they have not ended in time; the executions continue.
        """
        answer: FlowState = self._wait(self._thing.wait, timeout)
        return answer

    def state(self) -> FlowState:
        """Return the state of the flow."""
        answer: FlowState = self._wait(self._thing.state)
        return answer

    def describe(self, *, cursor: str | None = None, limit: int = 50) -> FlowDescription:
        """Return the state of the flow, the number of members per state, and a page of members with their edges."""
        answer: FlowDescription = self._wait(self._thing.describe, cursor=cursor, limit=limit)
        return answer

    def cancel(
        self, reason: str | None = None, *, by: str | None = None, policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL
    ) -> CancelledFlow:
        """Cancel the flow and its unfinished members; `cancel_pending` spares running members, `flow_only` all."""
        answer: CancelledFlow = self._wait(self._thing.cancel, reason, by=by, policy=policy)
        return answer


class SyncFlow(Sync):
    """Tasks that depend on each other, submitted in one call: all of them, or none.

    The sync version of `Flow`.
    """

    __slots__ = ()
    _thing: Flow

    @property
    def kind(self) -> str:
        answer: str = self._thing.kind
        return answer

    def add(self, task: Task[..., R], /, *args: Any, **kwargs: Any) -> Node[R]:
        """Add a task with its arguments. A node as an argument means its result, and the task waits for it.

        Give options with `task.with_options(...)`. Raises `TypeError` as a call would, and `InvalidBody` if an argument
        does not have the annotated type.
        """
        answer: Node[R] = self._thing.add(task, *args, **kwargs)
        return answer

    def feed(self, task: Task[..., R], node: Node[Any], /) -> Node[R]:
        """Add a task that takes all its arguments from the result of a node: a mapping from name to value."""
        answer: Node[R] = self._thing.feed(task, node)
        return answer

    def submit(self) -> SyncFlowHandle:
        """Submit all tasks; each runs after its upstream tasks have succeeded. Returns when the flow is stored durably.

        Safe to repeat: a repeated call returns the same executions, also from another process if the flow has a key.
        Raises the errors of `submit_flow`.
        """
        return SyncFlowHandle(self._wait(self._thing.submit), self._loop)


class SyncSubscription(Sync):
    """An endless iterator over events. `cursor` is the position after the last event it returned.

    The sync version of `Subscription`.
    """

    __slots__ = ()
    _thing: Subscription

    @property
    def cursor(self) -> str:
        answer: str = self._thing.cursor
        return answer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Return the next event. Raises `StreamDisconnected`, with the cursor, if the database stays unavailable."""
        answer: Event = self._wait(self._thing.__anext__)
        return answer


class SyncEventLog(Sync):
    """Reads the event log for all subscribers of a process, over one connection.

    The sync version of `EventLog`.
    """

    __slots__ = ()
    _thing: EventLog

    def subscribe(self, cursor: str = "", filter: EventFilter = EVERYTHING) -> SyncSubscription:
        """Follow the log from a cursor; an empty cursor means from the moment of this call.

        Raises `InvalidCursor`, `CursorExpired`, and `StreamDisconnected` if the database is unavailable for longer
        than the setting `subscription_timeout`.
        """
        return SyncSubscription(self._wait(self._thing.subscribe, cursor, filter), self._loop)


class SyncTask(Sync, Generic[P, R]):
    """A function that runs durably: call it as before, or submit it. `P` are the arguments of a submission.

    The sync version of `Task`.
    """

    __slots__ = ()
    _thing: Task[P, R]

    @property
    def name(self) -> str:
        """The stored name: the one given to `@app.task`, or the function's."""
        answer: str = self._thing.name
        return answer

    def with_options(self, **options: Unpack[SubmitOptions]) -> Self:
        """Return the same task with other options for its submissions. Raises `TypeError` for an unknown option."""
        return type(self)(self._thing.with_options(**options), self._loop)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncExecution[R]:
        """Submit the task with these arguments; returns when the execution is stored durably.

        Raises the errors of `executions.submit`, such as `PayloadTooLarge`; then nothing is submitted.
        """
        return SyncExecution(self._wait(self._thing.submit, *args, **kwargs), self._loop)

    def submit_many(self, calls: Sequence[tuple[Any, ...] | Mapping[str, Any]]) -> list[SyncExecution[R]]:
        """Submit many: each call is a tuple of arguments, or a mapping of them by name.

        If some are refused, raises an exception group of those errors; the others are submitted.
        """
        return [SyncExecution(each, self._loop) for each in self._wait(self._thing.submit_many, calls)]


class SyncApp(Opening):
    """A set of tasks and, inside `with`, the connections of this process.

    The sync version of `App`.
    """

    __slots__ = ()
    _thing: App

    @property
    def log(self) -> SyncEventLog:
        """The event log, to subscribe to."""
        return SyncEventLog(self._thing.log, self._loop)

    @property
    def approvals(self) -> SyncApprovals:
        """The approvals that executions wait for."""
        return SyncApprovals(self._thing.approvals, self._loop)

    @property
    def budgets(self) -> SyncBudgets:
        """Limits on what executions may spend, and what they have spent."""
        return SyncBudgets(self._thing.budgets, self._loop)

    @property
    def events(self) -> SyncEvents:
        """The event log, to read page by page; `log` follows it."""
        return SyncEvents(self._thing.events, self._loop)

    @property
    def executions(self) -> SyncExecutions:
        """All executions in the database: list, describe and change them."""
        return SyncExecutions(self._thing.executions, self._loop)

    @property
    def flows(self) -> SyncFlows:
        """All flows in the database: list, describe and cancel them."""
        return SyncFlows(self._thing.flows, self._loop)

    @property
    def lanes(self) -> SyncLanes:
        """The lanes (queues): list, pause, drain and resume them."""
        return SyncLanes(self._thing.lanes, self._loop)

    @property
    def quotas(self) -> SyncQuotas:
        """Limits on how fast and how many executions run."""
        return SyncQuotas(self._thing.quotas, self._loop)

    @property
    def schedules(self) -> SyncSchedules:
        """Submissions by cron or interval: create, change and pause them."""
        return SyncSchedules(self._thing.schedules, self._loop)

    @property
    def signing_keys(self) -> SyncSigningKeys:
        """The secrets that sign the tokens of waitpoints."""
        return SyncSigningKeys(self._thing.signing_keys, self._loop)

    @property
    def waitpoints(self) -> SyncWaitpoints:
        """What executions wait for, and signals to them."""
        return SyncWaitpoints(self._thing.waitpoints, self._loop)

    @property
    def workers(self) -> SyncWorkers:
        """The worker processes that are live."""
        return SyncWorkers(self._thing.workers, self._loop)

    @property
    def tails(self) -> Tails:
        """The readers in this process that follow the streams of executions."""
        answer: Tails = self._thing.tails
        return answer

    def overview(self, *, limit: int = 20) -> Overview:
        """Take a snapshot of waiting, running and stuck executions, with at most `limit` lanes and workers."""
        answer: Overview = self._wait(self._thing.overview, limit=limit)
        return answer

    def now(self) -> datetime:
        """Return the time of the database, by which deadlines, delays and resets are measured."""
        answer: datetime = self._wait(self._thing.now)
        return answer

    @overload
    def submit(
        self, name: str, options: SubmitOptions | None = None, /, *, returns: type[R], **arguments: object
    ) -> SyncExecution[R]: ...
    @overload
    def submit(
        self,
        name: str,
        options: SubmitOptions | None = None,
        /,
        *,
        returns: UnionType | None = None,
        **arguments: object,
    ) -> SyncExecution[Any]: ...
    def submit(self, name: str, options: SubmitOptions | None = None, /, **arguments: object) -> SyncExecution[Any]:
        """Submit a task by name; `options` may include the decorator's options, such as the lane.

        An app without tasks submits any name. An app with tasks refuses a name that none of them has, unless the
        options give a lane: then it is a task of another program. Its result is read as the type `returns`, or as plain
        JSON. Raises `UnknownTask`.
        """
        return SyncExecution(self._wait(self._thing.submit, name, options, **arguments), self._loop)

    def signal(self, signal: SignalToSend) -> Delivered:
        """Send a signal to a waitpoint by its id or key; concurrent signals share a round trip.

        Raises the errors of `deliver_signal`, such as `InvalidToken` and `WaitpointClosed`.
        """
        answer: Delivered = self._wait(self._thing.signal, signal)
        return answer

    @overload
    def execution(self, execution_id: str | ExecutionId, *, returns: type[R]) -> SyncExecution[R]: ...
    @overload
    def execution(self, execution_id: str | ExecutionId, *, returns: UnionType | None = None) -> SyncExecution[Any]: ...
    def execution(self, execution_id: str | ExecutionId, *, returns: Any = None) -> SyncExecution[Any]:
        """The handle of an execution submitted elsewhere: `app.execution(id, returns=list[str])`. Raises `InvalidId`.

        Without `returns`, its result is read as plain JSON.
        """
        return SyncExecution(self._thing.execution(execution_id, returns=returns), self._loop)

    def flow(
        self, kind: str, *, key: str | None = None, namespace: str = "default", tags: Mapping[str, str] | None = None
    ) -> SyncFlow:
        """Start building a flow (DAG): add tasks that depend on each other, then submit them together.

        With a key the flow is submitted once: submitting the same flow again returns the same executions. Another flow
        with that key is refused with `KeyConflict`.
        """
        return SyncFlow(self._thing.flow(kind, key=key, namespace=namespace, tags=tags), self._loop)

    def wake(self, lane: str) -> None:
        """Notify the workers of a lane; call it after you commit a transaction in which you submitted work."""
        self._wait(self._thing.wake, lane)

    @overload
    def __call__(self, thing: Task[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, thing: Execution[R], /) -> SyncExecution[R]: ...
    @overload
    def __call__(self, thing: Flow, /) -> SyncFlow: ...
    @overload
    def __call__(self, thing: FlowHandle, /) -> SyncFlowHandle: ...
    def __call__(self, thing: Any, /) -> Any:
        """Return the sync version of a task, an execution or a flow: `sync(report).submit("tides").result()`."""
        for kind in type(thing).__mro__:
            if (sync := SYNC.get(kind.__name__)) is not None:
                return sync(thing, self._loop)
        raise TypeError(f"{thing!r} has no sync version; pass a task, an execution or a flow")


# By name, because the modules of the async classes import this one.
SYNC: dict[str, Callable[..., Any]] = {
    "Task": SyncTask,
    "Execution": SyncExecution,
    "Flow": SyncFlow,
    "FlowHandle": SyncFlowHandle,
}
