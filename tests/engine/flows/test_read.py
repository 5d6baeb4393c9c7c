"""Read flows."""

from datetime import timedelta

import pytest

from flowfabric import errors
from flowfabric.engine import executions, flows
from flowfabric.ids import mint_flow_id
from flowfabric.model import EdgePolicy, FlowState, Member
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import graph
from tests.given import Given, submission


async def state(conn: Connection, flow: object) -> FlowState:
    return (await flows.describe_flow(conn, flow.flow_id)).state  # type: ignore[attr-defined]


async def test_the_state_of_a_flow_follows_from_its_members(conn: Connection) -> None:
    flow = await graph(conn)
    assert await state(conn, flow) == "open"
    await flow.add("a")
    assert await state(conn, flow) == "open"
    await flow.add("b")
    await flow.link("a", "b")
    await flow.complete("a")
    claim = await flow.claim("b")
    assert (claim.execution_id, await state(conn, flow)) == (flow["b"], "running")
    await executions.cancel(conn, flow["b"])
    assert await state(conn, flow) == "failed"


async def test_a_flow_is_completed_when_all_members_are_and_blocked_when_none_can_run(conn: Connection) -> None:
    flow = await graph(conn, "a")
    await flow.complete("a")
    assert await state(conn, flow) == "completed"
    await flow.add("b", delay=timedelta(hours=1))
    assert await state(conn, flow) == "blocked"
    await flows.cancel_flow(conn, flow.flow_id)
    assert await state(conn, flow) == "cancelled"


async def test_counts_are_exact_at_five_thousand_members(conn: Connection, given: Given) -> None:
    many = [Member(name=str(number), submission=submission(lane="many")) for number in range(5_000)]
    made = await flows.submit_flow(conn, "report", many)
    await given.claim(lanes=["many"], take=7)

    described = await flows.describe_flow(conn, made.flow_id, limit=0)
    assert described.counts == {"waiting": 4_993, "active": 7}
    assert (described.node_count, described.state, described.members) == (5_000, "running", [])


async def test_a_description_pages_through_members_edges_and_groups(conn: Connection) -> None:
    flow = await graph(conn, "a", "b", "c")
    await flows.set_edge_group(conn, flow.flow_id, flow["c"], EdgePolicy(kind="quorum", k=1, on_satisfied="let_run"))
    await flow.link("a", "c", pass_as="x")
    await flow.link("b", "c")
    await flow.complete("a")

    first = await flows.describe_flow(conn, flow.flow_id, limit=2)
    second = await flows.describe_flow(conn, flow.flow_id, limit=2, cursor=first.next_cursor)
    assert [member.execution_id for member in [*first.members, *second.members]] == sorted(flow.members.values())
    assert second.next_cursor is None
    [group] = [*first.groups, *second.groups]
    assert (group.n, group.succeeded, group.running, group.state) == (2, 1, 1, "satisfied")
    assert group.policy == EdgePolicy(kind="quorum", k=1, on_satisfied="let_run")
    assert {(edge.upstream, edge.state, edge.pass_as) for edge in [*first.edges, *second.edges]} == {
        (flow["a"], "succeeded", "x"),
        (flow["b"], "pending", None),
    }


async def test_flows_are_listed_by_namespace_and_state_without_gaps(conn: Connection) -> None:
    made = {(await flows.create_flow(conn, "report", namespace="acme")).flow_id for _ in range(5)}
    other = await graph(conn, "a")
    await other.complete("a")

    seen, cursor = [], None
    while True:
        page = await flows.list_flows(conn, namespace="acme", limit=2, cursor=cursor)
        seen += [found.flow_id for found in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    [done] = (await flows.list_flows(conn, state="completed")).items
    assert done.flow_id == other.flow_id


async def test_invalid_reads_are_refused(conn: Connection) -> None:
    with pytest.raises(errors.FlowNotFound):
        await flows.describe_flow(conn, mint_flow_id())
    with pytest.raises(errors.InvalidBody):
        await flows.list_flows(conn, state="odd")
    with pytest.raises(errors.InvalidLimit):
        await flows.list_flows(conn, limit=-1)
    with pytest.raises(errors.InvalidCursor):
        await flows.list_flows(conn, cursor="x")


async def test_a_flow_is_tagged(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    for value, answer in [("acme", "set"), ("acme", "noop"), (None, "removed"), (None, "noop")]:
        assert await flows.set_flow_tag(conn, flow.flow_id, "billing.customer", value, by="ops") == answer

    with pytest.raises(errors.InvalidTagKey):
        await flows.set_flow_tag(conn, flow.flow_id, "", "x")
    with pytest.raises(errors.FlowNotFound):
        await flows.set_flow_tag(conn, mint_flow_id(), "a.b", "x")
    assert (await given.events()).count("tag_set") == 2


async def test_explain_names_the_upstreams_a_member_waits_for(conn: Connection) -> None:
    flow = await graph(conn, d="a b c")
    await flow.complete("a")
    said = (await executions.explain(conn, flow["d"])).sentence
    assert said.startswith("waits for 2 of 3 upstream executions: ")
    assert str(flow["b"]) in said

    await flow.fail("b")
    await executions.replay(conn, flow["d"], by="ops")
    said = (await executions.explain(conn, flow["d"])).sentence
    assert said.endswith(f"; {flow['b']} failed and must be replayed")


async def test_explain_names_a_quorum_with_too_few_edges(conn: Connection) -> None:
    flow = await graph(conn, "a", "b")
    await flow.group("b", kind="quorum", k=2)
    await flow.link("a", "b")

    said = await executions.explain(conn, flow["b"])
    assert "its quorum needs 2 and has 1; use add_edge" in said.sentence
    assert said.released_by == "add_edge"
