"""Suspending: an execution waits without a lease, a slot or a connection until its condition holds."""

from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.errors import InvalidBody, InvalidId, InvalidSuspension, InvalidText
from flowfabric.ids import check_text, shown
from flowfabric.model import BoundWaitpoint, Fence, Signal, Suspended, Suspension
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def suspend(conn: Connection, fence: Fence, wish: Suspension) -> Suspended:
    """Suspend an execution until its condition is satisfied; its lease, slot and worker are free immediately.

    Signals that are buffered on waitpoints created earlier count. With an `idempotency_key`, a repeated call returns
    the first answer again, even without the lease. Raises `InvalidSuspension`, `LeaseLost`, `ExecutionNotActive`,
    `ExecutionNotFound`, `WaitpointNotFound`, `WaitpointNotPending`, `PendingWaitpointExpired`,
    `WaitpointOfOtherExecution`, `NoActiveKey`, `PayloadTooLarge`, `InvalidTime`, `InvalidBody`, `InvalidText`.
    """
    timeout_ms, timeout_at = calls.span_or_moment(wish.timeout, "timeout")
    answer = await call.row(
        conn,
        "suspend",
        **calls.under(fence),
        waitpoints=msgspec.json.encode([read_waitpoint(point) for point in wish.waitpoints]).decode(),
        condition=read_condition(wish.condition),
        reason_code=check_text(wish.reason_code, "reason_code"),
        timeout_ms=timeout_ms,
        timeout_at=timeout_at,
        timeout_behavior=wish.timeout_behavior and check_text(wish.timeout_behavior, "timeout_behavior"),
        resume_delay_ms=calls.span(wish.resume_delay, "resume_delay"),
        requested_by=check_text(wish.requested_by, "requested_by"),
        idempotency_key=wish.idempotency_key and check_text(wish.idempotency_key, "idempotency_key"),
        name=wish.name and check_text(wish.name, "name"),
        occurrence=read_occurrence(wish.occurrence),
        about=wish.about,
        bind=wish.bind,
    )
    return Suspended(
        outcome=answer["outcome"],
        suspension_id=answer["suspension_id"],
        waitpoints=call.read(list[BoundWaitpoint], answer["waitpoints_bound"]),
        signals=call.read(list[Signal], answer["signals"]),
    )


def read_waitpoint(point: str | tuple[str, UUID]) -> dict[str, str]:
    """A requested waitpoint: its key, and its id if it was created earlier."""
    if isinstance(point, str):
        return {"key": check_text(point, "waitpoint key")}
    key, waitpoint_id = point
    if not isinstance(waitpoint_id, UUID):
        raise InvalidId(f"waitpoint id {shown(str(waitpoint_id))} is invalid; use a UUID", cause="invalid_uuid")
    return {"key": check_text(key, "waitpoint key"), "waitpoint_id": str(waitpoint_id)}


def read_condition(given: object) -> str:
    """Encode a condition as JSON that Postgres can read; SQL validates its content."""
    try:
        return calls.json_text(given, "condition")
    except RecursionError:
        raise InvalidSuspension("the suspension is invalid: condition too deep", cause="condition_too_deep") from None
    except UnicodeEncodeError:
        raise InvalidText("condition contains a lone surrogate; remove it") from None
    except (TypeError, ValueError, OverflowError):
        raise InvalidSuspension(
            "the suspension is invalid: the condition is not JSON", cause="malformed_condition"
        ) from None


def read_occurrence(given: int | None) -> int | None:
    """Check that an occurrence fits a positive int. Raises `InvalidBody`."""
    if given is None or 1 <= given < 1 << 31:
        return given
    raise InvalidBody(f"occurrence {given} is invalid; use 1 to 2,147,483,647", field="occurrence")
