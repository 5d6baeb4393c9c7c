"""Events of a caller's transaction get their ids at its commit: while it is open, it delays no reader."""


import asyncpg

from flowfabric.engine import events, executions, holds
from flowfabric.model import EventFilter
from tests.conftest import Connect
from tests.engine.events.log import append, begin, ids_of, write, writers
from tests.given import Given, submission

SUBMITTED = EventFilter(kinds=["execution_submitted"])
DRAFTS = "select count(*) from flowfabric.events where id >= 4611686018427387904"


async def kinds(conn: asyncpg.Connection) -> list[str]:
    return [event.kind for event in (await events.read_events(conn, events.OLDEST)).events]


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
    columns = "at, route, partition, execution, flow, kind, subject, by, tags::text, detail::text"
    async with conn.transaction():
        await holds.hold(conn, await given.submitted(tags={"a.b": "c"}), by="ops", reason="later")
        before = await conn.fetch(f"select {columns} from flowfabric.events order by id")
    after = await conn.fetch(f"select {columns} from flowfabric.events order by id")

    assert [tuple(row) for row in after] == [tuple(row) for row in before]
    stored = await conn.fetch(
        "select attname from pg_attribute where attrelid = 'flowfabric.events'::regclass and attnum > 0"
    )
    assert {row["attname"] for row in stored} == {c.removesuffix("::text") for c in columns.split(", ")} | {"id"}
