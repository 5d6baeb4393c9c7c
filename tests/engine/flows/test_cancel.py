"""Cancel flows."""

from collections.abc import Awaitable, Callable

import pytest

from flowfabric import errors
from flowfabric.engine import executions, flows, waits
from flowfabric.ids import mint_execution_id, mint_flow_id
from flowfabric.model import CancelPolicy, PublicState, Suspension
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given, submission


async def of_every_kind(conn: Connection) -> Graph:
    """Members that are completed, active, waiting and suspended, and members that depend on them."""
    flow = await graph(conn, "done", child="runs done", grandchild="child", other="waits suspended")
    await flow.complete("done")
    wish = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])
    await waits.suspend(conn, (await flow.claim("suspended")).fence, wish)
    await flow.claim("runs")
    return flow


async def test_all_members_end_cancelled_and_none_is_skipped(conn: Connection, given: Given) -> None:
    """Members end in one step, so that none is skipped because another was cancelled first."""
    flow = await of_every_kind(conn)

    answer = await flows.cancel_flow(conn, flow.flow_id, reason="not wanted", by="ops")
    assert (answer.outcome, answer.policy, answer.count) == ("cancelled", "cancel_all", 6)
    assert set(answer.members) == {flow[name] for name in flow.members if name != "done"}
    assert await flow.states() == {**dict.fromkeys(flow.members, "cancelled"), "done": "completed"}
    assert await given.count("tickets") == 0
    assert (await given.events()).count("execution_cancelled") == 6
    assert "execution_skipped" not in await given.events()
    assert await given.event("execution_cancelled", flow["child"]) == {
        "outcome": "cancelled",
        "attempt": 0,
        "epoch": 0,
        "reason": "not wanted",
        "source": "flow_cascade",
    }


async def test_cancel_pending_lets_running_members_finish(conn: Connection, given: Given) -> None:
    flow = await of_every_kind(conn)

    answer = await flows.cancel_flow(conn, flow.flow_id, policy=CancelPolicy.CANCEL_PENDING)
    assert answer.count == 5
    assert await flow.state("runs") == "active"
    await given.time_passes(hours=1)
    assert "execution_skipped" not in await given.events()


async def test_flow_only_ends_no_member_and_edges_still_settle(conn: Connection, given: Given) -> None:
    flow = await graph(conn, b="a")
    before = await flow.states()

    answer = await flows.cancel_flow(conn, flow.flow_id, policy="flow_only")
    assert (answer.count, answer.members, await flow.states()) == (0, (), before)
    await flow.complete("a")
    assert await flow.state("b") == "waiting"


async def test_a_repeated_cancel_returns_the_result_of_the_first(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a")
    first = await flows.cancel_flow(conn, flow.flow_id, reason="not wanted", by="ops", policy="cancel_pending")

    async with given.nothing_changes():
        again = await flows.cancel_flow(conn, flow.flow_id, reason="other", by="me")
    assert (again.outcome, again.policy, again.reason, again.by) == (
        "already_cancelled",
        "cancel_pending",
        "not wanted",
        "ops",
    )
    assert (again.count, again.members) == (first.count, first.members) == (1, [flow["a"]])


REFUSED: dict[str, Callable[[Graph], Awaitable[object]]] = {
    "a member": lambda flow: flows.add_execution(flow.conn, flow.flow_id, mint_execution_id(beside=flow.flow_id)),
    "a submission": lambda flow: executions.submit(flow.conn, submission(flow=flow.flow_id)),
    "an edge": lambda flow: flow.link("a", "b"),
    "a group": lambda flow: flow.group("b", kind="any_of"),
    "a replay": lambda flow: executions.replay(flow.conn, flow["a"], by="ops"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_cancelled_flow_cannot_be_changed(conn: Connection, given: Given, what: str) -> None:
    flow = await graph(conn, "a", "b")
    await flows.cancel_flow(conn, flow.flow_id)

    async with given.nothing_changes():
        with pytest.raises(errors.FlowAlreadyTerminal):
            await REFUSED[what](flow)


async def test_an_unknown_flow_or_an_invalid_policy_is_refused(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a")
    async with given.nothing_changes():
        with pytest.raises(errors.FlowNotFound):
            await flows.cancel_flow(conn, mint_flow_id())
        with pytest.raises(errors.InvalidBody):
            await flows.cancel_flow(conn, flow.flow_id, policy="cancel_some")
        with pytest.raises(errors.InvalidBody):
            await flows.cancel_flow(conn, flow.flow_id, by="x" * 257)


async def test_a_member_that_waits_for_its_dependencies_can_be_cancelled(conn: Connection, given: Given) -> None:
    flow = await graph(conn, b="a", c="b")

    ended = await executions.cancel(conn, flow["b"], reason="not wanted", by="ada")
    assert ended.public_state is PublicState.CANCELLED
    assert await flow.states() == {"a": "waiting", "b": "cancelled", "c": "skipped"}
    assert await given.count("tickets") == 1
    ended = await executions.cancel(conn, flow["b"], reason="once more", by="bob")
    assert ended.public_state is PublicState.CANCELLED
    assert (await given.events(flow["b"])).count("execution_cancelled") == 1
