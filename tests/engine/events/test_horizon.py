"""The horizon: no event is ever skipped, and only transactions that write events delay it."""

import asyncio
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.cursors import encode_event_cursor
from flowfabric.engine import events
from flowfabric.postgres import embedded
from flowfabric.schema import migrate
from tests.conftest import Connect
from tests.engine.events.log import append, append_many, begin, horizon, ids_of, jump, write_directly, writers


async def test_larger_ids_wait_for_a_writer_that_has_not_ended(connect_directly: Connect) -> None:
    """A reader never skips an event that commits late."""
    slow, other = await connect_directly(), await connect_directly()
    transaction = await begin(slow)
    first = await append(slow)
    for _ in range(1_000):
        await append(other)
    assert await events.advance_horizon(other) == first - 1
    assert (await events.read_events(other, events.OLDEST)).events == []
    await transaction.commit()

    page = await events.read_events(other, events.OLDEST, limit=1_000)
    rest = await events.read_events(other, page.cursor, limit=1_000)
    assert ids_of([*page.events, *rest.events]) == list(range(first, first + 1_001))


async def test_an_open_transaction_without_events_delays_no_reader(connect_directly: Connect) -> None:
    unrelated, writer = await connect_directly(), await connect_directly()
    await writer.execute("create table bills (amount int)")
    async with unrelated.transaction():
        await unrelated.execute("insert into bills values (1)")
        undone = await begin(writer)
        await append(writer)
        await undone.rollback()
        last = await append(writer)

        assert await events.advance_horizon(writer) == last


async def test_a_rolled_back_gap_is_skipped_immediately_without_other_writers(connect_directly: Connect) -> None:
    conn = await connect_directly()
    transaction = await begin(conn)
    await append_many(conn, 3)
    await transaction.rollback()
    assert await events.advance_horizon(conn) == 3

    assert await append(conn) == 4
    assert await events.advance_horizon(conn) == 4


async def test_the_horizon_of_an_empty_log_is_before_its_first_event(conn: asyncpg.Connection) -> None:
    assert await events.advance_horizon(conn) == 0

    assert await append(conn) == 1
    assert ids_of((await events.read_events(conn, events.OLDEST)).events) == [1]


async def test_a_gap_is_skipped_once_its_writers_have_ended_while_others_write(connect_directly: Connect) -> None:
    one, two, reader = await connect_directly(), await connect_directly(), await connect_directly()
    lost, late = await begin(one), await begin(two)
    await append(one)
    await append(two)
    third = await append(reader)
    assert await events.advance_horizon(reader) == 0
    await lost.rollback()
    assert await events.advance_horizon(reader) == 0
    again = await begin(one)
    fourth = await append(one)
    await late.commit()

    assert await events.advance_horizon(reader) == third
    await again.commit()
    assert await events.advance_horizon(reader) == fourth


async def test_a_writer_is_identified_by_its_transaction_not_its_connection(connect_directly: Connect) -> None:
    writer, reader = await connect_directly(), await connect_directly()
    lost = await begin(writer)
    await append(writer)
    mark = await append(reader)
    assert await events.advance_horizon(reader) == 0
    await lost.rollback()
    again = await begin(writer)
    await append(writer)

    assert await events.advance_horizon(reader) == mark
    await again.rollback()


async def test_the_horizon_does_not_wait_for_writers_after_the_mark(connect_directly: Connect) -> None:
    one, two, reader = await connect_directly(), await connect_directly(), await connect_directly()
    first = await begin(one)
    await append(one)
    mark = await append(reader)
    await events.advance_horizon(reader)
    second = await begin(two)
    await append(two)
    await first.rollback()

    assert await events.advance_horizon(reader) == mark
    last = await append(reader)
    assert await events.advance_horizon(reader) == mark
    await second.rollback()
    assert await events.advance_horizon(reader) == last


async def test_one_mark_settles_all_gaps_below_it(connect_directly: Connect) -> None:
    slow, writer = await connect_directly(), await connect_directly()
    held = await begin(slow)
    await append(slow)
    for _ in range(10):
        undone = await begin(writer)
        await append(writer)
        await undone.rollback()
        last = await append(writer)
    assert await events.advance_horizon(writer) == 0
    await held.rollback()

    assert await events.advance_horizon(writer) == last


async def test_events_before_a_gap_can_be_read(connect_directly: Connect) -> None:
    slow, writer = await connect_directly(), await connect_directly()
    await append_many(writer, 5)
    held = await begin(slow)
    await append(slow)
    await append(writer)

    assert await events.advance_horizon(writer) == 5
    await held.commit()
    assert await events.advance_horizon(writer) == 7


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_caller_with_an_older_snapshot_never_moves_the_horizon(
    connect_directly: Connect, isolation: str
) -> None:
    slow, old = await connect_directly(), await connect_directly()
    late = await begin(slow)
    await append(slow)
    async with old.transaction(isolation=isolation):
        await old.fetch("select 1 from flowfabric.events")
        await late.commit()
        last = await append(slow)
        await append(old)

        assert await events.advance_horizon(old) == 0
    assert await events.advance_horizon(slow) == last + 1


async def test_a_read_only_session_reads_as_far_as_others_have_moved_the_horizon(connect_directly: Connect) -> None:
    writer, reader = await connect_directly(), await connect_directly()
    await append(writer)
    await reader.execute("set default_transaction_read_only = on")
    assert await events.advance_horizon(reader) == 0
    await events.advance_horizon(writer)

    assert ids_of((await events.read_events(reader, events.OLDEST)).events) == [1]


async def test_ids_lost_in_a_crash_are_skipped(conn: asyncpg.Connection) -> None:
    await append(conn)
    await jump(conn, 33)  # Postgres writes sequence values to the WAL 32 ahead
    last = await append(conn)

    assert last == 34
    assert await events.advance_horizon(conn) == last
    assert ids_of((await events.read_events(conn, events.OLDEST)).events) == [1, 34]


async def test_one_process_moves_the_horizon_and_the_others_use_its_current_value(connect_directly: Connect) -> None:
    one, other = await connect_directly(), await connect_directly()
    await append(one)
    async with one.transaction():
        assert await events.advance_horizon(one) == 1
        assert await events.advance_horizon(other) == 0

    assert await events.advance_horizon(other) == 1


async def test_concurrent_moves_never_move_the_horizon_back_or_too_far(connect_directly: Connect) -> None:
    slow, writer = await connect_directly(), await connect_directly()
    movers = [await connect_directly() for _ in range(8)]
    held = await begin(slow)
    first = await append(slow)

    async def move(conn: asyncpg.Connection) -> list[int]:
        return [await events.advance_horizon(conn) for _ in range(30)]

    async def write() -> list[int]:
        return [await append(writer) for _ in range(100)]

    *seen, written = await asyncio.gather(*map(move, movers), write())
    assert {at for positions in seen for at in positions} == {first - 1}
    await held.rollback()
    seen = await asyncio.gather(*map(move, movers))
    assert all(positions == sorted(positions) for positions in seen)
    assert await horizon(writer) == written[-1]


async def test_a_backlog_larger_than_one_scan_is_passed_in_one_call(conn: asyncpg.Connection) -> None:
    await append_many(conn, 45_000)

    assert await events.advance_horizon(conn) == 45_000
    assert await events.read_events(conn) == await events.read_events(conn, "", limit=0)


async def test_advancing_without_new_events_writes_nothing(conn: asyncpg.Connection) -> None:
    await append(conn)
    await events.advance_horizon(conn)
    before = await conn.fetchval("select xmin::text || ctid::text || xmax::text from flowfabric.horizon")
    await events.advance_horizon(conn)

    assert await conn.fetchval("select xmin::text || ctid::text || xmax::text from flowfabric.horizon") == before


async def test_a_writer_prepared_for_two_phase_commit_is_waited_for_over_a_restart(tmp_path: Path) -> None:
    start = partial(embedded.start, tmp_path / "data", durable=False, settings={"max_prepared_transactions": "4"})
    with start() as running:
        writer, reader = await asyncpg.connect(running.url()), await asyncpg.connect(running.url())
        await migrate.migrate(reader, Config())
        await write_directly(writer)
        await writer.execute("begin; select flowfabric._append('lane_paused', 'reports')")
        last = await append(reader)
        assert await events.advance_horizon(reader) == last - 2
        await writer.execute("prepare transaction 'transfer'")
        assert await events.advance_horizon(reader) == last - 2
        await writer.close()
        await reader.close()
    with start() as running:
        reader = await asyncpg.connect(running.url())
        assert [name[:3] for name in await writers(reader)] == ["-1/"]
        assert await events.advance_horizon(reader) == last - 2
        await reader.execute("commit prepared 'transfer'")

        page = await events.read_events(reader, encode_event_cursor(last - 2))
        assert ids_of(page.events) == [last - 1, last]
        await reader.close()
