"""Cancel flows: end a flow and all its members, only those without a lease, or none."""

from flowfabric import calls
from flowfabric.ids import FlowId, check_text, kept_text, read_execution_ids
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
    """Cancel a flow and the unfinished members that the policy selects; afterwards the flow cannot be changed.

    `cancel_pending` lets running members finish, `flow_only` ends no member. Safe to repeat: returns
    `already_cancelled` with the arguments and the effect of the first call. Raises `FlowNotFound`, `InvalidBody`.
    """
    answer = await call.row(
        conn,
        "cancel_flow",
        **calls.about_flow(flow_id),
        reason=reason if reason is None else kept_text(reason),
        by=by and check_text(by, "by"),
        policy=check_text(str(policy), "policy"),
    )
    return CancelledFlow(
        outcome=answer["outcome"],
        policy=CancelPolicy(answer["kept_policy"]),
        count=answer["amount"],
        members=read_execution_ids(answer["members"]),
        reason=answer["kept_reason"],
        by=answer["kept_by"],
    )
