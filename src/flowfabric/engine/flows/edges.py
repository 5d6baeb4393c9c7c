"""Edges: which member waits for which, and the rule over all that one waits for."""

from typing import Literal
from uuid import UUID, uuid4

from flowfabric import calls
from flowfabric.ids import ExecutionId, FlowId, check_text
from flowfabric.model import AddedEdge, EdgePolicy
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def add_edge(
    conn: Connection,
    flow_id: FlowId,
    upstream: ExecutionId,
    downstream: ExecutionId,
    *,
    edge_id: UUID | None = None,
    pass_as: str | None = None,
    expected_revision: int | None = None,
) -> AddedEdge:
    """Let one member of a flow wait for another; an upstream that has ended already settles the edge at once.

    With `pass_as` the result of the upstream is handed on under that name; `payload` makes it the child's payload. Safe
    to repeat: the same pair and attributes answer `already_applied`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
    `StaleGraphRevision`, `InvalidDependency`, `SelfReferencingEdge`, `CycleDetected`, `DependencyAlreadyExists`,
    `ExecutionAlreadyStarted`, `EdgeGroupSettled`, `FlowTooLarge`, `InvalidName`.
    """
    added = await call.row(
        conn,
        "add_edge",
        partition=flow_id.partition,
        flow=flow_id.uuid,
        upstream_partition=upstream.partition,
        upstream=upstream.uuid,
        downstream_partition=downstream.partition,
        downstream=downstream.uuid,
        edge_id=edge_id or uuid4(),
        is_minted=edge_id is None,
        pass_as=pass_as if pass_as is None else check_text(pass_as, "pass_as"),
        expected_revision=expected_revision,
    )
    return AddedEdge(
        outcome=added["outcome"],
        edge_id=added["applied_edge"],
        revision=added["revision"],
        unsatisfied=added["unsatisfied"],
    )


async def set_edge_group(
    conn: Connection, flow_id: FlowId, downstream: ExecutionId, policy: EdgePolicy
) -> Literal["set", "already_set"]:
    """Fix the rule over all edges into a member, before its first edge; without, all upstreams must succeed.

    Safe to repeat: the same rule answers `already_set`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
    `InvalidEdgeGroup`, `InvalidDependency`, `EdgeGroupAlreadyFixed`.
    """
    answer: Literal["set", "already_set"] = await call.value(
        conn,
        "set_edge_group",
        partition=flow_id.partition,
        flow=flow_id.uuid,
        downstream_partition=downstream.partition,
        downstream=downstream.uuid,
        policy=calls.json_text(policy, "policy"),
    )
    return answer
