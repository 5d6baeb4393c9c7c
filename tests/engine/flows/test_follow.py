"""Following: what ends have brought about, for whoever tells others of it."""

from flowfabric.engine import executions, flows
from flowfabric.ids import mint_execution_id
from flowfabric.model import Followed
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given


async def came_of(flow: Graph, *names: str) -> tuple[set[str], set[str]]:
    """The lanes with work after the ends of these members, and the names of those that ended with them."""
    followed = await flows.follow_ends(flow.conn, [flow[name] for name in names])
    known = {str(execution_id): name for name, execution_id in flow.members.items()}
    assert len(set(followed.ended)) == len(followed.ended)
    return set(followed.lanes), {known[text] for text in followed.ended}


async def test_who_may_run_after_an_end_is_found_by_the_lane(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="a", d="a x")
    await flow.complete("a")

    assert await came_of(flow, "a") == ({"b", "c"}, set())


async def test_all_who_were_skipped_are_found_however_far(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="b", d="b c", e="x")
    await flow.fail("a")

    assert await came_of(flow, "a") == (set(), {"b", "c", "d"})


async def test_those_no_longer_wanted_are_found(conn: Connection) -> None:
    flow = await graph(conn, "a", "b", "c", "best")
    await flow.group("best", kind="any_of")
    for name in "abc":
        await flow.link(name, "best")
    await flow.complete("b")

    assert await came_of(flow, "b") == ({"best"}, {"a", "c"})


async def test_what_ended_before_is_not_told_again(conn: Connection, given: Given) -> None:
    flow = await graph(conn, c="a b")
    await flow.fail("a")
    await given.time_passes(seconds=1)
    await flow.complete("b")

    assert await came_of(flow, "b") == (set(), set())
    assert await came_of(flow, "a", "b") == (set(), {"c"})


async def test_ends_outside_of_flows_and_none_at_all_bring_nothing_about(conn: Connection, given: Given) -> None:
    alone, waiting = await given.cancelled(), await given.submitted()

    assert await flows.follow_ends(conn, [alone, waiting, mint_execution_id()]) == Followed()
    assert await flows.follow_ends(conn, []) == Followed()


async def test_a_member_that_was_replayed_since_has_not_ended(conn: Connection) -> None:
    flow = await graph(conn, b="a")
    await flow.fail("a")
    await executions.replay(conn, flow["b"], by="ops")

    assert await came_of(flow, "a") == (set(), set())
