"""Overview: one snapshot of waiting, running and stuck executions, at a cost that does not grow with the backlog."""

from flowfabric.model import Overview
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def overview(conn: Connection, *, limit: int = 20) -> Overview:
    """Take a snapshot of waiting, running and stuck executions, with at most `limit` lanes and workers.

    Lanes with work and lost workers come first. `limit` is clamped to 1 to 100. Changes nothing and takes no
    locks. Raises `InvalidLimit` if it is not a whole number.
    """
    return call.read(Overview, await call.value(conn, "overview", take=max(min(call.take(limit), 100), 1)))
