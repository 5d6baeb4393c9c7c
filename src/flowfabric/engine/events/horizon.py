"""The horizon: how far the log can be read without ever stepping over a line that commits late."""

from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def advance_horizon(conn: Connection) -> int:
    """Move the horizon as far as it can go now, and return the id it stands at.

    A short transaction of its own: on a connection with a transaction open it would make others wait for that.
    """
    return int(await call.value(conn, "advance_horizon"))
