"""Subscriptions: every event once and in order, over one connection that may be lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from flowfabric.app.subscriptions import EventLog, Subscription
from flowfabric.config import Config
from flowfabric.cursors import encode_event_cursor
from flowfabric.engine import events, executions, holds
from flowfabric.errors import (
    CursorExpired,
    InvalidBody,
    InvalidCursor,
    InvalidText,
    SchemaBehind,
    ShuttingDown,
    StreamDisconnected,
)
from flowfabric.model import EventFilter, Outcome
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier
from tests.conftest import SOAK, Connect, Server
from tests.engine.events.log import RANGE, append, append_many, begin, jump, write_directly
from tests.given import Given, submission

HERE = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
MANY = 499 if SOAK else 200
READS = f"{HERE} and (query like '%read_events(%' or query like '%watch_log(%')"


@asynccontextmanager
async def event_log(database: Database) -> AsyncIterator[EventLog]:
    async with Notifier(database) as hints, EventLog(database, hints) as opened:
        yield opened


@pytest.fixture
async def log(database: Database) -> AsyncIterator[EventLog]:
    async with event_log(database) as opened:
        yield opened


async def take(subscription: Subscription, count: int) -> list[int]:
    """The ids of the next events."""
    async with asyncio.timeout(30):
        return [(await anext(subscription)).event_id for _ in range(count)]


async def waiting(log: EventLog, subscription: Subscription) -> asyncio.Task[list[int]]:
    """A consumer that has drained the log and waits for the next event."""
    others = log.waiting_count
    task = asyncio.create_task(take(subscription, 1))
    while log.waiting_count == others:  # noqa: ASYNC110 - until the task has run
        await asyncio.sleep(0)
    return task


async def cut(conn: asyncpg.Connection) -> None:
    """Close the connection that reads the log."""
    [reading] = await conn.fetch(READS)
    await conn.execute("select pg_terminate_backend($1, 10000)", reading["pid"])


async def test_events_arrive_in_order_each_with_its_cursor(log: EventLog, conn: asyncpg.Connection) -> None:
    start = await events.read_events(conn)
    await append_many(conn, 600)
    subscription = await log.subscribe(start.cursor)
    seen = await take(subscription, 400)

    assert subscription.cursor == encode_event_cursor(seen[-1])
    resumed = await log.subscribe(subscription.cursor)
    assert await take(resumed, 200) == list(range(seen[-1] + 1, seen[-1] + 201))


async def test_a_subscription_starts_where_the_log_ends_at_the_call(log: EventLog, conn: asyncpg.Connection) -> None:
    await append(conn)
    subscription = await log.subscribe()
    later = [await append(conn), await append(conn)]

    assert await take(subscription, 2) == later


async def test_a_waiting_consumer_gets_new_events(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe()
    for _ in range(3):
        task = await waiting(log, subscription)
        assert [await append(conn)] == await task


async def test_the_cursor_advances_past_filtered_events(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe(filter=EventFilter(kinds=["lane_resumed"]))
    await append_many(conn, 20)
    last = await append(conn)
    await events.advance_horizon(conn)
    task = await waiting(log, subscription)
    assert subscription.cursor == encode_event_cursor(last)
    wanted = await append(conn, "lane_resumed")

    assert await task == [wanted]


async def test_an_event_waits_for_a_slower_writer_with_a_smaller_id_and_a_result_does_not(
    log: EventLog, connect: Connect, given: Given
) -> None:
    slow, reader = await connect(), await connect()
    await write_directly(slow)
    subscription = await log.subscribe()
    held = await begin(slow)
    first = await append(slow)
    ended = await given.cancelled()
    task = await waiting(log, subscription)

    result = await executions.get_result(reader, ended)
    assert result.outcome is Outcome.CANCELLED
    assert not task.done()
    await held.commit()
    assert [*await task, *await take(subscription, 3)] == list(range(first, first + 4))


async def test_a_subscriber_of_one_execution_waits_for_no_other_writer(
    log: EventLog, connect: Connect, given: Given
) -> None:
    slow = await connect()
    await write_directly(slow)
    execution_id = await given.submitted()
    subscription = await log.subscribe(filter=events.timeline(execution_id))
    everything = await log.subscribe()
    held = await begin(slow)
    first = await append(slow)
    task, other = await waiting(log, subscription), await waiting(log, everything)
    await holds.hold(given.conn, execution_id, by="ops")

    assert await task == [first + 1]
    task = await waiting(log, subscription)
    await holds.unhold(given.conn, execution_id, by="ops")
    assert await task == [first + 2]
    assert not other.done()
    await held.rollback()
    assert await other == [first + 1]


async def test_an_open_transaction_of_a_caller_delays_no_subscriber(
    log: EventLog, connect: Connect, given: Given
) -> None:
    caller = await connect()
    await given.submitted()
    subscription = await log.subscribe()
    held = await begin(caller)
    await executions.submit_many(caller, [submission()] * (1_000 if SOAK else 100))
    task = await waiting(log, subscription)
    written = await append(given.conn)

    assert await task == [written]
    await held.commit()
    assert await take(subscription, 100) == list(range(written + 1, written + 101))


async def test_a_lost_connection_is_reopened_without_a_gap(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe()
    seen = []
    for _ in range(3):
        task = await waiting(log, subscription)
        await cut(conn)
        seen += [await append(conn), await append(conn)]
        assert [*await task, *await take(subscription, 1)] == seen[-2:]


async def test_a_connection_lost_between_two_pages_leaves_no_gap(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe()
    await append_many(conn, 1_000)
    [first] = await take(subscription, 1)
    await cut(conn)

    assert await take(subscription, 999) == list(range(first + 1, first + 1_000))


async def test_past_its_timeout_it_ends_with_its_cursor_and_can_be_resumed_from_there(
    server: Server, database_url: str, conn: asyncpg.Connection
) -> None:
    name = urlsplit(database_url).path[1:]
    async with (
        Database(Config(subscription_timeout=timedelta(seconds=0.2)), database_url) as database,
        event_log(database) as log,
    ):
        one, other = await log.subscribe(), await log.subscribe(events.OLDEST)
        first = await append(conn)
        assert await take(one, 1) == [first]
        tasks = [await waiting(log, one), asyncio.create_task(take(other, first + 1))]
        await server.execute(f"alter database {name} with allow_connections false")
        await cut(conn)
        missed = [await append(conn) for _ in range(3)]
        ended = [await _ending(task) for task in tasks]
        assert ended[0] == encode_event_cursor(first)
        await server.execute(f"alter database {name} with allow_connections true")

        again = await log.subscribe(ended[0])
        assert await take(again, 3) == missed


async def _ending(task: asyncio.Task[list[int]]) -> str:
    with pytest.raises(StreamDisconnected) as ended:
        await task
    return str(ended.value.fields["cursor"])


async def test_subscribing_during_an_outage_fails_after_the_timeout(server: Server, database_url: str) -> None:
    name = urlsplit(database_url).path[1:]
    async with (
        Database(Config(subscription_timeout=timedelta(seconds=0.1)), database_url) as database,
        event_log(database) as log,
    ):
        await server.execute(f"alter database {name} with allow_connections false")
        with pytest.raises(StreamDisconnected) as ended:
            await log.subscribe(encode_event_cursor(7))
        assert ended.value.fields == {"cursor": encode_event_cursor(7)}
        assert "unavailable for 0.1 s" in ended.value.message
        await server.execute(f"alter database {name} with allow_connections true")

        await log.subscribe()


async def test_an_error_of_the_log_reaches_waiting_consumers(log: EventLog, conn: asyncpg.Connection) -> None:
    tasks = [await waiting(log, await log.subscribe()) for _ in range(2)]
    await conn.execute("drop function flowfabric.advance_horizon")

    for task in tasks:
        with pytest.raises(SchemaBehind):
            await task


async def test_closing_the_log_ends_every_subscription(database: Database, conn: asyncpg.Connection) -> None:
    async with event_log(database) as log:
        idle, busy = await log.subscribe(), await log.subscribe(events.OLDEST)
        task = await waiting(log, idle)
    with pytest.raises(ShuttingDown):
        await task
    with pytest.raises(ShuttingDown):
        await take(busy, 1)
    with pytest.raises(ShuttingDown):
        await log.subscribe()
    assert await conn.fetch(READS) == []


async def test_a_cancelled_consumer_leaves_no_task_behind(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe()
    task = await waiting(log, subscription)
    [watching] = [task for task in asyncio.all_tasks() if task.get_name() == "event log: watch"]
    task.cancel()
    await asyncio.wait([task, watching], timeout=10)
    assert watching.done()

    await append_many(conn, 3)
    assert len(await take(subscription, 3)) == 3


async def test_a_consumer_cancelled_while_it_reads_leaves_no_gap(log: EventLog, conn: asyncpg.Connection) -> None:
    subscription = await log.subscribe()
    await append_many(conn, 500)
    first = None
    for steps in range(1, 25):
        task = asyncio.create_task(take(subscription, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        [outcome] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, list):
            assert first is None or outcome == [first + 1]
            first = outcome[0]

    [following] = await take(subscription, 1)
    assert subscription.cursor == encode_event_cursor(following)
    assert first is None or following == first + 1


async def test_hundreds_of_subscribers_share_one_connection_and_a_slow_one_delays_no_other(
    log: EventLog, conn: asyncpg.Connection
) -> None:
    slow = await log.subscribe()
    subscriptions = [await log.subscribe() for _ in range(MANY)]
    first = await append(conn)
    assert await take(slow, 1) == [first]
    await append_many(conn, 299)
    expected = list(range(first, first + 300))

    assert await asyncio.gather(*(take(subscription, 300) for subscription in subscriptions)) == [expected] * MANY
    assert len(await conn.fetch(READS)) == 1
    assert len(await conn.fetch(f"{HERE} and query ilike '%listen%'")) <= 1
    assert await take(slow, 299) == expected[1:]


@pytest.mark.parametrize("cursor", ["1", "AQAAAAAAAAAB", "x" * 12])
async def test_an_invalid_cursor_or_filter_is_refused_immediately(log: EventLog, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await log.subscribe(cursor)
    with pytest.raises(InvalidText):
        await log.subscribe(filter=EventFilter(lane="\0"))
    with pytest.raises(InvalidBody, match=r"'lane_resume'.*lane_resumed"):
        await log.subscribe(filter=EventFilter(kinds=["lane_resume"]))


async def test_a_subscription_behind_the_retention_ends(log: EventLog, conn: asyncpg.Connection, given: Given) -> None:
    await append(conn)
    subscription = await log.subscribe()
    await append(conn)
    await jump(conn, RANGE)
    await append(conn)
    await given.time_passes(days=8)
    assert (await events.trim_events(conn)).moved == 1

    with pytest.raises(CursorExpired):
        await take(subscription, 1)
    with pytest.raises(CursorExpired):
        await log.subscribe(subscription.cursor)
