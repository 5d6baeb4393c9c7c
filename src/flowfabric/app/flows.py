"""Flows: tasks that depend on each other (a DAG), built first and then submitted together."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from flowfabric import durations
from flowfabric.app.encoding import Labels
from flowfabric.app.executions import Execution
from flowfabric.app.joining import join
from flowfabric.app.sync import SyncFlowHandle
from flowfabric.app.tasks import Task
from flowfabric.engine import flows
from flowfabric.ids import ExecutionId, FlowId, mint_execution_id, mint_flow_id, shown
from flowfabric.model import (
    CancelledFlow,
    CancelPolicy,
    EdgePolicy,
    FlowDescription,
    FlowState,
    Link,
    Member,
    Submission,
    SubmittedFlow,
)
from flowfabric.payloads.codecs import PLAIN
from flowfabric.postgres.callers import AsyncCaller, SyncCaller
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

R = TypeVar("R")


class Node(Generic[R]):
    """A task in a flow that is being built. As an argument of another task it means its result."""

    def __init__(self, flow: "Flow", name: str, submission: Submission, returns: Any) -> None:
        self.flow = flow
        self.name = name
        self.submission = submission
        self.returns = returns
        self.policy: EdgePolicy | None = None
        self.upstreams: dict[str, str | None] = {}  # name of a node: the parameter its result is passed as

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    def after(self, *nodes: "Node[Any]") -> Self:
        """Wait for these nodes too, without receiving their results."""
        for node in nodes:
            self.wait_for(node)
        return self

    def any_of(self, *, let_run: bool = False) -> Self:
        """Run after the first success among the upstream nodes; the others are then cancelled, unless `let_run`."""
        return self._with_policy(EdgePolicy("any_of", None, "let_run" if let_run else "cancel_remaining"))

    def quorum(self, k: int, *, let_run: bool = False) -> Self:
        """Run after `k` successes among the upstream nodes; the others are then cancelled, unless `let_run`."""
        return self._with_policy(EdgePolicy("quorum", k, "let_run" if let_run else "cancel_remaining"))

    def _with_policy(self, policy: EdgePolicy) -> Self:
        self.policy = policy
        return self

    def wait_for(self, node: "Node[Any]", pass_as: str | None = None) -> None:
        """Wait for another node, and receive its result as the argument `pass_as` if given. Raises `ValueError`."""
        if node.flow is not self.flow:
            raise ValueError(f"{node!r} belongs to another flow; use a node of this flow")
        if pass_as is None and node.name in self.upstreams:
            return
        if self.upstreams.get(node.name) is not None:
            raise ValueError(f"{node!r} is passed to {self!r} twice; use it as one argument only")
        self.upstreams[node.name] = pass_as


class Flow:
    """Tasks that depend on each other, submitted in one call: all of them, or none.

    flow = app.flow("report")
    notes = flow.add(report, "tides")
    flow.add(write, notes)              # waits for the notes, and is called with them
    handle = await flow.submit()
    """

    def __init__(self, app: "App", kind: str, namespace: str, key: str | None, tags: Mapping[str, str] | None) -> None:
        self.kind = kind
        self.nodes: dict[str, Node[Any]] = {}
        self._app = app
        self._namespace = namespace
        self._key = key
        self._tags = tags
        self._flow_id = mint_flow_id()
        self._member_ids: dict[str, ExecutionId] = {}  # the same when the call is repeated

    def __repr__(self) -> str:
        return f"<flow {self.kind} of {', '.join(self.nodes) or 'nothing'}>"

    def add(self, task: Task[..., R], /, *args: Any, **kwargs: Any) -> Node[R]:
        """Add a task with its arguments. A node as an argument means its result, and the task waits for it.

        Give options with `task.with_options(...)`. Raises `TypeError` as a call would, and `InvalidBody` if an argument
        does not have the annotated type.
        """
        bound = task.arguments.bind(args, kwargs)
        results = {name: value for name, value in bound.items() if isinstance(value, Node)}
        if "payload" in results:
            raise TypeError(
                f"{task.name} has a parameter named payload, which in a flow means all arguments together; rename it"
            )
        own = {name: value for name, value in bound.items() if name not in results}
        return self._add(task, task.arguments.encode_some(own), results)

    def feed(self, task: Task[..., R], node: Node[Any], /) -> Node[R]:
        """Add a task that takes all its arguments from the result of a node: a mapping from name to value."""
        return self._add(task, b"{}", {"payload": node})

    def _add(self, task: Task[..., R], payload: bytes, results: Mapping[str, Node[Any]]) -> Node[R]:
        same = sum(node.submission.options.task == task.name for node in self.nodes.values())
        name = f"{task.name}_{same + 1}" if same else task.name
        node: Node[R] = Node(self, name, task.submission_of(payload), task.returns)
        for pass_as, upstream in results.items():
            node.wait_for(upstream, pass_as)
        self.nodes[name] = node
        return node

    async def submit(self) -> "FlowHandle":
        """Submit all tasks; each runs after its upstream tasks have succeeded. Returns when the flow is stored durably.

        Safe to repeat: a repeated call returns the same executions, also from another process if the flow has a key.
        Raises the errors of `submit_flow`.
        """
        answer = await self._app.database.run(self._send, repeat=True)
        self._app.notifier.send(lanes=self._first_lanes())
        return FlowHandle(self._app, answer, self.nodes)

    @overload
    def submit_in(self, conn: AsyncCaller, /) -> "Coroutine[Any, Any, FlowHandle]": ...
    @overload
    def submit_in(self, conn: SyncCaller, /) -> SyncFlowHandle: ...
    def submit_in(self, conn: Any, /) -> Any:
        """Submit all tasks inside your own open transaction, on your connection: with your rows, or not at all.

        Takes the connections that `task.submit_in` takes, and notifies workers as it does. Await the call if the
        connection is async. Raises the errors of `submit_flow`; after one, Postgres accepts only a rollback, of the
        transaction or of a savepoint around the call. Raises `RuntimeError` if no transaction is open.
        """
        app = self._app

        async def submit(conn: Connection) -> tuple[SubmittedFlow, set[str]]:
            return await self._send(conn), self._first_lanes()

        return join(
            app,
            conn,
            submit,
            lambda answer: FlowHandle(app, answer, self.nodes),
            lambda handle: SyncFlowHandle(handle, lambda: app.loop),
        )

    def _first_lanes(self) -> set[str]:
        """The lanes of the tasks that wait for no other."""
        return {node.submission.options.lane for node in self.nodes.values() if not node.upstreams}

    def _encoded(self) -> Iterator[tuple[Node[Any], Submission]]:
        encode = Labels(self._app.codecs).encode
        for name, node in self.nodes.items():
            if self._app.codecs.label == PLAIN:
                yield node, node.submission
                continue
            member_id = self._member_ids.setdefault(name, mint_execution_id(beside=self._flow_id))
            yield node, encode(node.submission, member_id)

    async def _send(self, conn: Connection) -> SubmittedFlow:
        config = self._app.config
        return await flows.submit_flow(
            conn,
            self.kind,
            [Member(name=node.name, submission=encoded) for node, encoded in self._encoded()],
            [
                Link(upstream=upstream, downstream=node.name, pass_as=pass_as)
                for node in self.nodes.values()
                for upstream, pass_as in node.upstreams.items()
            ],
            {node.name: node.policy for node in self.nodes.values() if node.policy is not None},
            namespace=self._namespace,
            flow_id=self._flow_id,
            key=self._key,
            tags=self._tags,
            payload_limit=config.payload_limit,
        )


class FlowHandle:
    """The handle of a submitted flow, with the executions of its nodes."""

    def __init__(self, app: "App", submitted: SubmittedFlow, nodes: Mapping[str, Node[Any]]) -> None:
        self.flow_id: FlowId = submitted.flow_id
        self.outcome: Literal["created", "duplicate"] = submitted.outcome
        self._app = app
        self._returns = {name: node.returns for name, node in nodes.items()}
        self._ids: Mapping[str, ExecutionId] = submitted.executions

    def __repr__(self) -> str:
        return f"<flow {self.flow_id}>"

    def __getitem__(self, node: Node[R]) -> Execution[R]:
        """Return the execution of a node: `await handle[notes].result()`."""
        return self.execution(node.name)

    def execution(self, name: str) -> Execution[Any]:
        """Return the execution of a node by name, which must be one of the flow's."""
        if name not in self._ids:
            raise KeyError(f"node {shown(name)} does not exist in {self!r}; existing nodes: {', '.join(self._ids)}")
        return Execution(self._app, self._ids[name], self._returns.get(name, Any), fresh=self.outcome == "created")

    async def wait(self, timeout: str | float | timedelta | None = None) -> FlowState:  # noqa: ASYNC109
        """Wait until every execution submitted with the flow has ended, and return the state of the flow.

        Raises `TimeoutError` if they have not ended in time; the executions continue.
        """
        timeout = durations.read_duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else timeout
        async with asyncio.timeout(timeout):
            await asyncio.gather(*(self.execution(name).wait() for name in self._ids))
        return await self.state()

    async def state(self) -> FlowState:
        """Return the state of the flow."""
        return (await self.describe(limit=0)).state

    async def describe(self, *, cursor: str | None = None, limit: int = 50) -> FlowDescription:
        """Return the state of the flow, the number of members per state, and a page of members with their edges."""
        return await self._app.flows.describe(self.flow_id, cursor=cursor, limit=limit)

    async def cancel(
        self,
        reason: str | None = None,
        *,
        by: str | None = None,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
    ) -> CancelledFlow:
        """Cancel the flow and its unfinished members; `cancel_pending` spares running members, `flow_only` all."""
        return await self._app.flows.cancel(self.flow_id, reason=reason, by=by, policy=policy)
