"""Listing attempts: the ended ones and the current one."""

import msgspec

from flowfabric import calls
from flowfabric.cursors import invalid_cursor
from flowfabric.ids import ExecutionId
from flowfabric.model import Attempt, Failure, Page
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row


async def list_attempts(
    conn: Connection, execution_id: ExecutionId, *, cursor: str | None = None, limit: int = 50
) -> Page[Attempt]:
    """List the attempts of an execution, by number. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`."""
    found = await call.rows(
        conn, "list_attempts", **calls.about(execution_id), after=_number(cursor), take=call.take(limit)
    )
    return call.page([_attempt(row) for row in found], limit, lambda attempt: str(attempt.number))


def _number(cursor: str | None) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise invalid_cursor(cursor)
    return int(cursor)


def _attempt(row: Row) -> Attempt:
    failure = row["failure"] and call.read(Failure, row["failure"])
    return msgspec.convert({**row, "failure": failure}, Attempt)
