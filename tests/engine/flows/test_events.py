"""Events of flows, and the filters that find them."""

import pytest

from flowfabric.engine import events, executions, flows, schedules
from flowfabric.ids import FlowId, mint_execution_id
from flowfabric.model import Event, EventFilter, Link, Member, Timing
from flowfabric.postgres.driver import Connection
from tests.given import submission


async def read(conn: Connection, **filter: object) -> list[Event]:  # noqa: A002
    page = await events.read_events(conn, events.OLDEST, EventFilter(**filter))  # type: ignore[arg-type]
    assert not page.more
    return list(page.events)


async def submit_one(conn: Connection, flow_id: FlowId) -> None:
    await executions.submit(conn, submission(flow=flow_id))


async def submit_two(conn: Connection, flow_id: FlowId) -> None:
    alone = submission()
    options = [submission(flow=flow_id), alone, submission(flow=flow_id, task="other")]
    await executions.submit_many(conn, options)


async def add(conn: Connection, flow_id: FlowId) -> None:
    await flows.add_execution(conn, flow_id, submission())


@pytest.mark.parametrize(("submit", "amount"), [(submit_one, 1), (submit_two, 2), (add, 1)])
async def test_a_submission_into_a_flow_is_found_by_its_flow(conn: Connection, submit: object, amount: int) -> None:
    flow_id = (await flows.create_flow(conn, "report")).flow_id
    await flows.create_flow(conn, "other")
    await submit(conn, flow_id)  # type: ignore[operator]

    kinds = [event.kind for event in await read(conn, flow_id=flow_id)]
    assert kinds == ["flow_created", *["execution_submitted"] * amount, *["flow_member_added"] * amount]


async def test_all_submissions_of_submit_flow_are_found_by_the_flow(conn: Connection) -> None:
    members = [Member(name=name, submission=submission(task=name)) for name in "abc"]
    made = await flows.submit_flow(conn, "report", members, [Link(upstream="a", downstream="b")])

    found = await read(conn, flow_id=made.flow_id, kinds=["execution_submitted"])
    assert {event.execution_id for event in found} == set(made.executions.values())


async def test_the_submission_of_an_execution_that_joins_later_is_not_an_event_of_the_flow(conn: Connection) -> None:
    flow_id = (await flows.create_flow(conn, "report")).flow_id
    execution_id = mint_execution_id(beside=flow_id)
    await executions.submit(conn, submission(execution_id=execution_id))
    await flows.add_execution(conn, flow_id, execution_id)

    assert [event.kind for event in await read(conn, flow_id=flow_id)] == ["flow_created", "flow_member_added"]


async def test_events_of_a_flow_are_found_by_its_namespace(conn: Connection) -> None:
    flow_id = (await flows.create_flow(conn, "report", namespace="acme")).flow_id
    await flows.create_flow(conn, "report")
    await flows.set_flow_tag(conn, flow_id, "team.name", "blue", by="ops")
    await flows.cancel_flow(conn, flow_id, by="ops")

    found = await read(conn, namespace="acme")
    assert [event.kind for event in found] == ["flow_created", "tag_set", "flow_cancelled"]
    assert {(event.flow_id, event.namespace) for event in found} == {(flow_id, "acme")}


async def test_events_of_a_schedule_are_found_by_its_namespace(conn: Connection) -> None:
    for namespace in ("acme", "default"):
        await schedules.create_schedule(
            conn, "nightly", submission(namespace=namespace), Timing(cron="0 0 * * *"), by="ops"
        )

    [made] = await read(conn, namespace="acme", kinds=["schedule_created"])
    assert (made.subject, made.namespace) == ("nightly", "acme")
