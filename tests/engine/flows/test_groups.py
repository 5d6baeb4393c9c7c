"""Edge groups: how many upstreams must succeed, and what happens to the others."""

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, executions
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given


async def group(conn: Connection, upstreams: str, **policy: object) -> Graph:
    """A member d that waits for upstreams a, b, … with a policy."""
    flow = await graph(conn, *upstreams, "d")
    await flow.group("d", **policy)
    for name in upstreams:
        await flow.link(name, "d")
    return flow


async def test_the_first_success_is_enough_and_the_others_are_cancelled(conn: Connection, given: Given) -> None:
    flow = await group(conn, "abc", kind="any_of")
    running = await flow.claim("b")
    await flow.complete("a")

    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "cancelled", "d": "waiting"}
    for name in "bc":
        cancelled = await given.event("execution_cancelled", flow[name])
        assert (cancelled["source"], cancelled["reason"]) == ("flow_cascade", "sibling_quorum_satisfied")
    assert (await given.events(flow["d"])).count("edge_group_satisfied") == 1
    with pytest.raises(errors.ExecutionNotActive):
        await attempts.complete(conn, running.fence)


async def test_an_upstream_that_another_member_waits_for_is_not_cancelled(conn: Connection) -> None:
    flow = await group(conn, "abc", kind="any_of")
    await flow.add("e")
    await flow.link("b", "e")
    await flow.complete("a")

    assert await flow.states() == {
        "a": "completed",
        "b": "waiting",
        "c": "cancelled",
        "d": "waiting",
        "e": "waiting_dependencies",
    }


async def test_with_let_run_the_others_finish_and_the_group_is_not_satisfied_again(
    conn: Connection, given: Given
) -> None:
    """A group leaves pending once; later ends only update its counts."""
    flow = await group(conn, "ab", kind="any_of", on_satisfied="let_run")
    await flow.complete("a")
    claim = await flow.claim("d")
    await flow.complete("b")

    assert await flow.states() == {"a": "completed", "b": "completed", "d": "active"}
    await attempts.complete(conn, claim.fence)
    assert (await given.events(flow["d"])).count("edge_group_satisfied") == 1


async def test_a_quorum_of_two_in_three_survives_one_failure(conn: Connection) -> None:
    flow = await group(conn, "abc", kind="quorum", k=2)
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("d") == "waiting_dependencies"
    await flow.complete("c")

    assert await flow.state("d") == "waiting"


async def test_a_quorum_of_two_in_three_does_not_survive_two_failures(conn: Connection, given: Given) -> None:
    flow = await group(conn, "abc", kind="quorum", k=2)
    await flow.fail("a")
    await flow.fail("b")

    assert await flow.states() == {"a": "failed", "b": "failed", "c": "cancelled", "d": "skipped"}
    assert (await given.event("execution_cancelled", flow["c"]))["reason"] == "sibling_quorum_impossible"


async def test_a_quorum_with_too_few_edges_stays_pending(conn: Connection) -> None:
    """While a quorum has fewer edges than k it is under construction, not impossible."""
    flow = await group(conn, "ab", kind="quorum", k=2)
    other = await group(conn, "a", kind="quorum", k=2)
    await flow.fail("a")
    await other.complete("a")

    assert await flow.state("d") == "skipped"
    assert await other.state("d") == "waiting_dependencies"
    await other.add("b")
    await other.link("b", "d")
    await other.complete("b")
    assert await other.state("d") == "waiting"


async def test_the_edge_that_completes_an_impossible_quorum_skips_the_member(conn: Connection) -> None:
    flow = await group(conn, "a", kind="quorum", k=2)
    await flow.fail("a")
    assert await flow.state("d") == "waiting_dependencies"
    await flow.add("b")
    await flow.link("b", "d")

    assert await flow.state("d") == "skipped"


@pytest.mark.parametrize(("end", "states"), [("complete", "waiting"), ("fail", "skipped")])
async def test_a_diamond_works_on_both_paths(conn: Connection, end: str, states: str) -> None:
    flow = await graph(conn, b="a", c="a", d="b c")
    await getattr(flow, end)("a")
    assert (await flow.state("b"), await flow.state("c")) == (states, states)
    if end == "complete":
        await flow.complete("b")
        assert await flow.state("d") == "waiting_dependencies"
        await flow.complete("c")

    assert await flow.state("d") == states


async def test_a_member_added_downstream_of_a_cancelled_sibling_is_skipped(conn: Connection) -> None:
    flow = await group(conn, "ab", kind="any_of")
    await flow.add("e")
    await flow.complete("a")
    assert await flow.state("b") == "cancelled"
    await flow.link("b", "e")

    assert await flow.state("e") == "skipped"


async def test_a_cascade_goes_through_groups_of_every_kind(conn: Connection) -> None:
    flow = await graph(conn, "a", "b", "x", "y", skipped="a")
    await flow.add("race")
    await flow.group("race", kind="quorum", k=2)
    for name in ("skipped", "x", "y"):
        await flow.link(name, "race")
    await flow.fail("b")
    await flow.claim("x")
    await flow.fail("a")
    assert await flow.state("race") == "waiting_dependencies"
    await executions.cancel(conn, flow["y"])

    assert await flow.states() == {
        "a": "failed",
        "b": "failed",
        "x": "cancelled",
        "y": "cancelled",
        "skipped": "skipped",
        "race": "skipped",
    }
