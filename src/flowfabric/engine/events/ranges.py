"""The ranges of the log: a million ids each, made ahead of need and dropped whole when they are old."""

from datetime import timedelta

from flowfabric import calls
from flowfabric.engine.events.horizon import advance_horizon
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection

WEEK = timedelta(days=7)


async def extend_events(conn: Connection, *, limit: int = 100, passing: int = 0) -> Swept:
    """Make the ranges of the log that will be needed next, so that no writer ever waits for one."""
    return await calls.sweep(conn, "extend_events", limit, passing)


async def trim_events(conn: Connection, *, limit: int = 100, passing: int = 0, retention: timedelta = WEEK) -> Swept:
    """Drop the ranges of the log that are older than the retention; when the log is in use now, they wait.

    Moves the horizon on first, unless a transaction is open: where nobody reads, nobody else does.
    """
    if not conn.is_in_transaction():
        await advance_horizon(conn)
    span = retention // timedelta(milliseconds=1)
    return await calls.sweep(conn, "trim_events", limit, passing, retention_ms=span)
