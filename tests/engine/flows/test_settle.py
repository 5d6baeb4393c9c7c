"""Settle flows: the end of a member releases or skips its downstream members."""

import pytest

from flowfabric.engine import attempts, claims, executions, flows
from flowfabric.model import Input
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.flows.scene import graph
from tests.given import Given, submission


async def test_a_flow_built_in_a_transaction_becomes_visible_at_once(connect: Connect, given: Given) -> None:
    one = await connect()
    async with one.transaction():
        flow_id = (await flows.create_flow(one, "report")).flow_id
        first = (await executions.submit(one, submission(flow=flow_id))).execution_id
        second = (await executions.submit(one, submission(flow=flow_id))).execution_id
        await flows.add_edge(one, flow_id, first, second)
        assert await given.claim(take=10) == []

    assert [claim.execution_id for claim in await given.claim(take=10)] == [first]
    assert await given.claim(take=10) == []


async def test_a_member_waits_until_its_upstream_has_completed(conn: Connection, given: Given) -> None:
    flow = await graph(conn, b="a")
    state = (await executions.describe(conn, flow["b"])).state
    assert (state.public_state, state.blocking_reason) == ("waiting_dependencies", "waiting_for_dependencies")
    claim = await flow.claim("a")
    async with conn.transaction():
        await attempts.complete(conn, claim.fence)
        assert await flow.state("b") == "waiting"

    assert (await given.events(flow["b"]))[-1] == "edge_group_satisfied"
    assert (await flow.claim("b")).inputs == {}


async def test_the_result_of_an_upstream_is_passed_under_its_name(conn: Connection) -> None:
    flow = await graph(conn, "a", "b")
    await flow.link("a", "b", pass_as="x")
    await flow.complete("a", b'{"n": 1.0}\x00')

    claim = await flow.claim("b")
    assert claim.flow_id == flow.flow_id
    assert claim.inputs == {"x": Input(b'{"n": 1.0}\x00', upstream=flow["a"])}


async def test_a_result_can_replace_the_payload_of_the_downstream_member(conn: Connection) -> None:
    flow = await graph(conn, "a")
    await flow.add("b", payload=b'"own"')
    await flow.link("a", "b", pass_as="payload")
    claim = await flow.claim("a")
    await attempts.complete(conn, claim.fence, b"\x01\x02", encoding="raw")

    taken = await flow.claim("b")
    assert (taken.payload, taken.encoding, taken.inputs) == (b"\x01\x02", "raw", {})


@pytest.mark.parametrize("name", ["x", "payload"])
async def test_an_upstream_without_a_result_passes_nothing(conn: Connection, name: str) -> None:
    flow = await graph(conn, "a")
    await flow.add("b", payload=b'"own"')
    await flow.link("a", "b", pass_as=name)
    await flow.complete("a")

    claim = await flow.claim("b")
    assert (claim.payload, claim.inputs) == (b'"own"', {})


async def test_a_grant_also_passes_inputs(conn: Connection) -> None:
    flow = await graph(conn, "a", "b")
    await flow.link("a", "b", pass_as="x")
    await flow.complete("a", b"1")
    [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["b"])

    claim = await claims.claim_granted(conn, grant.grant_key, "pool", instance="pool-1")
    assert claim.inputs == {"x": Input(b"1", upstream=flow["a"])}


async def test_those_behind_a_failure_are_skipped_however_far(conn: Connection, given: Given) -> None:
    flow = await graph(conn, b="a", c="b")
    claim = await flow.claim("a")
    async with conn.transaction():
        await attempts.fail(conn, claim.fence, "it broke", class_="permanent")  # type: ignore[arg-type]
        assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped"}

    for name in "bc":
        assert (await given.events(flow[name]))[-2:] == ["edge_group_impossible", "execution_skipped"]
    described = await executions.describe(conn, flow["b"])
    assert described.explanation.sentence.endswith(f"upstream {flow['a']} failed")
