"""Edge groups: how many upstreams must succeed, and what becomes of the others."""

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, executions
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given


async def group(conn: Connection, upstreams: str, **policy: object) -> Graph:
    """A member d that waits for upstreams a, b, … by a rule."""
    flow = await graph(conn, *upstreams, "d")
    await flow.group("d", **policy)
    for name in upstreams:
        await flow.link(name, "d")
    return flow


async def test_the_first_success_is_enough_and_the_others_are_cancelled(conn: Connection, given: Given) -> None:
    """Behaviour 93."""
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


async def test_one_that_another_child_waits_for_is_spared(conn: Connection) -> None:
    """Behaviour 93."""
    flow = await group(conn, "abc", kind="any_of")
    await flow.add("e")
    await flow.link("b", "e")
    await flow.complete("a")

    assert await flow.states() == {
        "a": "completed",
        "b": "waiting",
        "c": "cancelled",
        "d": "waiting",
        "e": "waiting_children",
    }


async def test_others_may_run_on_and_fire_nothing_again(conn: Connection, given: Given) -> None:
    """Behaviour 93. Pitfall P50."""
    flow = await group(conn, "ab", kind="any_of", on_satisfied="let_run")
    await flow.complete("a")
    claim = await flow.claim("d")
    await flow.complete("b")

    assert await flow.states() == {"a": "completed", "b": "completed", "d": "active"}
    await attempts.complete(conn, claim.fence)
    assert (await given.events(flow["d"])).count("edge_group_satisfied") == 1


async def test_a_quorum_of_two_in_three_survives_one_failure(conn: Connection) -> None:
    """Behaviour 94."""
    flow = await group(conn, "abc", kind="quorum", k=2)
    await flow.complete("a")
    await flow.fail("b")
    assert await flow.state("d") == "waiting_children"
    await flow.complete("c")

    assert await flow.state("d") == "waiting"


async def test_a_quorum_of_two_in_three_does_not_survive_two(conn: Connection, given: Given) -> None:
    """Behaviour 94."""
    flow = await group(conn, "abc", kind="quorum", k=2)
    await flow.fail("a")
    await flow.fail("b")

    assert await flow.states() == {"a": "failed", "b": "failed", "c": "cancelled", "d": "skipped"}
    assert (await given.event("execution_cancelled", flow["c"]))["reason"] == "sibling_quorum_impossible"


async def test_a_quorum_with_too_few_edges_is_still_being_built(conn: Connection) -> None:
    """Behaviour 94. Pitfall P52."""
    flow = await group(conn, "ab", kind="quorum", k=2)
    other = await group(conn, "a", kind="quorum", k=2)
    await flow.fail("a")
    await other.complete("a")

    assert await flow.state("d") == "skipped"
    assert await other.state("d") == "waiting_children"
    await other.add("b")
    await other.link("b", "d")
    await other.complete("b")
    assert await other.state("d") == "waiting"


async def test_the_edge_that_completes_a_lost_quorum_decides_it(conn: Connection) -> None:
    flow = await group(conn, "a", kind="quorum", k=2)
    await flow.fail("a")
    assert await flow.state("d") == "waiting_children"
    await flow.add("b")
    await flow.link("b", "d")

    assert await flow.state("d") == "skipped"


@pytest.mark.parametrize(("end", "states"), [("complete", "waiting"), ("fail", "skipped")])
async def test_a_diamond_works_on_both_paths(conn: Connection, end: str, states: str) -> None:
    """Behaviour 97."""
    flow = await graph(conn, b="a", c="a", d="b c")
    await getattr(flow, end)("a")
    assert (await flow.state("b"), await flow.state("c")) == (states, states)
    if end == "complete":
        await flow.complete("b")
        assert await flow.state("d") == "waiting_children"
        await flow.complete("c")

    assert await flow.state("d") == states


async def test_a_cancelled_sibling_takes_what_hangs_on_it_along(conn: Connection) -> None:
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
    assert await flow.state("race") == "waiting_children"
    await executions.cancel(conn, flow["y"])

    assert await flow.states() == {
        "a": "failed",
        "b": "failed",
        "x": "cancelled",
        "y": "cancelled",
        "skipped": "skipped",
        "race": "skipped",
    }
