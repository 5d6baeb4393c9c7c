"""Edges: dependencies between members."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric import errors
from flowfabric.engine import executions, flows, holds
from flowfabric.ids import mint_execution_id, mint_flow_id
from flowfabric.model import EdgePolicy
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.engine.flows.test_build import counts
from tests.given import Given

Act = Callable[[Graph], Awaitable[object]]


async def test_an_edge_raises_the_revision_and_returns_the_number_of_pending_upstreams(
    conn: Connection, given: Given
) -> None:
    flow = await graph(conn, "a", "b", "c")
    edge_id = uuid4()

    first = await flows.add_edge(conn, flow.flow_id, flow["a"], flow["c"], edge_id=edge_id, expected_revision=3)
    second = await flows.add_edge(conn, flow.flow_id, flow["b"], flow["c"])
    assert (first.outcome, first.edge_id, first.revision, first.unsatisfied) == ("added", edge_id, 4, 1)
    assert (second.revision, second.unsatisfied) == (5, 2)
    assert await counts(given) == (5, 3, 2)


async def test_an_edge_is_added_once(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a", "b")
    first = await flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"], pass_as="x")
    async with given.nothing_changes():
        again = await flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"], pass_as="x", expected_revision=2)
        assert (again.outcome, again.edge_id) == ("already_applied", first.edge_id)
        others: list[dict[str, object]] = [{"pass_as": "y"}, {"pass_as": "x", "edge_id": uuid4()}]
        for other in others:
            with pytest.raises(errors.DependencyAlreadyExists) as refused:
                await flow.link("a", "b", **other)
            assert refused.value.fields == {"edge_id": str(first.edge_id)}


REFUSED: dict[str, tuple[Act, type[errors.FlowFabricError], object]] = {
    "itself": (lambda flow: flow.link("a", "a"), errors.SelfReferencingEdge, None),
    "cycle": (lambda flow: flow.link("c", "a"), errors.CycleDetected, None),
    "revision": (lambda flow: flow.link("a", "d", expected_revision=1), errors.StaleGraphRevision, None),
    "stranger": (
        lambda flow: flows.add_edge(flow.conn, flow.flow_id, flow["a"], mint_execution_id(beside=flow.flow_id)),
        errors.InvalidDependency,
        "not_a_member",
    ),
    "elsewhere": (
        lambda flow: flows.add_edge(flow.conn, flow.flow_id, mint_execution_id(), flow["a"]),
        errors.InvalidDependency,
        "not_a_member",
    ),
    "payload": (lambda flow: flow.link("d", "b", pass_as="payload"), errors.InvalidDependency, "payload_taken"),
    "name": (lambda flow: flow.link("d", "c", pass_as="x"), errors.InvalidDependency, "name_taken"),
    "empty name": (lambda flow: flow.link("d", "c", pass_as=""), errors.InvalidName, None),
    "NUL": (lambda flow: flow.link("d", "c", pass_as="a\0"), errors.InvalidText, None),
    "no flow": (
        lambda flow: flows.add_edge(flow.conn, mint_flow_id(), flow["a"], flow["d"]),
        errors.FlowNotFound,
        None,
    ),
    "k": (lambda flow: flow.group("d", kind="quorum", k=0), errors.InvalidEdgeGroup, "k_zero"),
    "no k": (lambda flow: flow.group("d", kind="quorum"), errors.InvalidEdgeGroup, "k_zero"),
    "kind": (lambda flow: flow.group("d", kind="some_of"), errors.InvalidEdgeGroup, "unknown_kind"),
    "field": (lambda flow: flow.group("d", kind="all_of", k=1), errors.InvalidEdgeGroup, "unknown_field"),
    "fixed": (lambda flow: flow.group("b", kind="any_of"), errors.EdgeGroupAlreadyFixed, None),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_an_invalid_edge_or_group_is_refused(conn: Connection, given: Given, what: str) -> None:
    act, refusal, cause = REFUSED[what]
    flow = await graph(conn, "a", "b", "c", "d")
    await flow.link("a", "b", pass_as="payload")
    await flow.link("b", "c", pass_as="x")
    async with given.nothing_changes():
        before = await counts(given)
        with pytest.raises(refusal) as refused:
            await act(flow)
        assert refused.value.fields.get("cause") == cause
        assert await counts(given) == before


async def test_a_cycle_of_any_length_is_found(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a", "b")
    await chain(given, flow, 1_498)

    with pytest.raises(errors.CycleDetected):
        await flow.link("b", "a")
    assert (await flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"])).outcome == "added"


async def chain(given: Given, flow: Graph, between: int) -> None:
    """Make b depend on a through `between` others, which exist only as ends of edges."""
    await given.rows(
        "with ids as (select i, case i when 0 then $3::uuid when $5::int + 1 then $4::uuid"
        " else gen_random_uuid() end as id from generate_series(0, $5::int + 1) i)"
        " insert into flowfabric.flow_edges (partition, flow, upstream, downstream, id)"
        " select $1, $2, a.id, b.id, gen_random_uuid() from ids a join ids b on b.i = a.i + 1",
        flow.flow_id.partition,
        flow.flow_id.uuid,
        flow["a"].uuid,
        flow["b"].uuid,
        between,
    )


async def test_a_member_that_has_started_takes_no_more_edges(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a", "b", "c")
    await flow.claim("b")
    await flow.complete("c")

    async with given.nothing_changes():
        for name in "bc":
            with pytest.raises(errors.ExecutionAlreadyStarted):
                await flow.link("a", name)


@pytest.mark.parametrize(("end", "state"), [("complete", "waiting"), ("fail", "skipped")])
async def test_an_edge_from_an_ended_upstream_is_settled_immediately(conn: Connection, end: str, state: str) -> None:
    """Otherwise the downstream member would wait forever."""
    flow = await graph(conn, "a", "b")
    await getattr(flow, end)("a")

    edge = await flows.add_edge(conn, flow.flow_id, flow["a"], flow["b"])
    assert edge.unsatisfied == 0
    assert await flow.state("b") == state


async def test_another_edge_makes_a_released_member_wait_again(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "c", b="a")
    await flow.complete("a")
    assert await flow.state("b") == "waiting"

    await flow.link("c", "b")
    assert await flow.state("b") == "waiting_dependencies"
    await flow.complete("c")
    assert await flow.state("b") == "waiting"
    assert (await given.events(flow["b"])).count("edge_group_satisfied") == 2


async def test_a_settled_group_takes_no_more_edges(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a", "b", "c", "d")
    await flow.group("b", kind="any_of")
    await flow.link("a", "b")
    await flow.complete("a")
    await flow.link("c", "d")
    await flow.fail("c")

    async with given.nothing_changes():
        for downstream in "bd":
            with pytest.raises(errors.EdgeGroupSettled):
                await flow.link("c" if downstream == "b" else "a", downstream)


async def test_the_policy_of_a_group_is_set_once(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a")
    rule = EdgePolicy(kind="quorum", k=2, on_satisfied="let_run")

    assert await flows.set_edge_group(conn, flow.flow_id, flow["a"], rule) == "set"
    async with given.nothing_changes():
        assert await flows.set_edge_group(conn, flow.flow_id, flow["a"], rule) == "already_set"
        with pytest.raises(errors.EdgeGroupAlreadyFixed) as refused:
            await flow.group("a", kind="any_of")
    assert refused.value.fields == {"policy": {"kind": "quorum", "k": 2, "on_satisfied": "let_run"}}


async def test_a_delay_is_kept_when_its_group_is_satisfied_early(conn: Connection, given: Given) -> None:
    """Satisfying a group must not overwrite a due time in the future."""
    flow = await graph(conn, "a")
    await flow.add("b", delay=timedelta(hours=1))
    await flow.link("a", "b")
    assert await flow.state("b") == "waiting_dependencies"
    await flow.complete("a")

    assert await flow.state("b") == "delayed"
    await given.time_passes(hours=2)
    await flow.claim("b")


async def test_a_delay_is_over_when_its_group_is_satisfied_late(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a")
    await flow.add("b", delay=timedelta(hours=1))
    await flow.link("a", "b")
    await given.time_passes(hours=2)
    assert await flow.state("b") == "waiting_dependencies"

    await flow.complete("a")
    assert await flow.state("b") == "waiting"


async def test_a_member_that_was_held_waits_for_its_upstreams_again(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="a")
    for name in "bc":
        await holds.hold(conn, flow[name], by="ops")
    assert (await holds.unhold(conn, flow["b"], by="ops")).public_state == "waiting_dependencies"
    await flow.complete("a")

    assert (await executions.describe(conn, flow["c"])).state.eligibility_state == "blocked_by_operator"
    assert (await holds.unhold(conn, flow["c"], by="ops")).public_state == "waiting"


async def test_an_edge_from_an_ended_upstream_settles_no_other_edge_of_it(conn: Connection, given: Given) -> None:
    """A replayed member waits until its upstream is replayed too, whatever is added behind that upstream."""
    flow = await graph(conn, b="a")
    await flow.fail("a")
    await executions.replay(conn, flow["b"], by="ops")
    await flow.add("c")
    await flow.link("a", "c")

    assert await flow.states() == {"a": "failed", "b": "waiting_dependencies", "c": "skipped"}
    groups = await given.rows("select failed, total, state::text from flowfabric.edge_groups order by failed")
    assert [tuple(group.values()) for group in groups] == [(0, 1, "pending"), (1, 1, "impossible")]
