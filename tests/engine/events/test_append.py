"""Appending events: in the transaction of the change, in the order given, under the log's lock."""

import asyncpg

from flowfabric.engine import events, holds, lanes
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.events.log import append, writers
from tests.given import Given


async def test_a_line_is_there_with_its_change_or_not_at_all(conn: asyncpg.Connection, given: Given) -> None:
    transaction = conn.transaction()
    await transaction.start()
    await given.submitted(lane="reports")
    assert await given.events() == ["lane_registered", "execution_submitted"]
    await transaction.rollback()

    assert await given.events() == []
    assert await given.count("executions") == 0


async def test_events_of_one_call_have_ids_in_the_order_given(conn: Connection, given: Given) -> None:
    made = [await given.submitted() for _ in range(100)][::-1]
    partitions, ids = [one.partition for one in made], [one.uuid for one in made]
    await conn.execute("select flowfabric._append_all('execution_held', $1::int2[], $2::uuid[])", partitions, ids)

    stored = await given.rows("select execution from flowfabric.events where kind = 'execution_held' order by id")
    assert [row["execution"] for row in stored] == ids


async def test_a_writer_holds_the_lock_of_the_log_until_its_transaction_ends(connect_directly: Connect) -> None:
    writer, other = await connect_directly(), await connect_directly()
    transaction = writer.transaction()
    await transaction.start()
    assert await writers(other) == []
    await append(writer)
    assert len(await writers(other)) == 1
    await transaction.commit()

    assert await writers(other) == []


async def test_writers_do_not_wait_for_each_other(connect_directly: Connect) -> None:
    one, other = await connect_directly(), await connect_directly()
    async with one.transaction(), other.transaction():
        await append(one)
        await append(other)
        await append(one)

        assert len(await writers(one)) == 2


async def test_rolling_back_a_savepoint_keeps_the_lock_of_events_written_before_it(connect_directly: Connect) -> None:
    writer, other = await connect_directly(), await connect_directly()
    async with writer.transaction():
        await append(writer)
        inner = writer.transaction()
        await inner.start()
        await append(writer)
        await inner.rollback()

        assert len(await writers(other)) == 1


async def test_an_event_has_the_tags_its_execution_had_then(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"billing.customer": "acme"})
    await holds.hold(conn, execution_id, by="ops")
    await conn.execute("""update flowfabric.executions set tags = '{"billing.customer": "other"}'""")

    page = await events.read_events(conn, events.OLDEST, events.timeline(execution_id))
    assert [event.tags for event in page.events] == [{"billing.customer": "acme"}] * 2


async def test_empty_fields_of_an_event_are_omitted(conn: Connection) -> None:
    await lanes.configure_lane(conn, "reports")
    await lanes.pause_lane(conn, "reports", by="ops")

    registered, paused = (await events.read_events(conn, events.OLDEST)).events
    assert (registered.subject, registered.by, registered.execution_id, registered.partition) == (
        "reports",
        None,
        None,
        None,
    )
    assert (paused.kind, paused.by, paused.detail, paused.tags) == ("lane_paused", "ops", {}, {})


async def test_no_payload_is_in_the_log(given: Given) -> None:
    await given.submitted(payload=b'"the secret plan"', key="a-key")

    [row] = await given.rows("select string_agg(e::text, '') as lines from flowfabric.events e")
    assert "secret" not in row["lines"]
