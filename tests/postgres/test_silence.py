"""Connections that go silent, without an error, while new ones work: no call waits longer than its time limit."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from benchmarks.proxy import Proxy, proxied
from flowfabric import App
from flowfabric.config import Config
from flowfabric.engine import lanes
from flowfabric.errors import DatabaseUnavailable
from flowfabric.model import EventFilter, LaneChange
from flowfabric.postgres import call
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.postgres.notify import Notification, Notifier
from tests.conftest import Connect
from tests.given import Given, until

LIMIT = timedelta(seconds=0.3)
SESSIONS = "select from pg_stat_activity where datname = current_database()"
SOON = 5.0  # seconds: far above every limit here, far below the limits that hold without our settings


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as opened:
        yield opened


@pytest.fixture
async def through(proxy: Proxy) -> AsyncIterator[Database]:
    """The database of this test, through the proxy, with a short limit for calls."""
    async with Database(Config(call_timeout=LIMIT), proxy.url) as opened:
        yield opened


async def clock(conn: Connection) -> object:
    return await call.value(conn, "clock")


async def test_a_call_that_is_not_answered_fails_and_its_connection_is_dropped(proxy: Proxy, through: Database) -> None:
    await through.run(clock)
    proxy.silence()

    with pytest.raises(DatabaseUnavailable, match=r"did not answer within 0\.3 s"):
        async with asyncio.timeout(SOON):
            await through.run(clock)
    assert await through.run(clock) is not None


async def test_a_call_that_may_be_repeated_is_repeated_on_a_new_connection(proxy: Proxy, through: Database) -> None:
    async with through.connection(), through.connection(), through.connection():
        pass  # now three are idle
    proxy.silence()

    began = time.monotonic()
    assert await through.run(clock, repeat=True) is not None
    assert time.monotonic() - began < 2 * LIMIT.total_seconds() + 0.2, "one limit for all connections, not one for each"


async def test_a_repeated_call_is_given_up_when_new_connections_are_silent_too(proxy: Proxy) -> None:
    config = Config(call_timeout=LIMIT, timeout=LIMIT)
    async with Database(config, proxy.url) as database:
        proxy.silence()
        proxy.dead = True
        with pytest.raises(DatabaseUnavailable):
            async with asyncio.timeout(SOON):
                await database.run(clock, repeat=True)


async def test_a_lost_answer_leaves_no_locks_behind_for_the_call_that_is_repeated(
    proxy: Proxy, through: Database, given: Given
) -> None:
    tries = 0

    async def pause(conn: Connection) -> LaneChange:
        nonlocal tries
        tries += 1
        async with conn.transaction():
            await lanes.configure_lane(conn, "reports")
            if tries == 1:
                proxy.silence()  # the session now waits in a transaction, and has locked the lane
            return await lanes.pause_lane(conn, "reports", by="ops")

    assert await through.run(pause, repeat=True) == LaneChange.PAUSED
    assert tries == 2
    assert await given.rows(f"{SESSIONS} and state like 'idle in tr%'") == []


async def test_the_end_of_a_transaction_has_the_same_limit(proxy: Proxy, through: Database, given: Given) -> None:
    async def work() -> None:
        async with through.transaction() as conn:
            await lanes.configure_lane(conn, "reports")
            proxy.silence()

    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        async with asyncio.timeout(SOON):
            await work()
    await through.run(clock)
    assert await given.count("lanes") == 0


async def test_a_call_that_takes_too_long_ends_on_the_server_too(database_url: str, given: Given) -> None:
    async with Database(Config(call_timeout=LIMIT), database_url) as database:
        with pytest.raises(DatabaseUnavailable, match="did not answer"):
            await database.run(lambda conn: call.builtin(conn, "pg_sleep", seconds=60))
        await database.run(clock)

        assert await given.rows(f"{SESSIONS} and wait_event = 'PgSleep'") == []


async def test_a_cancelled_call_on_a_silent_connection_does_not_hinder_the_next_one(
    proxy: Proxy, through: Database
) -> None:
    proxy.silence()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await through.run(clock)

    async with asyncio.timeout(LIMIT.total_seconds() / 2):
        assert await through.run(clock) is not None


async def test_a_callers_own_connection_has_only_its_owners_limits(connect: Connect, given: Given) -> None:
    conn = await connect()
    await call.builtin(given.conn, "pg_advisory_lock", key=7)
    waiting = asyncio.create_task(call.builtin(conn, "pg_advisory_lock", key=7))
    await given.blocked(conn, waiting)

    assert type(conn) is asyncpg.Connection
    await call.builtin(given.conn, "pg_advisory_unlock", key=7)
    await waiting
    assert not conn.is_closed()


async def test_sweeps_may_take_longer_than_other_calls(database_url: str) -> None:
    async with (
        Database(Config(), database_url) as database,
        database.connection() as conn,
        database.connection(aside=True) as sweeping,
    ):
        assert (conn.limit, sweeping.limit) == (10.0, 60.0)  # type: ignore[attr-defined]


async def test_the_kernel_and_the_server_notice_a_machine_that_is_gone(proxy: Proxy, through: Database) -> None:
    async with through.connection() as conn:
        own = conn._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300
        [row] = await conn.fetch("select current_setting('client_connection_check_interval') as every")
        assert row["every"] == "1s"


async def test_notifications_arrive_again_after_the_listening_connection_went_silent(
    proxy: Proxy, through: Database, database: Database
) -> None:
    seen: list[Notification] = []
    async with Notifier(through) as listening, Notifier(database) as sending:
        listening.listen(seen.append)
        await until(lambda: seen == [Notification()])
        proxy.silence()
        await until(lambda: seen == [Notification()] * 2)  # it has connected again

        sending.send(lanes=["reports"])
        await until(lambda: seen[2:] == [Notification(lanes=("reports",))])


async def test_a_notifier_whose_connection_goes_silent_sends_on_a_new_one(
    proxy: Proxy, through: Database, database: Database
) -> None:
    seen: list[Notification] = []
    async with Notifier(database) as listening, Notifier(through) as sending:
        listening.listen(seen.append)
        await until(lambda: seen == [Notification()])
        sending.send(lanes=["first"])
        await until(lambda: Notification(lanes=("first",)) in seen)
        proxy.silence()
        sending.send(lanes=["second"])
        await until(lambda: Notification(lanes=("second",)) in seen)


async def test_a_subscription_continues_after_its_connection_went_silent(proxy: Proxy, given: Given) -> None:
    async with App(url=proxy.url, call_timeout=LIMIT) as app:
        subscription = await app.log.subscribe(filter=EventFilter(kinds=["execution_submitted"]))
        proxy.silence()
        execution_id = await given.submitted()

        async with asyncio.timeout(SOON):
            assert (await anext(subscription)).execution_id == execution_id


async def test_closing_takes_no_longer_than_its_limit_whatever_is_silent(proxy: Proxy, given: Given) -> None:
    app = App(url=proxy.url, call_timeout="1h", timeout="500ms")
    async with app:
        reading = asyncio.create_task(anext(await app.log.subscribe()))
        app.notifier.send(lanes=["reports"])
        await app.submit("report")
        proxy.silence()
        proxy.dead = True
        submitting = asyncio.create_task(app.submit("report"))
        await asyncio.sleep(0)
        began = time.monotonic()
    ended = await asyncio.gather(reading, submitting, return_exceptions=True)

    assert time.monotonic() - began < SOON
    assert [getattr(error, "status", None) for error in ended] == [503, 503]
