"""Timeouts: what happens when what was waited for has not come."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def time_out_waits(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Act on suspensions whose time is over, as each asked for."""
    return await calls.sweep(conn, "time_out_waits", limit, passing)
