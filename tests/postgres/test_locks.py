"""Locks of other transactions: how long a call of our own waits for them, and what it occupies meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from flowfabric.config import Config
from flowfabric.engine import lanes
from flowfabric.errors import RowLocked
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given


async def session(conn: Connection) -> int:
    """The process id of the session that answers."""
    [row] = await conn.fetch("select pg_backend_pid() as pid")
    return int(row["pid"])


async def paused(conn: Connection) -> str:
    return (await lanes.pause_lane(conn, "reports", by="ops")).value


@pytest.mark.parametrize("repeat", [True, False])
async def test_a_call_waits_for_a_lock_as_long_as_a_call_may_take(
    database: Database, given: Given, connect: Connect, repeat: bool
) -> None:
    await lanes.configure_lane(given.conn, "reports")
    other = await connect()
    async with other.transaction():
        await lanes.configure_lane(other, "reports", keep_renewals=True)
        pausing = asyncio.create_task(database.run(paused, repeat=repeat))
        await given.until_blocked()

    assert await pausing == "paused"


async def test_a_call_that_may_be_repeated_occupies_no_connection_while_it_waits_for_a_lock(
    database_url: str, given: Given, connect: Connect
) -> None:
    await lanes.configure_lane(given.conn, "reports")
    other = await connect()
    async with Database(Config(pool_size=1), database_url) as database:
        async with other.transaction():
            await lanes.configure_lane(other, "reports", keep_renewals=True)
            pausing = asyncio.create_task(database.run(paused, repeat=True))
            await given.until_blocked()
            async with asyncio.timeout(5):
                await database.run(lanes.list_lanes)
            assert not pausing.done()
        await pausing


@pytest.mark.parametrize(("repeat", "wait"), [(True, True), (False, True), (True, False)])
async def test_a_lock_that_is_held_for_longer_is_an_error_and_the_connection_stays(
    database_url: str, given: Given, connect: Connect, repeat: bool, wait: bool
) -> None:
    await lanes.configure_lane(given.conn, "reports")
    other = await connect()
    async with Database(Config(pool_size=1, call_timeout=timedelta(seconds=0.5)), database_url) as database:
        pid = await database.run(session)
        async with other.transaction():
            await lanes.configure_lane(other, "reports", keep_renewals=True)
            with pytest.raises(RowLocked):
                await database.run(paused, repeat=repeat, wait=wait)
        assert await database.run(session) == pid


async def test_a_transaction_that_a_caller_opens_waits_for_locks_as_the_server_is_set_up(database: Database) -> None:
    async with database.transaction() as conn:
        assert (await conn.fetch("show lock_timeout"))[0]["lock_timeout"] == "0"
    async with database.connection() as conn:
        assert (await conn.fetch("show lock_timeout"))[0]["lock_timeout"] == "100ms"
