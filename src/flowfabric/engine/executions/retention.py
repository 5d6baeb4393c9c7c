"""Retention: remove ended executions and expired idempotency keys."""

from datetime import timedelta

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection

WEEK = timedelta(days=7)


async def remove_ended(conn: Connection, *, limit: int = 500, passing: int = 0, retention: timedelta = WEEK) -> Swept:
    """Remove ended executions after their retention; the policy's retention takes precedence over `retention`."""
    span = retention // timedelta(milliseconds=1)
    return await calls.sweep(conn, "remove_ended", limit, passing, retention_ms=span)


async def remove_idempotency_keys(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Delete idempotency keys (not signing keys) whose window has expired and whose execution does not keep them."""
    return await calls.sweep(conn, "remove_idempotency_keys", limit, passing)
