"""Events of a caller's transaction get their ids at its commit: while it is open, it delays no reader."""

import asyncio
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.engine import claims, events, executions, holds
from flowfabric.model import EventFilter
from flowfabric.postgres import driver, embedded
from flowfabric.postgres.database import Database
from flowfabric.schema import migrate
from tests.conftest import Connect
from tests.engine.events.log import append, begin, ids_of, write, write_directly, writers
from tests.given import Given, submission

SUBMITTED = EventFilter(kinds=["execution_submitted"])
DRAFTS = "select count(*) from flowfabric.events where id >= 4611686018427387904"


async def drafts(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval(DRAFTS)
    return found


async def test_an_open_submission_delays_no_event_of_others(connect: Connect, given: Given) -> None:
    caller, other = await connect(), Given(await connect())
    await given.submitted()  # the first one creates the lane
    start = await events.read_events(given.conn)
    transaction = await begin(caller)
    mine = [(await executions.submit(caller, submission())).execution_id for _ in range(10)]
    theirs = [await other.submitted() for _ in range(3)]

    page = await events.read_events(given.conn, start.cursor, SUBMITTED)
    assert [event.execution_id for event in page.events] == theirs
    await transaction.commit()
    later = await events.read_events(given.conn, page.cursor, SUBMITTED)
    assert [event.execution_id for event in later.events] == mine


async def test_the_ids_of_a_callers_events_are_taken_at_its_commit(connect: Connect, given: Given) -> None:
    one, two = await connect(), await connect()
    first, second = await begin(one), await begin(two)
    await write(one, "one")
    await write(two, "two")
    await write(one, "one again")
    await second.commit()
    await first.commit()

    page = await events.read_events(given.conn, events.OLDEST)
    assert [event.subject for event in page.events] == ["two", "one", "one again"]
    assert ids_of(page.events) == [1, 2, 3]
    assert await drafts(given.conn) == 0


async def test_an_open_transaction_does_not_hold_the_log(connect: Connect, given: Given) -> None:
    caller = await connect()
    transaction = await begin(caller)
    await write(caller)
    assert await writers(given.conn) == []
    assert await events.advance_horizon(given.conn) == 0

    await transaction.rollback()
    assert await append(given.conn) == 1


async def test_events_of_a_rolled_back_savepoint_are_never_seen(connect: Connect, given: Given) -> None:
    caller = await connect()
    async with caller.transaction():
        undone = await begin(caller)
        await write(caller, "undone first")
        await undone.rollback()
        await write(caller, "kept")
        async with caller.transaction():
            await write(caller, "kept inside")
        undone = await begin(caller)
        async with caller.transaction():
            await write(caller, "undone inside")
        await undone.rollback()
        await write(caller, "last")

    page = await events.read_events(given.conn, events.OLDEST)
    assert [event.subject for event in page.events] == ["kept", "kept inside", "last"]
    assert ids_of(page.events) == [1, 2, 3]


async def test_a_transaction_sees_its_own_events_in_order_before_its_commit(conn: asyncpg.Connection) -> None:
    await write(conn, "before")
    async with conn.transaction():
        await write(conn, "during")
        await write(conn, "during too")
        own = await conn.fetch("select subject from flowfabric.events order by id")

    assert [row["subject"] for row in own] == ["before", "during", "during too"]


async def test_every_column_of_an_event_survives_the_move(conn: asyncpg.Connection, given: Given) -> None:
    columns = (
        "at, route, partition, execution, flow, kind, subject, by, tags::text, detail::text, epoch, attempt, "
        "attempt_type, resumed, lease_id, worker, instance"
    )
    async with conn.transaction():
        await holds.hold(conn, await given.submitted(tags={"a.b": "c"}), by="ops", reason="later")
        await given.claimed(lane="other")
        before = await conn.fetch(f"select {columns} from flowfabric.events order by id")
    after = await conn.fetch(f"select {columns} from flowfabric.events order by id")

    assert [tuple(row) for row in after] == [tuple(row) for row in before]
    stored = await conn.fetch(
        "select attname from pg_attribute where attrelid = 'flowfabric.events'::regclass and attnum > 0"
    )
    assert {row["attname"] for row in stored} == {c.removesuffix("::text") for c in columns.split(", ")} | {"id"}


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_stricter_isolation_levels_number_their_events_too(connect: Connect, isolation: str) -> None:
    caller, other = await connect(), await connect()
    async with caller.transaction(isolation=isolation):
        await caller.fetch("select 1 from flowfabric.events")
        await append(other)
        await write(caller)
        await write(caller)

    assert ids_of((await events.read_events(other, events.OLDEST)).events) == [1, 2, 3]


@pytest.mark.parametrize("setting", ["constraints all immediate", "local session_replication_role = replica"])
async def test_no_setting_of_a_session_leaves_a_draft_behind(conn: asyncpg.Connection, setting: str) -> None:
    async with conn.transaction():
        await write(conn, "first")
        await conn.execute(f"set {setting}")
        await write(conn, "second")

    page = await events.read_events(conn, events.OLDEST)
    assert [event.subject for event in page.events] == ["first", "second"]
    assert await drafts(conn) == 0


async def test_events_written_by_another_deferred_trigger_are_numbered(conn: asyncpg.Connection) -> None:
    """A caller's own deferred triggers may call the engine while the transaction commits."""
    await conn.execute("""
        create table orders (id int);
        create function order_placed() returns trigger language plpgsql as $$
        begin
            perform flowfabric._append('lane_paused', 'order ' || new.id);
            return null;
        end $$;
        create constraint trigger placed after insert on orders deferrable initially deferred
            for each row execute function order_placed()""")
    async with conn.transaction():
        await conn.execute("insert into orders values (1), (2)")
        await write(conn, "before")
        await conn.execute("insert into orders values (3)")

    page = await events.read_events(conn, events.OLDEST)
    assert sorted(event.subject or "" for event in page.events) == ["before", "order 1", "order 2", "order 3"]
    assert await drafts(conn) == 0


async def test_thousands_of_events_of_one_transaction_keep_their_order(conn: asyncpg.Connection, given: Given) -> None:
    async with conn.transaction():
        await conn.execute(
            "select flowfabric._append('lane_paused', n::text) from generate_series(1, 2500) n", timeout=30
        )

    stored = await given.rows("select id, subject from flowfabric.events order by id")
    assert [(row["id"], row["subject"]) for row in stored] == [(n, str(n)) for n in range(1, 2501)]


async def test_concurrent_transactions_of_many_events_never_mix_them_up(connect: Connect, given: Given) -> None:
    callers = [await connect() for _ in range(4)]
    open_ones = [await begin(caller) for caller in callers]
    for number in range(30):
        for name, caller in enumerate(callers):
            await write(caller, f"{name}: {number}")
    await asyncio.gather(*(transaction.commit() for transaction in open_ones))

    page = await events.read_events(given.conn, events.OLDEST)
    subjects = [event.subject or "" for event in page.events]
    assert len(subjects) == 120
    for name in range(4):
        assert [s for s in subjects if s.startswith(f"{name}:")] == [f"{name}: {number}" for number in range(30)]


async def test_events_of_one_execution_are_in_the_order_of_its_changes(connect: Connect, given: Given) -> None:
    caller, own = await connect(), await connect()
    await write_directly(own)
    execution_id = await given.submitted()
    transaction = await begin(caller)
    await holds.hold(caller, execution_id, by="caller")
    claiming = await claims.claim(own, "pool", instance="pool-1", lanes=["default"])
    assert claiming == []  # the ticket is locked
    unholding = asyncio.ensure_future(holds.unhold(own, execution_id, by="ops"))
    await given.blocked(own, unholding)
    await transaction.commit()
    await unholding

    page = await events.read_events(given.conn, events.OLDEST, events.timeline(execution_id))
    assert [event.kind for event in page.events] == ["execution_submitted", "execution_held", "execution_unheld"]


async def test_a_session_of_our_own_pool_writes_directly(database: Database) -> None:
    async with database.connection() as conn, conn.transaction():
        await write(conn)
        [found] = await conn.fetch(DRAFTS)
        assert found["count"] == 0

    async with database.transaction() as conn:
        await write(conn)
        [found] = await conn.fetch(DRAFTS)
        assert found["count"] == 1
    async with database.connection() as conn:  # the same session
        await write(conn)
        assert ids_of((await events.read_events(conn, events.OLDEST)).events) == [1, 2, 3]


async def test_behind_a_pooler_every_event_waits_for_its_commit(database_url: str) -> None:
    conn = await driver.connect(database_url, limits=driver.Limits(10, 10, 10), pooler=True)
    async with conn.transaction():
        await write(conn)
        assert await drafts(conn) == 1
    assert await append(conn) == 2
    await conn.close()


async def test_a_prepared_transaction_has_its_ids_over_a_crash(tmp_path: Path) -> None:
    start = partial(embedded.start, tmp_path / "data", durable=False, settings={"max_prepared_transactions": "4"})
    with start() as running:
        caller, other = await asyncpg.connect(running.url()), await asyncpg.connect(running.url())
        await migrate.migrate(other, Config())
        start_of_log = (await events.read_events(other)).cursor
        await caller.execute("begin; select flowfabric._append('lane_paused', 'prepared')")
        await write(other, "meanwhile")
        await caller.execute("prepare transaction 'transfer'")
        await write(other, "after")
        page = await events.read_events(other, start_of_log)
        assert [event.subject for event in page.events] == ["meanwhile"]
        await caller.close()
        await other.close()
    with start() as running:
        other = await asyncpg.connect(running.url())
        await other.execute("commit prepared 'transfer'")

        page = await events.read_events(other, start_of_log)
        assert [event.subject for event in page.events] == ["meanwhile", "prepared", "after"]
        assert await drafts(other) == 0
        await other.close()
