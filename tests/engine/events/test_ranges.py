"""The ranges (partitions) of the log: created in advance, dropped when old, without making writers wait."""

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from flowfabric.cursors import encode_event_cursor
from flowfabric.engine import events
from flowfabric.errors import CursorExpired
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.events.log import RANGE, append, begin, ids_of, jump, write
from tests.engine.executions.stored import blocked
from tests.given import Given

MOMENT = timedelta(0)
LOCKED = "select count(*) from pg_locks where pid = pg_backend_pid() and relation is not null"


async def ranges(given: Given) -> list[int]:
    found = await given.rows(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'flowfabric.events'::regclass "
        "and inhrelid::regclass::text ~ '[0-9]$'"
    )
    return sorted(int(row["name"].rpartition("_")[2]) for row in found)


async def oldest(given: Given) -> int:
    [row] = await given.rows("select oldest from flowfabric.horizon")
    return int(row["oldest"])


async def two_old_ranges(conn: Connection) -> list[int]:
    """Write events into ranges 0, 1 and 2, of which the first two are complete."""
    written = [await append(conn)]
    for end in (RANGE, 2 * RANGE):
        await jump(conn, end - 2)
        written += [await append(conn) for _ in range(3)]
    return written


async def test_a_new_database_has_the_ranges_it_needs_next(given: Given) -> None:
    assert await ranges(given) == list(range(17))


async def test_ranges_are_created_ahead_of_the_next_id(conn: Connection, given: Given) -> None:
    await jump(conn, 5 * RANGE - 1)
    swept = await events.extend_events(conn)

    assert swept.moved == 5
    assert await ranges(given) == list(range(22))
    assert (await events.extend_events(conn)).moved == 0


async def test_extending_honours_its_limit_and_offset(conn: Connection, given: Given) -> None:
    await jump(conn, 5 * RANGE)

    assert (await events.extend_events(conn, limit=2)).moved == 2
    assert (await events.extend_events(conn, limit=1, passing=1)).moved == 1
    assert await ranges(given) == [*range(19), 20]


async def test_concurrent_calls_create_each_range_once(connect: Connect, given: Given) -> None:
    await jump(given.conn, 10 * RANGE)
    made = await asyncio.gather(*[events.extend_events(await connect()) for _ in range(6)])

    assert sum(swept.moved for swept in made) == 10
    assert await ranges(given) == list(range(27))


async def test_no_writer_waits_while_ranges_are_created(connect_directly: Connect) -> None:
    writer, other = await connect_directly(), await connect_directly()
    async with writer.transaction(), other.transaction():
        await append(writer)
        await jump(writer, 10 * RANGE)
        assert (await events.extend_events(other)).moved == 10
        await writer.execute("set local lock_timeout = '2s'")

        assert await append(writer) == 10 * RANGE + 1


async def test_writing_and_reading_continue_across_ranges(conn: Connection) -> None:
    await jump(conn, 3 * RANGE - 4)
    await conn.fetch("select flowfabric._append('lane_paused', 'reports') from generate_series(1, 3)")
    start = await events.read_events(conn)
    written = [await append(conn) for _ in range(6)]

    assert ids_of((await events.read_events(conn, start.cursor)).events) == written
    first = await events.read_events(conn, start.cursor, limit=2)
    assert ids_of((await events.read_events(conn, first.cursor)).events) == written[2:]


async def test_ranges_older_than_the_retention_are_dropped(conn: Connection, given: Given) -> None:
    written = await two_old_ranges(conn)
    assert (await events.trim_events(conn)).moved == 0
    await given.time_passes(days=7, seconds=1)

    assert (await events.trim_events(conn)).moved == 2
    assert await ranges(given) == list(range(2, 17))
    assert await oldest(given) == 2 * RANGE
    assert ids_of((await events.read_events(conn, events.OLDEST)).events) == written[-2:]
    assert (await events.trim_events(conn)).moved == 0


async def test_trimmed_ranges_are_never_created_again(conn: Connection, given: Given) -> None:
    await append(conn)
    await jump(conn, RANGE - 2)
    assert await append(conn) == RANGE - 1

    assert (await events.trim_events(conn, retention=-timedelta(seconds=1))).moved == 1
    assert (await events.extend_events(conn)).moved == 1
    assert await ranges(given) == list(range(1, 18))


async def test_trimming_honours_its_limit(conn: Connection, given: Given) -> None:
    await two_old_ranges(conn)
    await given.time_passes(days=8)

    assert (await events.trim_events(conn, limit=1)).moved == 1
    assert await oldest(given) == RANGE


async def test_a_range_with_a_younger_event_anywhere_is_kept_whole(conn: Connection, given: Given) -> None:
    await given.time_passes(days=1)
    await append(conn)
    await given.time_passes(days=-1)  # the clock was wrong and has been corrected
    await two_old_ranges(conn)
    await given.time_passes(days=7, hours=1)

    assert (await events.trim_events(conn)).moved == 0
    assert await ranges(given) == list(range(17))


async def test_a_range_that_is_not_below_the_horizon_is_kept(connect_directly: Connect, given: Given) -> None:
    slow, writer = await connect_directly(), await connect_directly()
    held = await begin(slow)
    await append(slow)
    await two_old_ranges(writer)
    await given.time_passes(days=8)

    assert (await events.trim_events(writer)).moved == 0
    await held.rollback()
    assert (await events.trim_events(writer)).moved == 2


async def test_the_current_range_is_never_dropped(conn: Connection, given: Given) -> None:
    await append(conn)

    assert (await events.trim_events(conn, retention=MOMENT)).moved == 0
    assert await given.count("events") == 1


async def test_trimming_gives_up_while_the_log_is_locked(connect: Connect, given: Given) -> None:
    writer, sweep, other = await connect(), await connect(), await connect()
    await two_old_ranges(sweep)
    await given.time_passes(days=8)
    async with writer.transaction():
        await writer.fetch("select from flowfabric.events limit 1")
        trimming = asyncio.create_task(events.trim_events(sweep))
        start = time.monotonic()
        await append(other)
        waited = time.monotonic() - start
        assert (await trimming).moved == 0
    assert await ranges(given) == list(range(17))
    assert await oldest(given) == 0
    assert waited < 1.0  # 100 ms plus the load of the machine; without the limit it would wait forever

    assert (await events.trim_events(sweep)).moved == 2


async def test_trimming_keeps_the_lock_timeout_of_the_callers_transaction(conn: asyncpg.Connection) -> None:
    async with conn.transaction():
        await events.trim_events(conn)

        assert await conn.fetchval("show lock_timeout") == "0"


async def test_a_cursor_into_trimmed_events_is_refused_with_the_oldest_event_kept(
    conn: Connection, given: Given
) -> None:
    written = await two_old_ranges(conn)
    await given.time_passes(days=8)
    await events.trim_events(conn)

    with pytest.raises(CursorExpired) as refused:
        await events.read_events(conn, encode_event_cursor(written[0]))
    assert refused.value.fields == {"oldest": 2 * RANGE}
    with pytest.raises(CursorExpired):
        await events.read_events(conn, encode_event_cursor(2 * RANGE - 2), limit=0)
    page = await events.read_events(conn, encode_event_cursor(2 * RANGE - 1))
    assert ids_of(page.events) == written[-2:]


async def test_a_range_dropped_while_a_reader_waits_raises_cursor_expired(connect: Connect, given: Given) -> None:
    reader, sweep = await connect(), await connect()
    await two_old_ranges(sweep)
    await given.time_passes(days=8)
    await events.advance_horizon(sweep)
    async with sweep.transaction():
        assert (await events.trim_events(sweep)).moved == 2
        reading = asyncio.create_task(events.read_events(reader, encode_event_cursor(1)))
        await blocked(given, reader, reading)

    with pytest.raises(CursorExpired):
        await reading


async def test_a_range_dropped_after_an_old_snapshot_raises_cursor_expired(connect: Connect, given: Given) -> None:
    reader, sweep = await connect(), await connect()
    await two_old_ranges(sweep)
    await events.advance_horizon(sweep)
    await given.time_passes(days=8)
    async with reader.transaction(isolation="repeatable_read"):
        await reader.fetch("select 1")
        assert (await events.trim_events(sweep)).moved == 2

        with pytest.raises(CursorExpired):
            await events.read_events(reader, encode_event_cursor(1))


async def test_three_hundred_ranges_cost_a_reader_and_a_writer_no_locks(conn: asyncpg.Connection, given: Given) -> None:
    """The log runs with the default max_locks_per_transaction however many partitions it has."""
    await jump(conn, 150 * RANGE)
    await events.extend_events(conn)
    for start in range(17, 300, 17):
        await jump(conn, start * RANGE)
        await events.extend_events(conn)
    execution_id = await given.submitted()
    assert len(await ranges(given)) > 300

    for use in (
        append(conn),
        events.read_events(conn, encode_event_cursor(299 * RANGE - 1)),
        events.advance_horizon(conn),
    ):
        async with conn.transaction():
            await use
            assert await conn.fetchval(LOCKED) < 30
    async with conn.transaction():
        page = await events.read_events(conn, events.OLDEST, events.timeline(execution_id))
        assert (page.events, page.more) == ([], True)
        assert await conn.fetchval(LOCKED) < 100


async def test_the_timeline_of_an_execution_older_than_the_log_is_marked_truncated(
    conn: Connection, given: Given
) -> None:
    old = await given.submitted()
    await jump(conn, RANGE - 2)
    await append(conn)
    await given.time_passes(days=8)
    await append(conn)
    young = await given.submitted()
    await events.advance_horizon(conn)
    assert not (await events.read_events(conn, events.OLDEST, events.timeline(old))).truncated

    assert (await events.trim_events(conn)).moved == 1

    cut = await events.read_events(conn, events.OLDEST, events.timeline(old))
    assert (cut.truncated, list(cut.events)) == (True, [])
    assert not (await events.read_events(conn, events.OLDEST, events.timeline(young))).truncated
    assert not (await events.read_events(conn, events.OLDEST)).truncated


async def test_events_are_written_read_and_trimmed_when_no_range_was_created_in_time(
    conn: Connection, given: Given
) -> None:
    await append(conn)
    await jump(conn, 17 * RANGE - 2)
    late = [await append(conn) for _ in range(3)]
    execution_id = await given.submitted()
    page = await events.read_events(conn, encode_event_cursor(17 * RANGE - 3))
    assert ids_of(page.events) == [*late, *range(17 * RANGE + 2, 17 * RANGE + 4)]
    resumed = await events.read_events(conn, encode_event_cursor(late[-1]))
    assert ids_of(resumed.events) == ids_of(page.events)[3:]
    assert len((await events.read_events(conn, page.events[2].cursor, events.timeline(execution_id))).events) == 1

    assert (await events.extend_events(conn)).moved == 16  # not the current one, which events_rest has begun
    await jump(conn, 18 * RANGE - 1)
    await append(conn)
    await given.time_passes(days=8)
    assert (await events.trim_events(conn)).moved == 18
    assert [row["id"] for row in await given.rows("select id from flowfabric.events")] == [18 * RANGE]
    with pytest.raises(CursorExpired):
        await events.read_events(conn, encode_event_cursor(late[-1]))


async def test_ranges_are_created_late_only_while_no_writer_has_an_id(connect_directly: Connect, given: Given) -> None:
    writer = await connect_directly()
    await jump(given.conn, 20 * RANGE)
    async with writer.transaction():
        await append(writer)
        assert (await events.extend_events(given.conn)).moved == 0

    assert (await events.extend_events(given.conn)).moved == 16
    assert await ranges(given) == [*range(17), *range(21, 37)]


async def test_extending_gives_up_while_a_reader_has_the_whole_log_open(connect: Connect, given: Given) -> None:
    reader = await connect()
    await jump(given.conn, 5 * RANGE)
    async with reader.transaction():
        await reader.fetch("select from flowfabric.events limit 1")
        assert (await events.extend_events(given.conn)).moved == 0

    assert (await events.extend_events(given.conn)).moved == 5


async def test_a_timeline_is_truncated_even_if_the_last_event_dropped_is_older(connect: Connect, given: Given) -> None:
    """An event that was written long before its commit may be the last one of a range."""
    caller = await connect()
    transaction = await begin(caller)
    await write(caller)
    await given.time_passes(hours=1)
    execution_id = await given.submitted()
    await jump(given.conn, RANGE - 2)
    await transaction.commit()
    await append(given.conn)
    await given.time_passes(days=8)

    assert (await events.trim_events(given.conn)).moved == 1
    assert (await events.read_events(given.conn, events.OLDEST, events.timeline(execution_id))).truncated
