"""Reading the log: events after a cursor, up to the horizon, that match the filter."""

from collections.abc import Mapping
from uuid import uuid4

import asyncpg
import pytest

from flowfabric.cursors import encode_event_cursor
from flowfabric.engine import events, executions, holds, lanes
from flowfabric.errors import InvalidBody, InvalidCursor, InvalidLimit, InvalidName, InvalidText
from flowfabric.ids import ExecutionId
from flowfabric.model import Event, EventFilter
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.events.log import append, append_many, begin, horizon, ids_of, jump
from tests.given import Given

ACME, OTHER = {"billing.customer": "acme"}, {"billing.supplier": "acme"}


async def read(conn: Connection, **filter: object) -> list[Event]:  # noqa: A002
    """All events that match a filter."""
    page = await events.read_events(conn, events.OLDEST, EventFilter(**filter))  # type: ignore[arg-type]
    assert not page.more
    return list(page.events)


async def about(conn: Connection, **filter: object) -> set[ExecutionId | None]:  # noqa: A002
    return {event.execution_id for event in await read(conn, **filter)}


async def test_the_empty_cursor_returns_no_events_and_the_end_of_the_log(conn: Connection) -> None:
    await append_many(conn, 3)
    now = await events.read_events(conn)
    assert (now.events, now.more, now.cursor) == ([], False, encode_event_cursor(3))
    await append_many(conn, 2)

    assert ids_of((await events.read_events(conn, now.cursor)).events) == [4, 5]


async def test_the_empty_cursor_misses_no_event_of_an_open_transaction(connect_directly: Connect) -> None:
    slow, reader = await connect_directly(), await connect_directly()
    held = await begin(slow)
    late = await append(slow)
    await append(reader)
    now = await events.read_events(reader)
    await held.commit()

    assert late in ids_of((await events.read_events(reader, now.cursor)).events)


async def test_the_zero_cursor_starts_with_the_oldest_event_kept(conn: Connection) -> None:
    assert (await events.read_events(conn, events.OLDEST)).cursor == events.OLDEST
    await append_many(conn, 2)

    assert ids_of((await events.read_events(conn, events.OLDEST)).events) == [1, 2]


async def test_a_page_starts_strictly_after_its_cursor(conn: Connection) -> None:
    await append_many(conn, 10)
    seen, cursor, more = [], events.OLDEST, True
    while more:
        page = await events.read_events(conn, cursor, limit=3)
        seen += ids_of(page.events)
        cursor, more = page.cursor, page.more

    assert seen == list(range(1, 11))
    assert (await events.read_events(conn, cursor)).cursor == cursor


async def test_the_cursor_of_an_event_continues_after_it(conn: Connection) -> None:
    await append_many(conn, 3)
    _, second, third = (await events.read_events(conn, events.OLDEST)).events

    assert (await events.read_events(conn, second.cursor)).events == [third]


async def test_the_cursor_moves_past_events_that_do_not_match(conn: Connection) -> None:
    await append_many(conn, 12_000)
    wanted = await append(conn, "lane_resumed")
    only = EventFilter(kinds=["lane_resumed"])
    page = await events.read_events(conn, events.OLDEST, only)
    assert (page.events, page.cursor, page.more) == ([], encode_event_cursor(5_000), True)
    page = await events.read_events(conn, (await events.read_events(conn, page.cursor, only)).cursor, only)

    assert (ids_of(page.events), page.cursor, page.more) == ([wanted], encode_event_cursor(wanted), False)


async def test_a_full_page_ends_at_its_last_event(conn: Connection) -> None:
    await append_many(conn, 3)
    page = await events.read_events(conn, events.OLDEST, limit=2)

    assert (page.cursor, page.more) == (page.events[-1].cursor, True)


@pytest.mark.parametrize(
    "cursor",
    [
        "AgAAAAAAAAA",  # eight bytes
        "AQAAAAAAAAAB",  # first byte 1
        "AgAAAAAAAAABAA",  # ten bytes
        "Av__________",  # a negative id
        "5",
        "AgAAAAAAAA A",
    ],
)
async def test_a_malformed_cursor_is_refused(conn: Connection, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await events.read_events(conn, cursor)
    with pytest.raises(InvalidCursor):
        await events.acknowledge(conn, "billing", cursor)


async def test_a_cursor_beyond_the_log_stays_there(conn: Connection) -> None:
    await append_many(conn, 3)
    far = encode_event_cursor(2**56 - 1)

    page = await events.read_events(conn, far)
    assert (page.events, page.cursor, page.more) == ([], far, False)
    assert (await events.read_events(conn, far, EventFilter(execution_id=ExecutionId(1, uuid4())))).events == []


@pytest.mark.parametrize(("limit", "given_out"), [(0, 0), (1, 1), (256, 256), (1_000, 1_000), (10**12, 1_000)])
async def test_a_page_honours_its_limit_up_to_a_thousand(conn: Connection, limit: int, given_out: int) -> None:
    await append_many(conn, 1_001)
    page = await events.read_events(conn, events.OLDEST, limit=limit)

    assert (len(page.events), page.cursor) == (given_out, encode_event_cursor(given_out))
    assert page.more


@pytest.mark.parametrize("limit", [-1, -(10**12)])
async def test_a_limit_below_zero_is_refused(conn: Connection, limit: int) -> None:
    with pytest.raises(InvalidLimit):
        await events.read_events(conn, events.OLDEST, limit=limit)


async def test_reading_inside_a_transaction_does_not_move_the_horizon(conn: asyncpg.Connection) -> None:
    await append(conn)
    async with conn.transaction():
        assert (await events.read_events(conn, events.OLDEST)).events == []
        assert await horizon(conn) == 0


async def test_filters_by_namespace_and_lane(conn: Connection, given: Given) -> None:
    one = await given.submitted(namespace="acme", lane="fast")
    two = await given.submitted(namespace="acme", lane="slow")
    three = await given.submitted(namespace="other", lane="fast")

    assert await about(conn, namespace="acme") == {one, two}
    assert await about(conn, namespace="acme", lane="fast") == {one}
    assert await about(conn, lane="fast") == {one, three, None}
    assert [event.kind for event in await read(conn, lane="slow")] == ["lane_registered", "execution_submitted"]
    assert await read(conn, namespace="nobody") == []


async def test_a_tag_filter_matches_key_and_value(conn: Connection, given: Given) -> None:
    one = await given.submitted(tags=ACME)
    await given.submitted(tags=OTHER)
    await given.submitted()

    assert await about(conn, tag=("billing.customer", "acme")) == {one}
    assert await read(conn, tag=("billing.customer", "other")) == []


async def test_filters_by_kind_and_by_operator(conn: Connection, given: Given) -> None:
    held = await given.held()
    cancelled = await given.cancelled()

    assert await about(conn, kinds=["execution_held"]) == {held}
    assert await about(conn, by="ops") == {held, cancelled}
    assert await about(conn, acts=True, kinds=["execution_submitted"]) == set()
    assert await read(conn, kinds=[]) == []
    assert await read(conn, by="nobody") == []


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [
        ("execution_faild", ["execution_failed", "execution_held", "execution_unheld"]),
        ("LEASE_EXPIRED", ["lease_expired", "lease_acquired", "lease_revoked"]),
        ("", []),
        ("\0", []),
        ("x" * 100_000, []),
    ],
)
async def test_an_unknown_event_kind_is_refused_with_the_nearest_ones(
    conn: Connection, kind: str, nearest: list[str]
) -> None:
    await append_many(conn, 2)
    with pytest.raises(InvalidBody, match="is invalid; ") as refused:
        await read(conn, kinds=["execution_submitted", kind])

    assert refused.value.fields == {"field": "kinds", "nearest": nearest}
    assert all(each in refused.value.message for each in nearest)
    assert len(refused.value.message) < 300
    assert await horizon(conn) == 0


@pytest.mark.parametrize("tags", [ACME, {}])
async def test_sets_of_partitions_share_the_log_between_them(
    conn: Connection, given: Given, tags: Mapping[str, str]
) -> None:
    submitted = {await given.submitted(tags=tags) for _ in range(40)}
    even, odd = [await about(conn, partitions=range(start, 256, 2)) for start in (0, 1)]

    assert even | odd == submitted
    assert even & odd == set()
    assert await about(conn, partitions=[]) == set()


async def test_an_execution_is_identified_by_its_partition_and_uuid(conn: Connection, given: Given) -> None:
    uuid = uuid4()
    one = await given.submitted(execution_id=ExecutionId(1, uuid))
    two = await given.submitted(execution_id=ExecutionId(2, uuid))

    assert await about(conn, execution_id=one) == {one}
    assert await about(conn, execution_id=two, partitions=[1, 2]) == {two}
    assert await about(conn, execution_id=two, partitions=[1]) == set()


async def test_a_timeline_is_in_order_across_log_partitions(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ops")
    await jump(conn, 12_000_000)
    await holds.unhold(conn, execution_id, by="ops")
    await given.submitted()
    await executions.cancel(conn, execution_id, by="ops", reason="enough")

    timeline = await read(conn, execution_id=execution_id)
    assert [event.kind for event in timeline] == [
        "execution_submitted",
        "execution_held",
        "execution_unheld",
        "execution_cancelled",
    ]


async def test_a_filter_with_text_that_cannot_be_stored_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidText):
        await events.read_events(conn, events.OLDEST, EventFilter(lane="a\0b"))


async def test_a_named_consumer_continues_after_a_restart(connect: Connect) -> None:
    before, after = await connect(), await connect()
    await append_many(before, 5)
    assert await events.get_acknowledged(before, "billing") is None
    page = await events.read_events(before, events.OLDEST, limit=2)
    assert await events.acknowledge(before, "billing", page.cursor) is True
    await before.close()

    cursor = await events.get_acknowledged(after, "billing")
    assert cursor is not None
    assert ids_of((await events.read_events(after, cursor)).events) == [3, 4, 5]
    assert await events.get_acknowledged(after, "other") is None


async def test_a_named_consumer_never_moves_back(conn: Connection) -> None:
    await append_many(conn, 5)
    await events.advance_horizon(conn)
    await events.acknowledge(conn, "billing", encode_event_cursor(4))

    assert await events.acknowledge(conn, "billing", encode_event_cursor(4)) is False
    assert await events.acknowledge(conn, "billing", encode_event_cursor(2)) is False
    assert await events.get_acknowledged(conn, "billing") == encode_event_cursor(4)


async def test_a_named_consumer_cannot_acknowledge_beyond_the_horizon(connect_directly: Connect, given: Given) -> None:
    slow, conn = await connect_directly(), await connect_directly()
    async with slow.transaction():
        first = await append(slow)
        last = await append(conn)
        await events.advance_horizon(conn)
        with pytest.raises(InvalidCursor) as refused:
            await events.acknowledge(conn, "billing", encode_event_cursor(last))
        assert refused.value.fields == {"cause": "ahead"}
        assert await events.acknowledge(conn, "billing", encode_event_cursor(first - 1)) is True
    with pytest.raises(InvalidCursor):
        await events.acknowledge(conn, "other", "")
    assert await given.count("consumers") == 1


@pytest.mark.parametrize("name", ["", "x" * 257])
async def test_a_consumer_has_a_name_of_up_to_256_bytes(conn: Connection, given: Given, name: str) -> None:
    with pytest.raises(InvalidName):
        await events.acknowledge(conn, name, events.OLDEST)
    assert await given.count("consumers") == 0
    assert await events.acknowledge(conn, "x" * 256, events.OLDEST) is True


async def test_order_and_cursor_do_not_depend_on_the_clock(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "one")
    start = await events.read_events(conn)
    await given.time_passes(hours=-1)
    await lanes.configure_lane(conn, "two")
    await given.time_passes(hours=2)
    await lanes.configure_lane(conn, "three")

    page = await events.read_events(conn, start.cursor)
    assert [event.subject for event in page.events] == ["two", "three"]
    assert page.events[0].at < (await events.read_events(conn, events.OLDEST)).events[0].at
