"""Follow ends: the lanes and executions to notify after members have ended."""

from flowfabric.engine import executions, flows
from flowfabric.ids import mint_execution_id
from flowfabric.model import Followed
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given


async def followed(flow: Graph, *names: str) -> tuple[set[str], set[str]]:
    """The lanes with claimable work after these members ended, and the names of the members that ended with them."""
    found = await flows.follow_ends(flow.conn, [flow[name] for name in names])
    known = {execution_id: name for name, execution_id in flow.members.items()}
    assert len(set(found.ended)) == len(found.ended)
    return set(found.lanes), {known[each] for each in found.ended}


async def test_the_lanes_of_members_that_became_claimable_are_found(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="a", d="a x")
    await flow.complete("a")

    assert await followed(flow, "a") == ({"b", "c"}, set())


async def test_skipped_members_are_found_at_any_depth(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="b", d="b c", e="x")
    await flow.fail("a")

    assert await followed(flow, "a") == (set(), {"b", "c", "d"})


async def test_cancelled_siblings_are_found(conn: Connection) -> None:
    flow = await graph(conn, "a", "b", "c", "best")
    await flow.group("best", kind="any_of")
    for name in "abc":
        await flow.link(name, "best")
    await flow.complete("b")

    assert await followed(flow, "b") == ({"best"}, {"a", "c"})


async def test_members_that_ended_earlier_are_not_reported_again(conn: Connection, given: Given) -> None:
    flow = await graph(conn, c="a b")
    await flow.fail("a")
    await given.time_passes(seconds=1)
    await flow.complete("b")

    assert await followed(flow, "b") == (set(), set())
    assert await followed(flow, "a", "b") == (set(), {"c"})


async def test_executions_outside_of_flows_are_ignored(conn: Connection, given: Given) -> None:
    alone, waiting = await given.cancelled(), await given.submitted()

    assert await flows.follow_ends(conn, [alone, waiting, mint_execution_id()]) == Followed()
    assert await flows.follow_ends(conn, []) == Followed()


async def test_a_member_that_was_replayed_since_is_not_reported(conn: Connection) -> None:
    flow = await graph(conn, b="a")
    await flow.fail("a")
    await executions.replay(conn, flow["b"], by="ops")

    assert await followed(flow, "a") == (set(), set())
