"""Edges: dependencies between members, and the policy that decides when a member's dependencies are met."""

from typing import Literal
from uuid import UUID, uuid4

from flowfabric import calls
from flowfabric.ids import ExecutionId, FlowId, check_text, expect_id, read_execution_ids
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
    """Make one member of a flow wait for another; if the upstream has already ended, the edge is settled immediately.

    `pass_as` passes the upstream's result to the downstream member under that name; `payload` replaces its payload.
    Safe to repeat: the same pair and attributes return `already_applied`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
    `StaleGraphRevision`, `InvalidDependency`, `SelfReferencingEdge`, `CycleDetected`, `DependencyAlreadyExists`,
    `ExecutionAlreadyStarted`, `EdgeGroupSettled`, `FlowTooLarge`, `InvalidName`.
    """
    for member in (upstream, downstream):
        expect_id(ExecutionId, member, "execution id")
    added = await call.row(
        conn,
        "add_edge",
        partition=expect_id(FlowId, flow_id, "flow id").partition,
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
        lanes=added["lanes"] or (),
        ended=read_execution_ids(added["ended"]),
    )


async def set_edge_group(
    conn: Connection, flow_id: FlowId, downstream: ExecutionId, policy: EdgePolicy
) -> Literal["set", "already_set"]:
    """Set the policy for all edges into a member, before its first edge; by default all upstreams must succeed.

    Safe to repeat: the same policy returns `already_set`. Raises `FlowNotFound`, `FlowAlreadyTerminal`,
    `InvalidEdgeGroup`, `InvalidDependency`, `EdgeGroupAlreadyFixed`.
    """
    answer: Literal["set", "already_set"] = await call.value(
        conn,
        "set_edge_group",
        partition=expect_id(FlowId, flow_id, "flow id").partition,
        flow=flow_id.uuid,
        downstream_partition=expect_id(ExecutionId, downstream, "execution id").partition,
        downstream=downstream.uuid,
        policy=calls.json_text(policy, "policy"),
    )
    return answer
