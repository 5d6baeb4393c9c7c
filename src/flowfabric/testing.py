"""What tests hold: a clock they can move, so that no test ever sleeps."""

from datetime import datetime, timedelta
from importlib import resources

from flowfabric import db
from flowfabric.db import Connection


async def install_clock(conn: Connection) -> None:
    """Make the clock of this database movable. For tests: a database in use must never have it."""
    await db.script(conn, resources.files("flowfabric").joinpath("testing.sql").read_text())


async def move_clock(conn: Connection, span: timedelta) -> datetime:
    """Let time pass (or go back, by a negative span) for everything this database decides. Returns the time then."""
    moved: datetime = await db.value(conn, "move_clock", span=span)
    return moved


async def now(conn: Connection) -> datetime:
    """What time it is for this database."""
    at: datetime = await db.value(conn, "clock")
    return at
