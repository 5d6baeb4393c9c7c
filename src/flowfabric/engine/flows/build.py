"""Build flows: create a flow and add members to it."""

from collections.abc import Mapping

import msgspec

from flowfabric import calls, ids
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT
from flowfabric.ids import ExecutionId, FlowId, check_text, expect_id
from flowfabric.model import AddedExecution, CreatedFlow, Submission
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def create_flow(
    conn: Connection,
    kind: str,
    *,
    namespace: str = "default",
    flow_id: FlowId | str | None = None,
    key: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> CreatedFlow:
    """Create an empty flow. If the connection is in a transaction, the flow is created in that transaction.

    Safe to repeat with a `flow_id` or a `key`: returns `duplicate` with the id of the first flow. An idempotency key is
    unique within the namespace and is reserved until the flow is removed. Raises `InvalidId`, `WrongPartition`,
    `InvalidNamespace`, `InvalidName`, `InvalidTagKey`, `InvalidTag`.
    """
    asked = ids.mint_flow_id() if flow_id is None else ids.parse_flow_id(str(flow_id))
    made = await call.row(
        conn,
        "create_flow",
        partition=asked.partition,
        id=asked.uuid,
        namespace=ids.check_namespace(namespace),
        kind=check_text(kind, "kind"),
        key=key,
        key_partition=None if key is None else ids.idempotency_partition(namespace, key),
        tags=calls.json_text(tags, "tags") if tags else None,
    )
    return CreatedFlow(made["outcome"], ids.read_flow_id(made["flow_id"]))


async def add_execution(
    conn: Connection,
    flow_id: FlowId,
    execution: ExecutionId | Submission,
    *,
    payload_limit: int = PAYLOAD_LIMIT,
) -> AddedExecution:
    """Make an execution a member of a flow in the same partition, or submit a new member.

    An existing execution may be in any state, also ended. Safe to repeat: returns `already_member`. Raises
    `FlowNotFound`, `FlowAlreadyTerminal`, `WrongPartition`, `ExecutionNotFound`, `ExecutionAlreadyInFlow`,
    `FlowTooLarge`, and for a submission what `submit` raises.
    """
    expect_id(FlowId, flow_id, "flow id")
    if not isinstance(execution, Submission):
        return await _add(conn, flow_id, expect_id(ExecutionId, execution, "execution id"))
    item = submissions.prepare(msgspec.structs.replace(execution, flow=flow_id), {}, iter(()), payload_limit)
    async with conn.transaction():
        answer = await call.row(conn, "submit", **submissions.arguments([item]), payload_limit=payload_limit)
        if answer["refusal"] is not None:
            raise call.refusal(answer["refusal"], answer["detail"])
        if answer["outcome"] == "created":
            added = await _add(conn, flow_id, item.execution_id)
            return msgspec.structs.replace(added, outcome="added")
        first = msgspec.json.decode(answer["detail"], type=dict[str, str])["execution_id"]
        return await _add(conn, flow_id, ids.read_execution_id(first))


async def _add(conn: Connection, flow_id: FlowId, execution_id: ExecutionId) -> AddedExecution:
    added = await call.row(
        conn,
        "add_execution",
        partition=flow_id.partition,
        flow=flow_id.uuid,
        execution_partition=execution_id.partition,
        execution=execution_id.uuid,
    )
    return AddedExecution(
        outcome=added["outcome"],
        execution_id=execution_id,
        node_count=added["node_count"],
        revision=added["revision"],
    )
