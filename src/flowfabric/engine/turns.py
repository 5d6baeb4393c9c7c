"""Turns: a sweep that pauses between its passes runs in one process at a time."""

from datetime import timedelta
from uuid import UUID

from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def take_turn(conn: Connection, sweep: str, holder: UUID, *, turn: timedelta) -> bool:
    """Take or extend the right to run a sweep, for this long; return False if another process has it."""
    turn_ms = turn // timedelta(milliseconds=1)
    taken: bool = await call.value(conn, "take_turn", sweep=sweep, holder=holder, turn_ms=turn_ms)
    return taken


async def end_turn(conn: Connection, sweep: str, holder: UUID) -> None:
    """End the turn of this holder, because the sweep found no more rows."""
    await call.value(conn, "end_turn", sweep=sweep, holder=holder)
