"""Retrying: whether a failed attempt is tried again, and when."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def time_out_attempts(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Fail the attempts that have used up their time under a lease: retried if the policy allows, else expired."""
    return await calls.sweep(conn, "time_out_attempts", limit, passing)
