"""Trimming: admissions that have left their window, and slots that nobody holds."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def trim_windows(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Remove what quotas no longer count: entries outside their window, slots of what no longer runs."""
    return await calls.sweep(conn, "trim_windows", limit, passing)
