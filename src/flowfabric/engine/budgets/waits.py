"""Waiting for a budget: what becomes of an execution that runs into a hard limit, and how it goes on by itself."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def resume_budget_waits(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Let executions go on that were suspended by a budget and fit again."""
    return await calls.sweep(conn, "resume_budget_waits", limit, passing)
