"""Suspending: an execution steps aside and holds nothing until what it waits for has come."""

from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.errors import InvalidBody, InvalidId, InvalidSuspension, InvalidText
from flowfabric.ids import check_text, shown
from flowfabric.model import BoundWaitpoint, Fence, Signal, Suspended, Suspension
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def suspend(conn: Connection, fence: Fence, wish: Suspension) -> Suspended:
    """Let an execution step aside until its condition holds; its lease, slot and worker are free at once.

    Signals that came before, to waitpoints made ahead, count. With an `idempotency_key` a repeated call gives the first
    answer again, also without the lease. Raises `InvalidSuspension`, `LeaseLost`, `ExecutionNotActive`,
    `WaitpointNotFound`, `WaitpointNotPending`, `PendingWaitpointExpired`, `WaitpointOfOtherExecution`, `NoActiveKey`,
    `PayloadTooLarge`, `InvalidTime`, `InvalidBody`, `InvalidText`.
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
    """A key that is wanted, with the id of one made ahead where that is given."""
    if isinstance(point, str):
        return {"key": check_text(point, "waitpoint key")}
    key, waitpoint_id = point
    if not isinstance(waitpoint_id, UUID):
        raise InvalidId(f"waitpoint id {shown(str(waitpoint_id))} is not a UUID", cause="invalid_uuid")
    return {"key": check_text(key, "waitpoint key"), "waitpoint_id": str(waitpoint_id)}


def read_condition(given: object) -> str:
    """A condition as JSON that Postgres can read; SQL says what is wrong with the rest."""
    try:
        return calls.json_text(given, "condition")
    except RecursionError:
        raise InvalidSuspension("the wait cannot be: condition too deep", cause="condition_too_deep") from None
    except UnicodeEncodeError:
        raise InvalidText("condition holds a lone surrogate; remove it") from None
    except (TypeError, ValueError, OverflowError):
        raise InvalidSuspension("the wait cannot be: the condition is not JSON", cause="malformed_condition") from None


def read_occurrence(given: int | None) -> int | None:
    """An occurrence that can be stored. Raises `InvalidBody`."""
    if given is None or 1 <= given < 1 << 31:
        return given
    raise InvalidBody(f"occurrence {given}: give a number from 1", field="occurrence")
