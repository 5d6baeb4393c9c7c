"""The events of one execution are ordered by its locks, so they are read without the horizon."""

import asyncio
import re

import asyncpg

from flowfabric.engine import events, executions, flows, holds
from flowfabric.ids import ExecutionId
from flowfabric.model import EdgePolicy, EventFilter
from flowfabric.postgres.driver import Connection
from tests import sources
from tests.conftest import Connect
from tests.engine.events.log import append, begin, ids_of, write
from tests.engine.flows.scene import graph
from tests.given import Given
from tests.races import Race

TICKET, RECORD, CALLER = "ticket", "record", "The caller has locked"

# Every function that appends an event about an execution, and what keeps other events about it from being appended
# between the id and the commit: the function locks the ticket, or the ticket and the record (of an execution that has
# ended, only the record exists), or its caller does, or the execution is new and nobody else can see it.
LOCKED_BY = {
    "_accept_round": CALLER,
    "_answer_children": "The caller has locked the tickets of the parents",
    "_close_waitpoints": CALLER,
    "_create_waitpoints": CALLER,
    "_end": "whose tickets the caller has locked",
    "_end_leases": CALLER,
    "_grant": "locked tickets",
    "_join_flows": CALLER,
    "_lease": "locked tickets",
    "_link_members": "All members are new",
    "_note_groups": CALLER,
    "_replay_waiting": TICKET,
    "_resume": CALLER,
    "_schedule_retries": CALLER,
    "_suspend_tickets": CALLER,
    "_time_out": CALLER,
    "_write_plain": "Insert record, ticket and event",
    "_write_submissions": "Insert records, tickets, tags and events",
    "add_edge": TICKET,
    "change_priority": TICKET,
    "delay": TICKET,
    "expire_grants": TICKET,
    "hold": TICKET,
    "hold_changed": TICKET,
    "override": TICKET,
    "renew": TICKET,
    "replay": RECORD,
    "set_edge_group": RECORD,
    "set_tag": RECORD,
    "unhold": TICKET,
}
ABOUT = re.compile(r"flowfabric\._append_(?:all|about)\(|insert into flowfabric\.events \([^)]*\bexecution\b")


def test_every_append_about_an_execution_names_the_lock_that_orders_it() -> None:
    appending = {
        function.name: function
        for function in sources.sql_functions()
        if ABOUT.search(function.code) and not function.name.startswith(("_append", "_move_drafts"))
    }

    assert sorted(appending) == sorted(LOCKED_BY)
    for name, lock in LOCKED_BY.items():
        said = " ".join(appending[name].header.split())
        assert lock in (appending[name].clauses["locks"] if lock in (TICKET, RECORD) else said), name


async def timeline(conn: Connection, execution_id: ExecutionId) -> list[str]:
    page = await events.read_events(conn, events.OLDEST, events.timeline(execution_id))
    return [event.kind for event in page.events]


async def test_a_tag_is_set_under_the_lock_of_the_ticket(race: Race, given: Given) -> None:
    execution_id = await given.submitted()

    await race.waits(
        lambda conn: holds.hold(conn, execution_id, by="ops"),
        lambda conn: executions.set_tag(conn, execution_id, "a.b", "c"),
    )
    assert await timeline(given.conn, execution_id) == ["execution_submitted", "execution_held", "tag_set"]


async def test_a_tag_of_an_ended_execution_waits_for_its_replay_and_then_for_its_ticket(
    race: Race, connect: Connect, given: Given
) -> None:
    execution_id, other = await given.completed(), await connect()
    replaying = await begin(race.one)
    await executions.replay(race.one, execution_id, by="ops")
    tagging = await given.blocked(
        race.two, asyncio.ensure_future(executions.set_tag(race.two, execution_id, "a.b", "c"))
    )
    await replaying.commit()
    await tagging
    await holds.hold(other, execution_id, by="ops")

    assert (await timeline(given.conn, execution_id))[-3:] == ["execution_replayed", "tag_set", "execution_held"]


async def test_the_policy_of_a_group_is_set_under_the_lock_of_the_ticket(race: Race, given: Given) -> None:
    flow = await graph(given.conn, "a")

    await race.waits(
        lambda conn: holds.hold(conn, flow["a"], by="ops"),
        lambda conn: flows.set_edge_group(conn, flow.flow_id, flow["a"], EdgePolicy("any_of")),
    )
    assert (await timeline(given.conn, flow["a"]))[-2:] == ["execution_held", "edge_group_set"]


async def test_the_events_of_one_execution_are_read_beyond_a_writer_that_has_not_ended(
    connect_directly: Connect, given: Given
) -> None:
    slow = await connect_directly()
    transaction = await begin(slow)
    await write(slow)
    execution_id = await given.submitted()
    await holds.hold(given.conn, execution_id, by="ops")
    assert (await events.read_events(given.conn, events.OLDEST)).events == []

    only = events.timeline(execution_id)
    first = await events.read_events(given.conn, events.OLDEST, only, limit=1)
    second = await events.read_events(given.conn, first.cursor, only)
    assert [event.kind for event in [*first.events, *second.events]] == ["execution_submitted", "execution_held"]
    assert (second.cursor, second.more) == (second.events[-1].cursor, False)
    await holds.unhold(given.conn, execution_id, by="ops")
    await transaction.commit()
    third = await events.read_events(given.conn, second.cursor, only)
    assert [event.kind for event in third.events] == ["execution_unheld"]


async def test_a_timeline_never_passes_an_event_of_its_execution_that_is_not_committed(
    connect_directly: Connect, given: Given
) -> None:
    writer = await connect_directly()
    execution_id = await given.submitted()
    only = events.timeline(execution_id)
    transaction = await begin(writer)
    await holds.hold(writer, execution_id, by="ops")
    await append(given.conn)
    page = await events.read_events(given.conn, events.OLDEST, only)
    again = await events.read_events(given.conn, page.cursor, only)
    assert (again.events, again.cursor, again.more) == ([], page.cursor, False)
    await transaction.commit()

    page = await events.read_events(given.conn, again.cursor, only)
    assert [event.kind for event in page.events] == ["execution_held"]
    assert page.cursor == (await events.read_events(given.conn)).cursor  # past events of others, up to the horizon


async def test_a_small_page_of_a_timeline_says_whether_more_follow(conn: asyncpg.Connection, given: Given) -> None:
    execution_id = await given.submitted()
    for _ in range(3):
        await holds.hold(conn, execution_id, by="ops")
        await holds.unhold(conn, execution_id, by="ops")
    only, cursor, seen = EventFilter(execution_id=execution_id, kinds=["execution_held"]), events.OLDEST, []
    for _ in range(3):
        page = await events.read_events(conn, cursor, only, limit=1)
        seen += ids_of(page.events)
        cursor = page.cursor
        assert page.more

    last = await events.read_events(conn, cursor, only, limit=1)
    assert (last.events, last.more, len(seen)) == ([], False, 3)
