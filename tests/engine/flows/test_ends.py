"""What an end returns: the lanes where members became claimable, and the members that ended with it."""

from collections.abc import Iterable

import pytest

from flowfabric.engine import attempts, executions, flows
from flowfabric.ids import ExecutionId
from flowfabric.model import AddedEdge, Completed, Completion, Failed, FailureClass, FailureReport, Moved
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given

PERMANENT = FailureClass.PERMANENT


def names(flow: Graph, ended: Iterable[ExecutionId]) -> list[str]:
    known = {execution_id: name for name, execution_id in flow.members.items()}
    return sorted(known[each] for each in ended)


async def complete(flow: Graph, name: str) -> Completed:
    return await attempts.complete(flow.conn, (await flow.claim(name)).fence)


async def fail(flow: Graph, name: str) -> Failed:
    return await attempts.fail(flow.conn, (await flow.claim(name)).fence, "no", class_=PERMANENT)


async def test_a_completion_returns_the_lanes_of_members_that_became_claimable(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="a", d="a x")

    done = await complete(flow, "a")
    assert (sorted(done.lanes), names(flow, done.ended)) == (["b", "c"], [])


async def test_a_completion_returns_no_lane_of_a_member_that_is_delayed(given: Given, conn: Connection) -> None:
    flow = await graph(conn, c="a")
    await given.rows("update flowfabric.tickets set due_at = now() + interval '1 hour' where lane = 'c'")

    done = await complete(flow, "a")
    assert (list(done.lanes), await flow.state("c")) == ([], "delayed")


async def test_a_failure_returns_the_members_that_are_skipped_at_any_depth(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="b", d="b c", e="x")

    assert names(flow, (await fail(flow, "a")).ended) == ["b", "c", "d"]


async def test_a_completion_returns_the_siblings_that_it_cancels(conn: Connection) -> None:
    flow = await graph(conn, "a", "b", "c", "best")
    await flow.group("best", kind="any_of")
    for name in "abc":
        await flow.link(name, "best")

    done = await complete(flow, "b")
    assert (done.lanes, names(flow, done.ended)) == (["best"], ["a", "c"])


async def test_members_that_ended_earlier_are_not_returned_again(conn: Connection) -> None:
    flow = await graph(conn, c="a b")

    assert names(flow, (await fail(flow, "a")).ended) == ["c"]
    assert await complete(flow, "b") == Completed()


async def test_an_end_outside_of_flows_returns_nothing_more(given: Given, conn: Connection) -> None:
    one, two, three = [await given.claimed() for _ in range(3)]

    assert await attempts.complete(conn, one.fence) == Completed()
    assert await attempts.fail(conn, two.fence, "no", class_=PERMANENT) == Failed(outcome="failed")
    assert (await executions.cancel(conn, three.execution_id)).ended == ()


async def test_the_first_of_many_completions_returns_what_all_of_them_changed(given: Given, conn: Connection) -> None:
    flow = await graph(conn, b="a", d="c")
    fences = [(await given.claimed()).fence, (await flow.claim("a")).fence, (await flow.claim("c")).fence]

    first, *others = await attempts.complete_many(conn, [Completion(fence=fence) for fence in fences])
    assert isinstance(first, Completed)
    assert (sorted(first.lanes), others) == (["b", "d"], [Completed(), Completed()])


async def test_the_first_of_many_failures_that_ended_returns_all_that_are_skipped(
    given: Given, conn: Connection
) -> None:
    flow = await graph(conn, b="a", d="c")
    retried = (await given.claimed(policy={"retry": {}})).fence
    reports = [
        FailureReport(fence=retried, reason="no"),
        *[FailureReport(fence=(await flow.claim(name)).fence, reason="no", class_=PERMANENT) for name in "ac"],
    ]

    first, second, third = await attempts.fail_many(conn, reports)
    assert isinstance(first, Failed)
    assert isinstance(second, Failed)
    assert (first.outcome, first.ended) == ("retry_scheduled", ())
    assert names(flow, second.ended) == ["b", "d"]
    assert third == Failed(outcome="failed")


@pytest.mark.parametrize(("outcome", "lanes", "ended"), [("success", ["b"], []), ("failed", [], ["b", "c"])])
async def test_an_override_returns_what_it_changed(
    conn: Connection, outcome: str, lanes: list[str], ended: list[str]
) -> None:
    flow = await graph(conn, b="a", c="b")

    async def override() -> Moved:
        return await executions.override(conn, flow["a"], outcome, reason="x", by="ops")  # type: ignore[arg-type]

    first, again = await override(), await override()
    assert (list(first.lanes), names(flow, first.ended)) == (lanes, ended)
    assert (again.public_state, again.lanes, again.ended) == (first.public_state, (), ())


async def test_a_cancel_returns_the_members_that_it_skips_once(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="b")

    assert names(flow, (await executions.cancel(conn, flow["a"])).ended) == ["b", "c"]
    assert (await executions.cancel(conn, flow["a"])).ended == ()


async def test_an_edge_from_a_member_that_has_ended_returns_what_it_changed(conn: Connection) -> None:
    flow = await graph(conn, "done", "failed", "b", "c", "d")
    await flow.complete("done")
    await flow.fail("failed")
    await flow.link("c", "d")

    async def add(upstream: str, downstream: str) -> AddedEdge:
        return await flows.add_edge(conn, flow.flow_id, flow[upstream], flow[downstream])

    assert (await add("done", "b")).lanes == ["b"]
    assert names(flow, (await add("failed", "c")).ended) == ["c", "d"]
