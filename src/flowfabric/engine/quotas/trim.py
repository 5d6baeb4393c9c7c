"""Trim quotas: delete admissions outside their window, and slots without a holder."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def trim_windows(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Delete rows that quotas no longer count: entries outside their window, slots of executions that ended."""
    return await calls.sweep(conn, "trim_windows", limit, passing)
