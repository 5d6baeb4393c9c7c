"""Timeouts: end, resume or escalate executions whose wait did not complete in time."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def time_out_waits(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Time out suspensions, each by its own timeout behavior."""
    return await calls.sweep(conn, "time_out_waits", limit, passing)
