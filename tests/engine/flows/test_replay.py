"""Replay members of a flow."""

import pytest

from flowfabric.engine import executions
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given


async def replay(flow: Graph, name: str) -> str:
    return str((await executions.replay(flow.conn, flow[name], by="ops")).public_state)


async def test_a_skipped_member_waits_again_until_its_upstream_was_replayed_and_succeeds(conn: Connection) -> None:
    flow = await graph(conn, b="a")
    await flow.fail("a")
    assert await replay(flow, "b") == "waiting_dependencies"

    assert await replay(flow, "a") == "waiting"
    await flow.complete("a", b"1")
    await flow.complete("b")
    assert await flow.states() == {"a": "completed", "b": "completed"}


async def test_a_skipped_member_does_not_wait_for_upstreams_that_have_succeeded_since(conn: Connection) -> None:
    flow = await graph(conn, b="a", c="b")
    await flow.fail("a")
    await replay(flow, "a")
    await flow.complete("a")
    assert await flow.state("b") == "skipped"

    assert await replay(flow, "b") == "waiting"
    assert await replay(flow, "c") == "waiting_dependencies"
    await flow.complete("b")
    await flow.complete("c")


async def test_an_upstream_that_is_replayed_is_awaited_again(conn: Connection, given: Given) -> None:
    flow = await graph(conn, c="a b")
    await flow.complete("a")
    await replay(flow, "a")
    await flow.complete("b")

    assert await flow.state("c") == "waiting_dependencies"
    await flow.complete("a")
    assert await flow.state("c") == "waiting"
    [group] = await given.rows("select succeeded, failed, skipped, total from flowfabric.edge_groups")
    assert tuple(group.values()) == (2, 0, 0, 2)


@pytest.mark.parametrize("has_failed_since", [False, True])
async def test_a_skipped_member_waits_also_for_an_upstream_that_had_succeeded_and_was_replayed(
    conn: Connection, has_failed_since: bool
) -> None:
    flow = await graph(conn, c="a b")
    await flow.complete("a", b"old")
    await flow.fail("b")
    await replay(flow, "a")
    if has_failed_since:
        await flow.fail("a")
    await replay(flow, "b")
    await flow.complete("b")

    assert await replay(flow, "c") == "waiting_dependencies"
    if has_failed_since:
        await replay(flow, "a")
    await flow.complete("a", b"new")
    assert await flow.state("c") == "waiting"


async def test_a_second_success_does_not_satisfy_a_group_again(conn: Connection, given: Given) -> None:
    """An edge settles once, and a group leaves pending once."""
    flow = await graph(conn, b="a")
    await flow.complete("a")
    await flow.complete("b")
    await replay(flow, "a")
    await flow.complete("a")

    assert await flow.states() == {"a": "completed", "b": "completed"}
    assert (await given.events(flow["b"])).count("edge_group_satisfied") == 1


async def test_a_member_cancelled_while_it_waited_waits_again_when_replayed(conn: Connection) -> None:
    flow = await graph(conn, b="a", d="c")
    await executions.cancel(conn, flow["b"])
    await executions.cancel(conn, flow["d"])
    await flow.fail("c")

    assert await replay(flow, "b") == "waiting_dependencies"
    assert await replay(flow, "d") == "waiting_dependencies"
    await flow.complete("a")
    assert await flow.state("b") == "waiting"
