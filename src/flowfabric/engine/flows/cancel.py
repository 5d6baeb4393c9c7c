"""Cancelling: ending a flow, with all of its members, those that do not run, or none."""

from flowfabric.ids import FlowId, check_text, kept_text
from flowfabric.model import CancelledFlow, CancelPolicy
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def cancel_flow(
    conn: Connection,
    flow_id: FlowId,
    *,
    reason: str | None = None,
    by: str | None = None,
    policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
) -> CancelledFlow:
    """Cancel a flow and, by the policy, its unfinished members; afterwards it takes nothing more.

    `cancel_pending` spares what runs, `flow_only` ends no member. Safe to repeat: `already_cancelled` says what the
    first call said and did. Raises `FlowNotFound`, `InvalidBody`.
    """
    answer = await call.row(
        conn,
        "cancel_flow",
        partition=flow_id.partition,
        id=flow_id.uuid,
        reason=reason if reason is None else kept_text(reason),
        by=by and check_text(by, "by"),
        policy=check_text(str(policy), "policy"),
    )
    return CancelledFlow(
        outcome=answer["outcome"],
        policy=CancelPolicy(answer["kept_policy"]),
        count=answer["amount"],
        members=answer["members"],
        reason=answer["kept_reason"],
        by=answer["kept_by"],
    )
