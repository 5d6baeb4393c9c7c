"""Retries: whether and when a failed attempt is retried."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def time_out_attempts(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Fail attempts that exceeded their timeout: retry them if the policy allows it, else expire the execution."""
    return await calls.sweep(conn, "time_out_attempts", limit, passing)
