"""Suspending: an execution steps aside and holds nothing until what it waits for has come."""

from datetime import timedelta

import msgspec

from flowfabric import calls, db
from flowfabric.db import Connection
from flowfabric.ids import check_text
from flowfabric.model import BoundWaitpoint, Fence, Signal, Suspended, Suspension


async def suspend(conn: Connection, fence: Fence, wish: Suspension) -> Suspended:
    """Let an execution step aside until its condition holds; its lease, slot and worker are free at once.

    Signals that came before, to waitpoints made ahead, count. With an `idempotency_key` a repeated call gives the first
    answer again, also without the lease. Raises `InvalidSuspension`, `LeaseLost`, `ExecutionNotActive`,
    `WaitpointNotFound`, `WaitpointNotPending`, `PendingWaitpointExpired`, `WaitpointOfOtherExecution`, `NoActiveKey`,
    `PayloadTooLarge`.
    """
    timeout_ms, timeout_at = calls.span_or_moment(wish.timeout, "timeout")
    answer = await db.row(
        conn,
        "suspend",
        **calls.under(fence),
        waitpoints=_waitpoints(wish),
        condition=calls.json_text(wish.condition, "condition"),
        reason_code=check_text(wish.reason_code, "reason_code"),
        timeout_ms=timeout_ms,
        timeout_at=timeout_at,
        timeout_behavior=wish.timeout_behavior and check_text(wish.timeout_behavior, "timeout_behavior"),
        resume_delay_ms=None if wish.resume_delay is None else wish.resume_delay // timedelta(milliseconds=1),
        requested_by=check_text(wish.requested_by, "requested_by"),
        idempotency_key=wish.idempotency_key and check_text(wish.idempotency_key, "idempotency_key"),
        name=wish.name and check_text(wish.name, "name"),
        occurrence=wish.occurrence,
        about=wish.about,
        bind=wish.bind,
    )
    return Suspended(
        outcome=answer["outcome"],
        suspension_id=answer["suspension_id"],
        waitpoints=db.read(list[BoundWaitpoint], answer["waitpoints_bound"]),
        signals=db.read(list[Signal], answer["signals"]),
    )


def _waitpoints(wish: Suspension) -> str:
    """The keys that are wanted, each with the id of one made ahead where that is given."""
    wanted = [
        {"key": check_text(point, "waitpoint key")}
        if isinstance(point, str)
        else {"key": check_text(point[0], "waitpoint key"), "waitpoint_id": str(point[1])}
        for point in wish.waitpoints
    ]
    return msgspec.json.encode(wanted).decode()
