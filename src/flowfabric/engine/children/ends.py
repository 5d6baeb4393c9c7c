"""Ends of children: how parent and child learn of each other's end."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def deliver_child_ends(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Notify parents that children have ended, and cancel children whose parent ended but did not complete."""
    return await calls.sweep(conn, "deliver_child_ends", limit, passing)
