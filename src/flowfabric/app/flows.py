"""Flows for an app: tasks that wait for each other, put together first and then submitted whole."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flowfabric import durations, payloads
from flowfabric.app.executions import Execution
from flowfabric.app.tasks import Task
from flowfabric.blocking import Wrapped
from flowfabric.engine import flows
from flowfabric.ids import ExecutionId, FlowId, mint_flow_id, shown
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
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

R = TypeVar("R")


class Node(Wrapped, Generic[R]):
    """A task in a flow that is being put together. As an argument of another it stands for what it will return."""

    def __init__(self, flow: "Flow", name: str, submission: Submission, returns: Any) -> None:
        self.flow = flow
        self.name = name
        self.submission = submission
        self.returns = returns
        self.policy: EdgePolicy | None = None
        self.upstreams: dict[str, str | None] = {}  # by the name of the node, what its result is passed as

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    def after(self, *nodes: "Node[Any]") -> Self:
        """Let it wait for these too, without being handed what they return."""
        for node in nodes:
            self.wait_for(node)
        return self

    def any_of(self, *, let_run: bool = False) -> Self:
        """Let one success among those it waits for be enough; the others are cancelled then, unless they may run on."""
        return self._by(EdgePolicy("any_of", None, "let_run" if let_run else "cancel_remaining"))

    def quorum(self, k: int, *, let_run: bool = False) -> Self:
        """Let `k` successes among those it waits for be enough; the others are cancelled, unless they may run on."""
        return self._by(EdgePolicy("quorum", k, "let_run" if let_run else "cancel_remaining"))

    def _by(self, policy: EdgePolicy) -> Self:
        self.policy = policy
        return self

    def wait_for(self, node: "Node[Any]", pass_as: str | None = None) -> None:
        """Let it wait for another, and be handed what that returns under a name. Raises `ValueError`."""
        if node.flow is not self.flow:
            raise ValueError(f"{node!r} is of another flow; a member waits for members of its own")
        if pass_as is None and node.name in self.upstreams:
            return
        if self.upstreams.get(node.name) is not None:
            raise ValueError(f"{node!r} is handed on to {self!r} twice; an edge passes its result under one name")
        self.upstreams[node.name] = pass_as


class Flow(Wrapped):
    """Tasks that wait for each other, put together here and submitted in one call: all of them, or none.

    flow = app.flow("report")
    notes = flow.add(search, "tides")
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
        self._flow_id = mint_flow_id(app.config.execution_partitions)

    def __repr__(self) -> str:
        return f"<flow {self.kind} of {', '.join(self.nodes) or 'nothing'}>"

    def add(self, task: Task[..., R], /, *args: Any, **kwargs: Any) -> Node[R]:
        """Add a task with its arguments. One that is a node is what that node returns, and is waited for.

        SubmitOptions come by `task.with_options(...)`. Raises `TypeError` as a call would.
        """
        bound = task.arguments.bind(args, kwargs)
        results = {name: value for name, value in bound.items() if isinstance(value, Node)}
        if "payload" in results:
            raise TypeError(f"{task.name} takes a payload, which stands for all arguments in a flow; rename it")
        own = {name: value for name, value in bound.items() if name not in results}
        return self._add(task, payloads.encode(own), results)

    def feed(self, task: Task[..., R], node: Node[Any], /) -> Node[R]:
        """Add a task whose arguments are what a node returns: a mapping of them, by their names."""
        return self._add(task, b"{}", {"payload": node})

    def _add(self, task: Task[..., R], payload: bytes, results: Mapping[str, Node[Any]]) -> Node[R]:
        same = sum(node.submission.options.task == task.name for node in self.nodes.values())
        name = f"{task.name}_{same + 1}" if same else task.name
        node: Node[R] = Node(self, name, task.submission_of(payload), task.returns)
        for pass_as, upstream in results.items():
            node.wait_for(upstream, pass_as)
        self.nodes[name] = node
        return node

    async def submit(self, conn: Connection | None = None) -> "FlowHandle":
        """Have all of it run, each when those it waits for have succeeded; answers as soon as that is on disk.

        On a connection of yours it joins the transaction open there. Safe to repeat, and with the flow's key from
        another process: the same executions. Raises what `submit_flow` refuses.
        """
        if conn is not None:
            return FlowHandle(self._app, await self._send(conn), self.nodes)
        answer = await self._app.database.run(self._send, repeat=True)
        self._app.notifier.send(
            lanes={node.submission.options.lane for node in self.nodes.values() if not node.upstreams}
        )
        return FlowHandle(self._app, answer, self.nodes)

    async def _send(self, conn: Connection) -> SubmittedFlow:
        config = self._app.config
        return await flows.submit_flow(
            conn,
            self.kind,
            [Member(name=node.name, submission=node.submission) for node in self.nodes.values()],
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
            partitions=config.execution_partitions,
            payload_limit=config.payload_limit,
        )


class FlowHandle(Wrapped):
    """A flow that was submitted, and the executions behind its nodes."""

    def __init__(self, app: "App", submitted: SubmittedFlow, nodes: Mapping[str, Node[Any]]) -> None:
        self.flow_id: FlowId = submitted.flow_id
        self.outcome = submitted.outcome
        self._app = app
        self._returns = {name: node.returns for name, node in nodes.items()}
        self._ids: Mapping[str, ExecutionId] = submitted.executions

    def __repr__(self) -> str:
        return f"<flow {self.flow_id}>"

    def __getitem__(self, node: Node[R]) -> Execution[R]:
        """The execution of a node: `await handle[notes].result()`."""
        return self.execution(node.name)

    def execution(self, name: str) -> Execution[Any]:
        """The execution of a node by its name, which must be one of the flow's."""
        if name not in self._ids:
            raise KeyError(f"{self!r} has no node {shown(name)}; it has {', '.join(self._ids)}")
        return Execution(self._app, self._ids[name], self._returns.get(name, Any), fresh=self.outcome == "created")

    async def wait(self, timeout: str | float | timedelta | None = None) -> FlowState:  # noqa: ASYNC109
        """Return when all that were submitted with it have ended, however they did, with where the flow stands then.

        Raises `TimeoutError` when they have not in time; they go on then.
        """
        timeout = durations.read_duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else timeout
        async with asyncio.timeout(timeout):
            await asyncio.gather(*(self.execution(name).wait() for name in self._ids))
        return await self.state()

    async def state(self) -> FlowState:
        """Where it stands, in one word."""
        return (await self.describe(limit=0)).state

    async def describe(self, *, cursor: str | None = None, limit: int = 50) -> FlowDescription:
        """Where it stands, how many of it are in which state, and a page of its members with what leads to each."""
        return await self._app.database.run(
            lambda conn: flows.describe_flow(conn, self.flow_id, cursor=cursor, limit=limit), repeat=True
        )

    async def cancel(
        self,
        reason: str | None = None,
        *,
        by: str | None = None,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
    ) -> CancelledFlow:
        """Cancel it, with all that have not ended; `cancel_pending` spares what runs, `flow_only` everything."""
        cancelled = await self._app.database.run(
            lambda conn: flows.cancel_flow(conn, self.flow_id, reason=reason, by=by, policy=policy), repeat=True
        )
        self._app.notify_ended(cancelled.members, follow=False)
        return cancelled
