"""Due times and deadlines: what happens to an execution when its time comes."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def promote_due(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Make due work claimable; a claim does so too on its way."""
    return await calls.sweep(conn, "promote_due", limit, passing)


async def expire_executions(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """End the executions whose deadline has passed, whatever they are doing."""
    return await calls.sweep(conn, "expire_executions", limit, passing)
