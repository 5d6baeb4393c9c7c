"""A flow with named members, for one-line setups."""

from collections.abc import Mapping
from typing import Any

from flowfabric.engine import attempts, claims, executions, flows
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Claim, EdgePolicy, FailureClass
from flowfabric.postgres.driver import Connection
from tests.given import submission


class Graph:
    """A flow with named members; the lane and the task of a member are its name."""

    def __init__(self, conn: Connection, flow_id: FlowId) -> None:
        self.conn, self.flow_id = conn, flow_id
        self.members: dict[str, ExecutionId] = {}

    def __getitem__(self, name: str) -> ExecutionId:
        return self.members[name]

    async def add(self, name: str, **options: Any) -> ExecutionId:
        wanted = submission(task=name, lane=name, flow=self.flow_id, **options)
        self.members[name] = (await executions.submit(self.conn, wanted)).execution_id
        return self.members[name]

    async def link(self, upstream: str, downstream: str, **options: Any) -> None:
        await flows.add_edge(self.conn, self.flow_id, self[upstream], self[downstream], **options)

    async def group(self, name: str, **policy: Any) -> None:
        await flows.set_edge_group(self.conn, self.flow_id, self[name], EdgePolicy(**policy))

    async def claim(self, name: str, **options: Any) -> Claim:
        [claim] = await claims.claim(self.conn, "pool", instance="pool-1", lanes=[name], **options)
        assert claim.execution_id == self[name]
        return claim

    async def complete(self, name: str, result: bytes | None = None) -> None:
        await attempts.complete(self.conn, (await self.claim(name)).fence, result)

    async def fail(self, name: str) -> None:
        fence = (await self.claim(name)).fence
        await attempts.fail(self.conn, fence, "it broke", class_=FailureClass.PERMANENT)

    async def state(self, name: str) -> str:
        return str((await executions.describe(self.conn, self[name])).state.public_state)

    async def states(self) -> Mapping[str, str]:
        return {name: await self.state(name) for name in self.members}


async def graph(conn: Connection, *names: str, **upstreams: str) -> Graph:
    """A flow with these members; `d="b c"` adds d, b and c, and makes d wait for b and c."""
    made = Graph(conn, (await flows.create_flow(conn, "report")).flow_id)
    for name in dict.fromkeys([*names, *" ".join(upstreams.values()).split(), *upstreams]):
        await made.add(name)
    for downstream, all_of_them in upstreams.items():
        for upstream in all_of_them.split():
            await made.link(upstream, downstream)
    return made
