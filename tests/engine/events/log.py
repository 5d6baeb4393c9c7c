"""Helpers for the tests of the log: write events, and inspect writers and the horizon."""

from collections.abc import Sequence

import asyncpg

from flowfabric.model import Event
from flowfabric.postgres.driver import Connection

RANGE = 1_000_000


async def append(conn: Connection, kind: str = "lane_paused", subject: str = "reports") -> int:
    """Append an event and return its id."""
    await conn.fetch("select flowfabric._append($1, $2)", kind, subject)
    [row] = await conn.fetch("select currval('flowfabric.event_ids') as id")
    return int(row["id"])


async def write(conn: Connection, subject: str = "reports") -> None:
    """Append an event whose id is not known before the commit."""
    await conn.fetch("select flowfabric._append('lane_paused', $1)", subject)


async def write_directly(conn: Connection) -> None:
    """Make this session one of our own, in which events get their ids as they are written."""
    await conn.execute("set flowfabric.direct = on")


async def append_many(conn: Connection, count: int) -> None:
    await conn.fetch("select flowfabric._append('lane_paused', 'reports') from generate_series(1, $1)", count)


async def writers(conn: asyncpg.Connection) -> list[str]:
    found: list[str] = await conn.fetchval("select flowfabric._event_writers()")
    return found


async def begin(conn: asyncpg.Connection) -> asyncpg.transaction.Transaction:
    """A transaction that the test ends itself."""
    transaction = conn.transaction()
    await transaction.start()
    return transaction


async def jump(conn: Connection, event_id: int) -> None:
    """Make the next event id follow this one."""
    await conn.execute(f"select setval('flowfabric.event_ids', {event_id})")


async def horizon(conn: asyncpg.Connection) -> int:
    """The stored horizon, without advancing it."""
    stored: int = await conn.fetchval("select id from flowfabric.horizon")
    return stored


def ids_of(events: Sequence[Event]) -> list[int]:
    return [event.event_id for event in events]
