"""The only clock: leases, delays, deadlines and windows are all judged by it."""

from datetime import datetime

from flowfabric import db
from flowfabric.db import Connection


async def clock(conn: Connection) -> datetime:
    """What time it is for this database."""
    at: datetime = await db.value(conn, "clock")
    return at
