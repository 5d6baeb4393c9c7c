"""The partitions of the log: ranges of a million ids each, created in advance and dropped when they are old."""

from datetime import timedelta

from flowfabric import calls
from flowfabric.engine.events.horizon import advance_horizon
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection

WEEK = timedelta(days=7)


async def extend_events(conn: Connection, *, limit: int = 100, passing: int = 0) -> Swept:
    """Create the next ranges (table partitions) of the event log, so that no writer waits for one."""
    return await calls.sweep(conn, "extend_events", limit, passing)


async def trim_events(conn: Connection, *, limit: int = 100, passing: int = 0, retention: timedelta = WEEK) -> Swept:
    """Drop the ranges of the event log that are older than the retention; if the log is locked, retry in the next pass.

    Advances the horizon first, unless a transaction is open: without readers, nothing else advances it.
    """
    if not conn.is_in_transaction():
        await advance_horizon(conn)
    span = retention // timedelta(milliseconds=1)
    return await calls.sweep(conn, "trim_events", limit, passing, retention_ms=span)
