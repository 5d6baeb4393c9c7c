"""Budget waits: act on an execution that exceeds a hard limit, and resume it automatically when it fits again."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def resume_budget_waits(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Resume executions that a budget suspended and that fit again."""
    return await calls.sweep(conn, "resume_budget_waits", limit, passing)
