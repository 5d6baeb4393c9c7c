"""Helpers: the rows that a submission writes, and calls that wait for a lock."""

import asyncio
from typing import TypeVar

import asyncpg

from tests.given import Given

T = TypeVar("T")

TABLES = ["executions", "tickets", "idempotency_keys", "tags", "lanes", "routes", "events", "attempts"]


async def stored(given: Given) -> dict[str, int]:
    """Count the rows of each table."""
    return {table: await given.count(table) for table in TABLES}


async def blocked(given: Given, conn: asyncpg.Connection, call: asyncio.Task[T]) -> asyncio.Task[T]:
    """Return the call once it waits for a lock; fail if it ends before."""
    waiting = "select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'"
    while not await given.rows(waiting, conn.get_server_pid()):
        assert not call.done(), f"did not wait: {call.result()}"
    return call
