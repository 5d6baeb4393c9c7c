"""Retention: what is removed when it has been over for long enough."""

from datetime import timedelta

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection

WEEK = timedelta(days=7)


async def remove_ended(conn: Connection, *, limit: int = 500, passing: int = 0, retention: timedelta = WEEK) -> Swept:
    """Remove executions that ended long ago, with all that belongs to them; a retention of their own goes first."""
    span = retention // timedelta(milliseconds=1)
    return await calls.sweep(conn, "remove_ended", limit, passing, retention_ms=span)


async def remove_idempotency_keys(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Forget idempotency keys whose window is over and whose execution is not unfinished."""
    return await calls.sweep(conn, "remove_idempotency_keys", limit, passing)
