"""Inputs: results that upstreams pass come with the claim if they fit, and are read separately otherwise."""

from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import attempts, claims, flows
from flowfabric.ids import mint_execution_id
from flowfabric.model import Claim, Completion, Input, Link, Member
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given, submission

MIB = 1_048_576
LARGE = Input(bytes(MIB))


async def fed(conn: Connection, amount: int, *names: str) -> Graph:
    """A flow in which `amount` upstreams each pass a megabyte to `all`, and the named ones pass a byte to `one`."""
    flow = await graph(conn, "all", "one", *names)
    for number in range(amount):
        await flow.add(f"a{number:02}")
        await flow.link(f"a{number:02}", "all", pass_as=f"a{number:02}")
    for name in names:
        await flow.link(name, "one", pass_as=name)
    for name in names:
        await flow.complete(name, b"1")
    await attempts.complete_many(
        conn,
        [Completion(fence=(await flow.claim(f"a{at:02}")).fence, result=LARGE.result) for at in range(amount)],
    )
    return flow


async def claim_all(conn: Connection) -> dict[str, Claim]:
    taken = await claims.claim(conn, "pool", instance="pool-1", lanes=["all", "one"], take=10)
    return {claim.lane: claim for claim in taken}


async def test_inputs_too_large_for_a_claim_are_read_separately(conn: Connection) -> None:
    flow = await fed(conn, 17)
    claim = await flow.claim("all")
    assert (claim.inputs, claim.more_inputs) == ({}, True)

    inputs = await flows.read_inputs(conn, flow["all"])
    names = [f"a{number:02}" for number in range(17)]
    assert inputs == {name: Input(LARGE.result, upstream=flow[name]) for name in names}
    whole = claim.handed(inputs)
    assert (whole.inputs, whole.more_inputs, whole.fence) == (inputs, False, claim.fence)


async def test_a_member_with_large_inputs_does_not_crowd_out_others_in_the_claim(conn: Connection) -> None:
    flow = await fed(conn, 17, "x", "y")

    taken = await claim_all(conn)
    assert (taken["all"].inputs, taken["all"].more_inputs) == ({}, True)
    assert (taken["one"].inputs, taken["one"].more_inputs) == (
        {name: Input(b"1", upstream=flow[name]) for name in ("x", "y")},
        False,
    )


async def test_inputs_that_fit_come_with_the_claim(conn: Connection) -> None:
    flow = await fed(conn, 15, "x")

    taken = await claim_all(conn)
    assert (len(taken["all"].inputs), taken["all"].more_inputs) == (15, False)
    assert taken["one"].inputs == {"x": Input(b"1", upstream=flow["x"])}


async def test_a_grant_also_reports_more_inputs(conn: Connection) -> None:
    await fed(conn, 17)
    [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["all"])

    claim = await claims.claim_granted(conn, grant.grant_key, "pool", instance="pool-1")
    assert (claim.inputs, claim.more_inputs) == ({}, True)


async def test_only_the_inputs_with_the_given_names_are_read(conn: Connection) -> None:
    flow = await fed(conn, 0, "x", "y")

    assert await flows.read_inputs(conn, flow["one"], names=["y", "nobody"]) == {"y": Input(b"1", upstream=flow["y"])}
    assert await flows.read_inputs(conn, flow["one"], names=[]) == {}
    assert await flows.read_inputs(conn, flow["all"]) == {}
    assert await flows.read_inputs(conn, mint_execution_id()) == {}


async def test_an_input_named_payload_replaces_the_payload(conn: Connection) -> None:
    flow = await graph(conn, "a", "x")
    await flow.add("b", payload=b'"own"')
    await flow.link("a", "b", pass_as="payload")
    await flow.link("x", "b", pass_as="x")
    await flow.complete("x", b"2")
    await attempts.complete(conn, (await flow.claim("a")).fence, b"\x01", encoding="raw")

    taken = await flow.claim("b")
    inputs = await flows.read_inputs(conn, flow["b"])
    assert inputs == {"payload": Input(b"\x01", "raw", flow["a"]), "x": Input(b"2", upstream=flow["x"])}
    assert taken.handed(inputs) == taken


@pytest.mark.parametrize("result", [None, b"1"])
async def test_an_upstream_that_passes_nothing_is_not_read(conn: Connection, result: bytes | None) -> None:
    flow = await graph(conn, "a", "b", "c")
    await flow.group("c", kind="any_of", on_satisfied="let_run")
    await flow.link("a", "c", pass_as="x")
    await flow.link("b", "c", pass_as="y")
    await flow.complete("a", result)
    await flow.fail("b")

    expected = {"x": Input(result, upstream=flow["a"])} if result else {}
    assert await flows.read_inputs(conn, flow["c"]) == expected


async def test_a_claim_reads_a_bounded_number_of_edges_and_small_members_first(conn: Connection, given: Given) -> None:
    wide = [Member(name=f"d{number}", submission=submission(lane="all")) for number in range(105)]
    first = [Member(name=f"u{number}", submission=submission()) for number in range(200)]
    small = Member(name="small", submission=submission(lane="one"))
    edges = [Link(upstream=up.name, downstream=down.name, pass_as=up.name) for up in first for down in wide]
    edges.append(Link(upstream="u0", downstream="small", pass_as="x"))
    await flows.submit_flow(conn, "wide", [*wide, *first, small], edges)
    claimed = await given.claim(take=200)
    await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"1") for claim in claimed])

    taken = await claims.claim(conn, "pool", instance="pool-1", lanes=["all", "one"], take=1_000)
    without = [claim for claim in taken if claim.more_inputs]
    assert (len(taken), len(without), {claim.lane for claim in without}) == (106, 6, {"all"})
    assert {len(claim.inputs) for claim in taken} == {0, 1, 200}
    assert len(await flows.read_inputs(conn, without[0].execution_id)) == 200


async def test_a_repeated_claim_leaves_the_inputs_to_be_read(conn: Connection) -> None:
    flow = await fed(conn, 0, "x")
    asked: Any = {"instance": "pool-1", "lanes": ["one"], "request": uuid4()}
    [first] = await claims.claim(conn, "pool", **asked)
    [again] = await claims.claim(conn, "pool", **asked, repeated=True)

    assert (first.inputs, again.inputs, again.more_inputs) == ({"x": Input(b"1", upstream=flow["x"])}, {}, True)
    assert await flows.read_inputs(conn, flow["one"]) == first.inputs
