"""A schedule that replaces a member of a flow locks the flow before the tickets, or skips it until the next tick."""

from datetime import timedelta

from flowfabric.engine import budgets, executions, flows, schedules
from flowfabric.ids import mint_execution_id
from flowfabric.model import EdgePolicy
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import figures
from tests.engine.flows.scene import Graph, graph
from tests.engine.schedules.scene import create, fired, sweep
from tests.given import Given
from tests.sql.test_budget_races import Race as Crossing
from tests.sql.test_budget_races import crossing, in_key_order
from tests.sql.test_races import Race
from tests.sql.test_races import race as race


async def replacing(conn: Connection, *others: str, joins: bool = True) -> Graph:
    """A flow in which b waits for a and others; a schedule has submitted a, and its next tick replaces it."""
    flow = await graph(conn, "b", *others)
    await create(conn, lane="a", task="a", overlap="replace", every=timedelta(hours=1))
    flow.members["a"] = mint_execution_id(beside=flow.flow_id)
    await schedules.fire_schedule(conn, "nightly", by="ops", execution_id=flow["a"])
    if joins:
        await join(conn, flow)
    return flow


async def join(conn: Connection, flow: Graph) -> None:
    await flows.add_execution(conn, flow.flow_id, flow["a"])
    await flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"])


async def fire(conn: Connection) -> object:
    return await schedules.fire_schedule(conn, "nightly", by="ops")


async def lock_flows(conn: Connection) -> None:
    await conn.execute("select from flowfabric.flows for update")


async def test_a_tick_that_replaces_a_member_settles_its_downstream_members(conn: Connection, given: Given) -> None:
    flow = await replacing(conn)
    await flow.claim("a")
    await given.time_passes(hours=1)

    swept = await sweep(conn)
    assert (swept.moved, swept.ended) == (1, [flow["a"], flow["b"]])
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}
    [next_one] = await given.claim(lanes=["a"], take=10)
    assert (next_one.flow_id, next_one.execution_id) != (flow.flow_id, flow["a"])


async def test_a_tick_skips_a_member_whose_flow_is_locked(race: Race, given: Given) -> None:
    flow = await replacing(given.conn)
    await given.time_passes(hours=1)

    assert (await race.passes(lock_flows, sweep)).moved == 0
    assert await flow.states() == {"a": "waiting", "b": "waiting_dependencies"}
    await given.time_passes(seconds=1)
    assert (await sweep(given.conn)).moved == 1
    assert (await flow.state("b"), len(await fired(given))) == ("skipped", 2)


async def test_firing_manually_waits_for_the_flow_of_the_replaced_member(race: Race, given: Given) -> None:
    flow = await replacing(given.conn)

    answer = await race.waits(lock_flows, fire)
    assert (answer.outcome, answer.ended) == ("fired", [flow["a"], flow["b"]])
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}


async def test_firing_manually_waits_for_a_concurrent_end_of_the_member(race: Race, given: Given) -> None:
    flow = await replacing(given.conn)

    answer = await race.waits(lambda conn: executions.cancel(conn, flow["a"]), fire)
    assert (answer.outcome, answer.ended) == ("fired", ())
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}


async def test_firing_manually_sees_a_flow_that_the_execution_has_just_joined(race: Race, given: Given) -> None:
    flow = await replacing(given.conn, joins=False)

    answer = await race.waits(lambda conn: join(conn, flow), fire)
    assert (answer.outcome, answer.ended) == ("fired", [flow["a"], flow["b"]])
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}


async def test_a_tick_releases_the_reservations_of_all_ended_members_in_key_order(race: Race, given: Given) -> None:
    flow = await replacing(given.conn, "c", joins=False)
    await flows.set_edge_group(given.conn, flow.flow_id, flow["b"], EdgePolicy("quorum", 2))
    await join(given.conn, flow)
    await flow.link("c", "b")
    first, last = await in_key_order(given.conn, 2)
    for member, name in (("a", last), ("c", first)):
        await budgets.reserve(given.conn, name, {"tokens": 5}, fence=(await flow.claim(member)).fence)
    await given.time_passes(hours=1)

    assert (await crossing(Crossing(given, race.one, race.two), first, last, sweep)).moved == 1
    assert await flow.states() == {"b": "skipped", "c": "cancelled", "a": "cancelled"}
    assert [await figures(given.conn, name) for name in (first, last)] == [(1, 0, 0)] * 2
