"""Overview: one frame of what waits, runs and is stuck, at a cost that does not grow with the backlog."""

from flowfabric.model import Overview
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def overview(conn: Connection, *, limit: int = 20) -> Overview:
    """What waits, runs and is stuck now, with at most `limit` lanes and workers, those that matter first.

    `limit` is held between 1 and 100. Nothing is changed and nothing is waited for.
    """
    return call.read(Overview, await call.value(conn, "overview", take=max(min(limit, 100), 1)))
