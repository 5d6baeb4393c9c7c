"""Races in a flow, as interleavings of two connections: ending members and building the flow wait for each other."""

import asyncio
from collections.abc import Callable
from itertools import permutations

import pytest

from flowfabric import calls, errors
from flowfabric.engine import attempts, claims, executions, flows
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Claim, Completion, Fence
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.flows.scene import Graph, graph
from tests.given import Given
from tests.sql.test_races import Call, Race, complete
from tests.sql.test_races import race as race


def fail(fence: Fence) -> Call:
    return lambda conn: attempts.fail(conn, fence, "no", class_="permanent")  # type: ignore[arg-type]


def cancel(execution_id: ExecutionId) -> Call:
    return lambda conn: executions.cancel(conn, execution_id)


ENDS: dict[str, Callable[[Fence], Call]] = {
    "complete": complete,
    "fail": fail,
    "cancel": lambda fence: cancel(fence.execution_id),
}


@pytest.mark.parametrize(("first", "second"), [*permutations(ENDS, 2), ("complete", "complete"), ("fail", "fail")])
async def test_two_upstreams_that_end_at_the_same_time_fire_their_child_once(
    race: Race, given: Given, first: str, second: str
) -> None:
    """Flows are locked before tickets, so that concurrent ends wait for each other without deadlock."""
    flow = await graph(given.conn, c="a b")
    one, two = (await flow.claim("a")).fence, (await flow.claim("b")).fence

    assert not isinstance(await race.waits(ENDS[first](one), ENDS[second](two)), BaseException)
    fired = [kind for kind in await given.events(flow["c"]) if kind.startswith("edge_group")]
    good = first == second == "complete"
    assert fired == ["edge_group_satisfied" if good else "edge_group_impossible"]
    assert await flow.state("c") == ("waiting" if good else "skipped")


async def test_upstreams_of_the_same_members_that_end_together_do_not_deadlock(given: Given, connect: Connect) -> None:
    """Flows are locked first, then tickets in key order."""
    names = [f"p{number}" for number in range(8)]
    flow = await graph(given.conn, x=" ".join(names), y=" ".join(reversed(names)))
    fences = [(await flow.claim(name)).fence for name in names]
    connections = [await connect() for _ in fences]

    await asyncio.gather(*(attempts.complete(conn, fence) for conn, fence in zip(connections, fences, strict=True)))
    assert (await flow.state("x"), await flow.state("y")) == ("waiting", "waiting")
    assert (await given.events()).count("edge_group_satisfied") == 2


async def test_batches_that_end_members_of_the_same_flows_do_not_deadlock(given: Given, connect: Connect) -> None:
    made = [await graph(given.conn, c="a b") for _ in range(5)]
    firsts = [(await flow.claim("a")).fence for flow in made]
    seconds = [(await flow.claim("b")).fence for flow in made]
    one, two = await connect(), await connect()
    await asyncio.gather(
        attempts.complete_many(one, [Completion(fence=fence) for fence in firsts]),
        attempts.complete_many(two, [Completion(fence=fence) for fence in reversed(seconds)]),
    )
    assert [await flow.state("c") for flow in made] == ["waiting"] * 5


async def test_an_edge_that_comes_while_its_upstream_ends_is_settled_by_that_end(race: Race, given: Given) -> None:
    """Both lock the flow, so that the edge cannot miss the end of its upstream."""
    flow = await graph(given.conn, "a", "b")
    fence = (await flow.claim("a")).fence
    edge = await race.waits(complete(fence), lambda conn: flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"]))

    assert edge.unsatisfied == 0
    assert await flow.state("b") == "waiting"


async def test_an_end_waits_for_the_edge_that_is_being_added(race: Race, given: Given) -> None:
    flow = await graph(given.conn, "a", "b")
    fence = (await flow.claim("a")).fence
    await race.waits(lambda conn: flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"]), complete(fence))

    assert await flow.state("b") == "waiting"


async def test_a_member_cancelled_with_its_flow_cannot_be_completed(race: Race, given: Given) -> None:
    flow = await graph(given.conn, b="a")
    fence = (await flow.claim("a")).fence
    refusal = await race.waits(lambda conn: flows.cancel_flow(conn, flow.flow_id), complete(fence))

    assert isinstance(refusal, errors.ExecutionNotActive)
    assert await flow.states() == {"a": "cancelled", "b": "cancelled"}


async def test_a_member_that_has_completed_is_not_cancelled_with_its_flow(race: Race, given: Given) -> None:
    flow = await graph(given.conn, b="a")
    fence = (await flow.claim("a")).fence
    answer = await race.waits(complete(fence), lambda conn: flows.cancel_flow(conn, flow.flow_id))

    assert answer.count == 1
    assert await flow.states() == {"a": "completed", "b": "cancelled"}


async def running(given: Given, flow: Graph) -> Claim:
    """A running execution outside of the flow, but in its partition."""
    execution_id = mint_execution_id(beside=flow.flow_id)
    await given.submitted(execution_id=execution_id, lane="solo")
    [claim] = await claims.claim(given.conn, "pool", instance="pool-1", lanes=["solo"])
    flow.members["solo"] = execution_id
    return claim


async def test_an_execution_that_joins_a_flow_while_it_ends_joins_as_ended(race: Race, given: Given) -> None:
    flow = await graph(given.conn)
    claim = await running(given, flow)
    added = await race.waits(
        complete(claim.fence), lambda conn: flows.add_execution(conn, flow.flow_id, claim.execution_id)
    )

    assert added.outcome == "added"
    await flow.add("b")
    await flow.link("solo", "b")
    assert await flow.state("b") == "waiting"


async def test_an_end_that_waited_for_the_execution_to_join_settles_the_added_edges(race: Race, given: Given) -> None:
    flow = await graph(given.conn, "b")
    claim = await running(given, flow)

    async def join(conn: Connection) -> None:
        await flows.add_execution(conn, flow.flow_id, claim.execution_id)
        await flows.add_edge(conn, flow.flow_id, claim.execution_id, flow["b"])

    assert not isinstance(await race.waits(join, complete(claim.fence)), BaseException)
    assert await flow.state("b") == "waiting"


async def test_joining_ending_and_cancelling_concurrently_do_not_deadlock(given: Given, connect: Connect) -> None:
    flow = await graph(given.conn, "b")
    claim = await running(given, flow)
    one, two, three = await connect(), await connect(), await connect()
    async with one.transaction():
        await flows.add_execution(one, flow.flow_id, claim.execution_id)
        await flows.add_edge(one, flow.flow_id, claim.execution_id, flow["b"])
        ending = asyncio.ensure_future(attempts.complete(two, claim.fence))
        await blocked(given, two, ending)
        cancelling = asyncio.ensure_future(flows.cancel_flow(three, flow.flow_id))
        await blocked(given, three, cancelling)
    ended, cancelled = await asyncio.gather(ending, cancelling, return_exceptions=True)

    assert not isinstance(cancelled, BaseException)
    assert ended is not None
    states = await flow.states()
    assert states["b"] == "cancelled"
    lost = isinstance(ended, errors.ExecutionNotActive | errors.RowLocked)
    assert states["solo"] == ("cancelled" if lost else "completed")


async def test_the_end_of_an_execution_that_joined_a_flow_while_it_ran_locks_the_flow_first(
    given: Given, connect: Connect
) -> None:
    """The claim knows of no flow. If the end locked the ticket first, the cancellation would deadlock with it."""
    flow = await graph(given.conn, "b")
    claim = await running(given, flow)
    await flows.add_execution(given.conn, flow.flow_id, claim.execution_id)
    one, two = await connect(), await connect()
    async with one.transaction():
        await flows.add_edge(one, flow.flow_id, claim.execution_id, flow["b"])
        ending = asyncio.ensure_future(attempts.complete(two, claim.fence))
        await blocked(given, two, ending)
        await one.execute("set local lock_timeout = '100ms'")
        await executions.cancel(one, claim.execution_id)

    with pytest.raises(errors.ExecutionNotActive):
        await ending
    assert await flow.states() == {"b": "skipped", "solo": "cancelled"}


async def test_a_replay_that_waited_for_its_execution_to_join_a_flow_locks_the_flow(
    given: Given, connect: Connect
) -> None:
    """It looked for a flow before there was one. Without the lock, a new edge would count the end that it takes back."""
    flow = await graph(given.conn, "b")
    claim = await running(given, flow)
    await attempts.complete(given.conn, claim.fence)
    joining, replaying, linking = await connect(), await connect(), await connect()
    async with replaying.transaction():
        async with joining.transaction():
            await flows.add_execution(joining, flow.flow_id, claim.execution_id)
            replay = asyncio.ensure_future(executions.replay(replaying, claim.execution_id, by="ops"))
            await blocked(given, replaying, replay)
        await replay
        link = asyncio.ensure_future(flows.add_edge(linking, flow.flow_id, claim.execution_id, flow["b"]))
        await blocked(given, linking, link)
    await link

    assert await flow.state("b") == "waiting_dependencies"


@pytest.mark.parametrize("wait", [True, False])
async def test_an_end_that_holds_its_ticket_does_not_wait_for_a_flow(
    given: Given, connect: Connect, wait: bool
) -> None:
    """As merged calls end an execution that joined a flow after its claim: they send the flows of the claims."""
    flow = await graph(given.conn)
    claim = await running(given, flow)
    await flows.add_execution(given.conn, flow.flow_id, claim.execution_id)
    other = await connect()
    async with other.transaction():
        await flow_locked(other, flow)
        async with asyncio.timeout(10):
            with pytest.raises(errors.RowLocked):
                await call.rows(given.conn, "complete", **calls.fence_columns([claim.fence]), flows=[], wait=wait)

    assert await flow.state("solo") == "active"


async def test_a_sweep_ends_no_members_of_a_locked_flow(race: Race, given: Given) -> None:
    flow = await graph(given.conn, "b")
    await flow.add("a", policy={"max_reclaim_count": 0})
    await flow.link("a", "b")
    await flow.claim("a")
    await given.submitted(lane="solo")
    await claims.claim(given.conn, "pool", instance="pool-1", lanes=["solo"])
    await given.time_passes(minutes=1)

    swept = await race.passes(lambda conn: flow_locked(conn, flow), claims.expire_leases)
    assert swept.moved == 1
    assert (await claims.expire_leases(given.conn)).moved == 1


async def flow_locked(conn: Connection, flow: Graph) -> None:
    await conn.execute("select from flowfabric.flows where id = $1 for update", flow.flow_id.uuid)


async def test_a_satisfied_any_of_group_does_not_deadlock_with_lease_renewals(given: Given, connect: Connect) -> None:
    flow = await graph(given.conn, "a", "b", "c", "d")
    await flow.group("d", kind="any_of")
    for name in "abc":
        await flow.link(name, "d")
    held = sorted([await flow.claim(name) for name in "abc"], key=lambda claim: claim.execution_id)
    one, two = await connect(), await connect()
    async with one.transaction():
        await claims.renew(one, held[0].fence)
        ending = asyncio.ensure_future(attempts.complete(two, held[-1].fence))
        await blocked(given, two, ending)
        await claims.renew(one, held[1].fence)
        async with asyncio.timeout(10):
            await attempts.delay(one, held[1].fence)
    await ending
    assert await flow.state("d") == "waiting"
