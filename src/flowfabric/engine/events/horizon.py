"""The horizon: how far the log can be read without skipping an event that commits late."""

from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def advance_horizon(conn: Connection) -> int:
    """Move the horizon as far as possible, and return its event id.

    Call it outside a transaction: inside one, other readers would wait until that transaction ends.
    """
    return int(await call.value(conn, "advance_horizon"))


async def watch_log(conn: Connection) -> tuple[int, int]:
    """Move the horizon as `advance_horizon` does, and return its event id and the highest id taken so far.

    If they are equal, every event can be read.
    """
    found = await call.row(conn, "watch_log")
    return int(found["horizon_id"]), int(found["last_id"])
