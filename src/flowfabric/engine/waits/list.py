"""Listing waits: which executions wait, for what, and since when. Tokens are never shown."""

import msgspec

from flowfabric import calls, cursors
from flowfabric.errors import InvalidBody
from flowfabric.ids import ExecutionId, check_filter, shown
from flowfabric.model import Approval, Page, SuspendedExecution, Waitpoint
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

# What `flowfabric._suspension_reason` knows.
REASON_CODES = (
    *("waiting_for_signal", "waiting_for_approval", "waiting_for_callback", "waiting_for_tool_result"),
    *("waiting_for_operator_review", "manual_pause", "paused_by_policy", "paused_by_budget", "step_boundary"),
)
STATES = ("pending", "active", "closed")


async def list_suspended(
    conn: Connection,
    *,
    namespace: str | None = None,
    lane: str | None = None,
    reason_code: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[SuspendedExecution]:
    """List the executions that are suspended now, longest first.

    Raises `InvalidBody` for a reason code that does not exist, `InvalidCursor`, `InvalidLimit`.
    """
    if check_filter(reason_code, "reason_code") is not None and reason_code not in REASON_CODES:
        raise InvalidBody(
            f"reason code {shown(str(reason_code))} is invalid; use one of {', '.join(REASON_CODES)}",
            field="reason_code",
        )
    position: dict[str, object] = {}
    if cursor:
        moment, last = cursors.parse_newest_cursor(cursor)
        position = {"after_suspended": moment, "after_partition": last.partition, "after_id": last.uuid}
    found = await call.rows(
        conn,
        "list_suspended",
        namespace=check_filter(namespace, "namespace"),
        lane=check_filter(lane, "lane"),
        reason_code=reason_code,
        take=call.take(limit),
        **position,
    )
    items = [_suspended(row) for row in found]
    return call.page(items, limit, lambda last: cursors.newest_cursor(last.suspended_at, last.execution_id))


async def list_approvals(
    conn: Connection,
    *,
    namespace: str | None = None,
    lane: str | None = None,
    tag: tuple[str, str] | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[Approval]:
    """List the approvals that executions wait for, the oldest first: an inbox. `tag` is a name and a value.

    Raises `InvalidCursor`, `InvalidLimit`.
    """
    position: dict[str, object] = {}
    if cursor:
        moment, last = cursors.parse_waitpoint_cursor(cursor)
        position = {"after_asked": moment, "after_id": last}
    found = await call.rows(
        conn,
        "list_approvals",
        namespace=check_filter(namespace, "namespace"),
        lane=check_filter(lane, "lane"),
        tag=check_filter(tag and tag[0], "tag"),
        tag_value=check_filter(tag and tag[1], "tag"),
        take=call.take(limit),
        **position,
    )
    items = [_approval(row) for row in found]
    return call.page(items, limit, lambda last: cursors.waitpoint_cursor(last.asked_at, last.approval_id))


async def list_waits(conn: Connection, execution_id: ExecutionId) -> list[SuspendedExecution]:
    """List the waits of one execution that are open now. Raises `ExecutionNotFound`."""
    found = await call.rows(conn, "list_waits", **calls.about(execution_id))
    return [
        msgspec.convert({**row, "execution_id": execution_id, "reason_code": row["code"]}, SuspendedExecution)
        for row in found
    ]


async def list_waitpoints(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    state: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Waitpoint]:
    """List the waitpoints of an execution, oldest first; with `state`, only those in that state.

    Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`, `InvalidBody`.
    """
    if state is not None and state not in STATES:
        raise InvalidBody(
            f"state {shown(state)} is invalid; use {', '.join(STATES[:-1])} or {STATES[-1]}", field="state"
        )
    position: dict[str, object] = {}
    if cursor:
        moment, last = cursors.parse_waitpoint_cursor(cursor)
        position = {"after_created": moment, "after_id": last}
    found = await call.rows(
        conn,
        "list_waitpoints",
        **calls.about(execution_id),
        state=state,
        take=call.take(limit),
        **position,
    )
    items = [msgspec.convert({**row, "state": row["state_name"]}, Waitpoint) for row in found]
    return call.page(items, limit, lambda last: cursors.waitpoint_cursor(last.created_at, last.waitpoint_id))


def _approval(row: Row) -> Approval:
    return msgspec.convert(
        {
            **row,
            "execution_id": ExecutionId(row["partition"], row["id"]),
            "namespace": row["its_namespace"],
            "lane": row["its_lane"],
            "tags": msgspec.json.decode(row["its_tags"] or b"{}"),
        },
        Approval,
    )


def _suspended(row: Row) -> SuspendedExecution:
    execution_id = ExecutionId(row["partition"], row["id"])
    return msgspec.convert({**row, "execution_id": execution_id, "reason_code": row["code"]}, SuspendedExecution)
