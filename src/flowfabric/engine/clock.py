"""The clock: the database's time, used for every lease, delay, deadline and window."""

from datetime import datetime

from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def clock(conn: Connection) -> datetime:
    """Return the database's current time."""
    at: datetime = await call.value(conn, "clock")
    return at
