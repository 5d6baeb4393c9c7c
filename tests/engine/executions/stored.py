"""What a submission leaves behind, and whether one waits for another."""

import asyncio
from typing import TypeVar

import asyncpg

from tests.given import Given

T = TypeVar("T")

TABLES = ["executions", "tickets", "idempotency_keys", "tags", "lanes", "routes", "events", "attempts"]


async def stored(given: Given) -> dict[str, int]:
    """How many rows each table has."""
    return {table: await given.count(table) for table in TABLES}


async def blocked(given: Given, conn: asyncpg.Connection, call: asyncio.Task[T]) -> asyncio.Task[T]:
    """The call once it waits for a lock; it must not end before."""
    waiting = "select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'"
    while not await given.rows(waiting, conn.get_server_pid()):
        assert not call.done(), f"did not wait: {call.result()}"
    return call
