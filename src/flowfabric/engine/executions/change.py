"""Changing executions: cancel, and change the priority."""

import msgspec

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text, kept_text, read_execution_ids
from flowfabric.model import Fence, Moved, PriorityChange, PublicState
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def cancel(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    reason: str | None = None,
    source: str = "operator_override",
    by: str | None = None,
    fence: Fence | None = None,
) -> Moved:
    """Cancel an execution; the worker that runs it stops at its next call or lease renewal.

    An operator needs no fence. Any other `source` must pass the fence while the execution is leased, and a fence that
    is passed must be valid. Safe to repeat. Raises `ExecutionNotFound`, `ExecutionEnded` for any other outcome,
    `FenceRequired`, `PartialFence`, `LeaseLost`, `ExecutionNotActive`, `InvalidBody`.
    """
    cancelled = await call.row(
        conn,
        "cancel",
        **calls.about(execution_id),
        reason=reason and kept_text(reason),
        source=check_text(source, "source"),
        by=by and check_text(by, "by"),
        lease_id=fence and fence.lease_id,
        epoch=fence and fence.epoch,
        attempt=fence and fence.attempt,
    )
    return Moved(public_state=PublicState(cancelled["public_state"]), ended=read_execution_ids(cancelled["ended"]))


async def change_priority(conn: Connection, execution_id: ExecutionId, priority: int, *, by: str) -> PriorityChange:
    """Change an execution's priority within its lane; takes effect at the next claim.

    Raises `ExecutionNotFound`, `ExecutionEnded`, `InvalidBody`.
    """
    changed = await call.row(
        conn,
        "change_priority",
        **calls.about(execution_id),
        wanted=calls.priority(priority),
        by=check_text(by, "by"),
    )
    return msgspec.convert(dict(changed), PriorityChange)
