"""Due times and deadlines: make delayed executions claimable, and end executions past their deadline."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def promote_due(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Make due executions claimable, also in lanes that no worker claims from."""
    return await calls.sweep(conn, "promote_due", limit, passing)


async def expire_executions(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Expire executions whose deadline has passed, in any phase."""
    return await calls.sweep(conn, "expire_executions", limit, passing)
