"""Suspending: an execution waits without a lease, a slot or a connection until its waits are over."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError, InvalidBody, InvalidId, InvalidSuspension, InvalidText
from flowfabric.ids import ExecutionId, check_text, expect_id, shown
from flowfabric.model import ExecutionToSuspend, Fence, Suspended, Suspension, Wish
from flowfabric.postgres.driver import Connection


async def suspend(
    conn: Connection,
    fence: Fence,
    waits: Suspension | Wish | Sequence[Suspension | Wish],
    *,
    idempotency_key: str | None = None,
) -> Suspended:
    """Suspend an execution for one wait, or for several at once; its lease, slot and worker are free immediately.

    It resumes when all of them have ended, and whenever one of them times out. A wait that an earlier suspension
    requested at the same place in the journal is kept; one that is no longer requested is released. Signals that are
    buffered on waitpoints created earlier count: if the run can continue immediately, the answer is
    `already_satisfied`, and the lease is kept. With an `idempotency_key`, a repeated call returns the first answer
    again, even without the lease. Raises `InvalidSuspension`, `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`,
    `WaitpointNotFound`, `WaitpointNotPending`, `PendingWaitpointExpired`, `WaitpointOfOtherExecution`, `NoActiveKey`,
    `PayloadTooLarge`, `InvalidTime`, `InvalidBody`, `InvalidText`, `InvalidId`.
    """
    wanted = [waits] if isinstance(waits, Suspension | Wish) else waits
    return calls.only(
        await suspend_many(conn, [ExecutionToSuspend(fence=fence, waits=wanted, idempotency_key=idempotency_key)])
    )


async def suspend_many(
    conn: Connection, items: Sequence[ExecutionToSuspend], *, wait: bool = True
) -> list[Suspended | FlowFabricError]:
    """Suspend many executions, as if one after the other, and return one answer per item, in order.

    Without `wait`, an item whose execution another transaction has locked is refused with `RowLocked`, so that the
    other items do not wait for it.
    """
    return await calls.each_fenced(conn, "suspend", items, _item, Suspended, wait=wait)


def _item(item: ExecutionToSuspend) -> Act:
    texts = [_wait(wait) for wait in item.waits]
    keys = [item.idempotency_key, *(wait.idempotency_key for wait in item.waits if isinstance(wait, Suspension))]
    key = next((key for key in keys if key), None)
    text = msgspec.json.encode(texts).decode()
    values = {"wishes": text, "idempotency_keys": key and check_text(key, "idempotency_key")}
    return Act(item.fence, values, len(text))


def _wait(wait: Suspension | Wish) -> dict[str, object]:
    what, choice = (wait.what, wait.choice) if isinstance(wait, Wish) else (wait, None)
    written: dict[str, object] = {
        "name": wait.name and check_text(wait.name, "name"),
        "occurrence": read_number(wait.occurrence, "occurrence", 1),
        "choice": read_number(choice, "choice", -(1 << 31)),
    }
    match what:
        case datetime() as until:
            written |= {"is_sleep": True, "timeout_at": calls.span_or_moment(until, "until")[1]}
        case Suspension() as suspension:
            written |= _suspension(suspension)
        case child:
            expect_id(ExecutionId, child, "execution id")
            written |= {"child_partition": child.partition, "child": str(child.uuid)}
    return {name: value for name, value in written.items() if value is not None}


def _suspension(wanted: Suspension) -> dict[str, object]:
    timeout_ms, timeout_at = calls.span_or_moment(wanted.timeout, "timeout")
    return {
        "condition": msgspec.Raw(read_condition(wanted.condition).encode()),
        "points": [read_waitpoint(point) for point in wanted.waitpoints],
        "reason_code": check_text(wanted.reason_code, "reason_code"),
        "timeout_ms": timeout_ms,
        "timeout_at": timeout_at,
        "timeout_behavior": wanted.timeout_behavior and check_text(wanted.timeout_behavior, "timeout_behavior"),
        "resume_delay_ms": calls.span(wanted.resume_delay, "resume_delay"),
        "requested_by": check_text(wanted.requested_by, "requested_by"),
        "about": None if wanted.about is None else "\\x" + wanted.about.hex(),
        "bind": wanted.bind or None,
    }


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


def read_number(given: int | None, field: str, least: int) -> int | None:
    """Check that a number fits an int of Postgres. Raises `InvalidBody`."""
    number = calls.expect(int, given, field)
    if number is None or least <= number < 1 << 31:
        return number if number is None else int(number)  # JSON has another word for `True`
    raise InvalidBody(f"{field} {given} is invalid; use {least:,} to 2,147,483,647", field=field)
