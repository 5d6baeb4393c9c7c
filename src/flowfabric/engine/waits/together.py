"""Waiting together: several waits of one run as one suspension."""

import base64
from collections.abc import Sequence
from datetime import datetime

import msgspec

from flowfabric import calls
from flowfabric.engine.waits.suspend import read_condition, read_occurrence, read_waitpoint
from flowfabric.ids import ExecutionId, check_text, expect_id
from flowfabric.model import Fence, SuspendedTogether, Suspension, Wish
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def suspend_together(
    conn: Connection, fence: Fence, wishes: Sequence[Wish], *, idempotency_key: str | None = None
) -> SuspendedTogether:
    """Suspend an execution for several waits at once, as one suspension.

    It resumes when all of them have ended, and whenever one of them times out. A wait that an earlier suspension
    requested at the same place in the journal is kept; one that is no longer requested is released. Returns
    `already_satisfied`, with the lease kept, if the run can continue immediately. Raises what `suspend` raises.
    """
    answer = await call.row(
        conn,
        "suspend_together",
        **calls.under(fence),
        wishes=msgspec.json.encode([_wish(wish) for wish in wishes]).decode(),
        idempotency_key=idempotency_key and check_text(idempotency_key, "idempotency_key"),
    )
    return SuspendedTogether(outcome=answer["outcome"], suspension_id=answer["suspension_id"])


def _wish(wish: Wish) -> dict[str, object]:
    written: dict[str, object] = {
        "name": check_text(wish.name, "name"),
        "occurrence": read_occurrence(wish.occurrence),
        "choice": calls.expect(int, wish.choice, "choice"),
    }
    match wish.what:
        case datetime() as until:
            written["until"] = calls.span_or_moment(until, "until")[1]
        case Suspension() as suspension:
            written |= _suspension(suspension)
        case child:
            expect_id(ExecutionId, child, "execution id")
            written |= {"child_partition": child.partition, "child": str(child.uuid)}
    return {name: value for name, value in written.items() if value is not None}


def _suspension(wish: Suspension) -> dict[str, object]:
    timeout_ms, timeout_at = calls.span_or_moment(wish.timeout, "timeout")
    return {
        "condition": msgspec.Raw(read_condition(wish.condition).encode()),
        "waitpoints": [read_waitpoint(point) for point in wish.waitpoints],
        "reason_code": check_text(wish.reason_code, "reason_code"),
        "timeout_ms": timeout_ms,
        "timeout_at": timeout_at,
        "timeout_behavior": wish.timeout_behavior and check_text(wish.timeout_behavior, "timeout_behavior"),
        "resume_delay_ms": calls.span(wish.resume_delay, "resume_delay"),
        "requested_by": check_text(wish.requested_by, "requested_by"),
        "about": None if wish.about is None else base64.b64encode(wish.about).decode(),
        "bind": wish.bind or None,
    }
