"""The only clock: leases, delays, deadlines and windows are all judged by it."""

from datetime import datetime

from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def clock(conn: Connection) -> datetime:
    """What time it is for this database."""
    at: datetime = await call.value(conn, "clock")
    return at
