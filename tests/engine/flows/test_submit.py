"""Submit a whole flow."""

from itertools import pairwise
from typing import Any

import pytest

from flowfabric import errors
from flowfabric.engine import claims, flows
from flowfabric.model import EdgePolicy, Link, Member
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph
from tests.given import Given, submission

DIAMOND = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]


def members(names: str = "abcd", **options: Any) -> list[Member]:
    return [Member(name=name, submission=submission(task=name, lane=name, **options)) for name in names]


def edges(*pairs: tuple[str, str], **options: Any) -> list[Link]:
    return [Link(upstream=upstream, downstream=downstream, **options) for upstream, downstream in pairs]


def fourth(**options: Any) -> list[Member]:
    """Three valid members, and one with these options."""
    return [*members("abc"), *members("d", **options)]


async def submitted(conn: Connection, **options: Any) -> Graph:
    made = await flows.submit_flow(conn, "report", members(), edges(*DIAMOND), **options)
    flow = Graph(conn, made.flow_id)
    flow.members.update(made.executions)
    return flow


async def test_a_flow_submitted_whole_runs_like_one_built_step_by_step(conn: Connection, given: Given) -> None:
    flow = await submitted(conn)
    assert await flow.states() == {"a": "waiting", **dict.fromkeys("bcd", "waiting_dependencies")}
    [row] = await given.rows("select revision, node_count, edge_count from flowfabric.flows")
    assert tuple(row.values()) == (8, 4, 4)
    for name in "abcd":
        await flow.complete(name)

    kinds = await given.events()
    assert [kinds.count(kind) for kind in ("flow_created", "flow_member_added", "edge_added")] == [1, 4, 4]
    assert set((await flow.states()).values()) == {"completed"}


async def test_a_repeated_call_with_its_key_returns_the_same_executions(conn: Connection, given: Given) -> None:
    first = await flows.submit_flow(conn, "report", members(), edges(*DIAMOND), key="tides")
    async with given.nothing_changes():
        again = await flows.submit_flow(conn, "report", members(), edges(*DIAMOND), key="tides")

    assert (first.outcome, again.outcome) == ("created", "duplicate")
    assert (again.flow_id, again.executions) == (first.flow_id, first.executions)


@pytest.mark.parametrize(
    ("kind", "asked", "linked", "what"),
    [
        ("summary", members(), edges(*DIAMOND), "of kind 'report'"),
        ("report", members("abc"), edges(("a", "b")), "has other members"),
        ("report", members("abcde"), edges(*DIAMOND), "has other members"),
        ("report", members("abce"), edges(("a", "b")), "has other members"),
        ("report", fourth(payload=b'{"n": 2}'), edges(*DIAMOND), "member 'd' has another task or other arguments"),
        ("report", members(), edges(*DIAMOND, ("a", "d")), "not have all of these edges"),
        ("report", members(), edges(*DIAMOND[1:], ("a", "b"), pass_as="x"), "not have all of these edges"),
    ],
)
async def test_a_key_with_another_flow_is_refused(
    conn: Connection, given: Given, kind: str, asked: list[Member], linked: list[Link], what: str
) -> None:
    first = await flows.submit_flow(conn, "report", members(), edges(*DIAMOND), key="tides")

    async with given.nothing_changes():
        with pytest.raises(errors.KeyConflict, match=what) as refused:
            await flows.submit_flow(conn, kind, asked, linked, key="tides")
    assert refused.value.fields["flow_id"] == str(first.flow_id)


async def test_the_same_flow_with_other_options_is_a_duplicate(conn: Connection) -> None:
    values = [b'{"n": 1, "m": [1, 2.0]}', b'{"m":[1.0,2],"n":1}']
    calls = [
        await flows.submit_flow(conn, "report", members(payload=value, priority=at), edges(*DIAMOND), key="tides")
        for at, value in enumerate(values)
    ]

    assert [call.outcome for call in calls] == ["created", "duplicate"]


async def test_a_policy_is_set_with_the_flow(conn: Connection) -> None:
    rules = {"d": EdgePolicy(kind="any_of", on_satisfied="let_run")}
    flow = await submitted(conn, groups=rules)
    await flow.complete("a")
    await flow.complete("b")

    assert (await flow.state("c"), await flow.state("d")) == ("waiting", "waiting")


WRONG: dict[str, tuple[dict[str, Any], type[errors.FlowFabricError], str]] = {
    "lane": (
        {"members": [*members("abc"), *members("d", namespace="x", needs=[1])]},
        errors.FlowFabricError,
        "members[3]",
    ),
    "draining": ({"members": [*members("abc"), *members("d", policy={"x": 1})]}, errors.InvalidPolicy, "members[3]"),
    "budget": (
        {"members": [*members("abc"), *members("d", budgets=["none"])]},
        errors.BudgetNotFound,
        "members[3].budgets",
    ),
    "payload": ({"members": [*members("abc"), *members("d", payload=b"x" * 9)]}, errors.PayloadTooLarge, "members[3]"),
    "nul": ({"members": [*members("abc"), *members("d", tags={"a.b": "\0"})]}, errors.InvalidText, "members[3]"),
    "twice": ({"members": members("abca")}, errors.InvalidBody, "members[3].name"),
    "unknown": ({"edges": edges(("a", "z"))}, errors.InvalidDependency, "edges[0].downstream"),
    "itself": ({"edges": edges(("a", "b"), ("b", "b"))}, errors.SelfReferencingEdge, "edges[1]"),
    "cycle": ({"edges": edges(("a", "b"), ("b", "c"), ("c", "b"))}, errors.CycleDetected, "edges[1]"),
    "again": ({"edges": edges(("a", "b"), ("a", "b"))}, errors.DependencyAlreadyExists, "edges[1]"),
    "taken": ({"edges": edges(("a", "c"), ("b", "c"), pass_as="payload")}, errors.InvalidDependency, "edges[1]"),
    "name": ({"edges": edges(("a", "c"), pass_as="x" * 129)}, errors.InvalidName, "edges[0].pass_as"),
    "quorum": ({"groups": {"d": EdgePolicy(kind="quorum", k=3)}}, errors.InvalidEdgeGroup, "groups[0].policy"),
    "zero": ({"groups": {"d": EdgePolicy(kind="quorum", k=0)}}, errors.InvalidEdgeGroup, "groups[0].policy"),
    "group": ({"groups": {"z": EdgePolicy(kind="any_of")}}, errors.InvalidDependency, "groups[0]"),
    "many": ({"members": members("a") * 10_001}, errors.FlowTooLarge, ""),
}


@pytest.mark.parametrize("what", WRONG)
async def test_one_invalid_element_refuses_the_whole_call_and_is_named(
    conn: Connection, given: Given, what: str
) -> None:
    """Nothing of the flow is written."""
    wrong, refusal, element = WRONG[what]
    whole = {"members": members(payload=b"1"), "edges": edges(*DIAMOND), **wrong}
    async with given.nothing_changes():
        with pytest.raises(refusal) as refused:
            await flows.submit_flow(conn, "report", **whole, payload_limit=8)
    assert str(refused.value.fields.get("element", "")).startswith(element)
    assert element in refused.value.message


async def test_a_chain_of_a_thousand_settles_in_one_transaction(conn: Connection, given: Given) -> None:
    """Skipping has no maximum depth."""
    names = [f"m{number}" for number in range(1_000)]
    many = [Member(name=name, submission=submission(lane="first" if name == "m0" else "rest")) for name in names]
    made = await flows.submit_flow(conn, "report", many, edges(*pairwise(names)))
    flow = Graph(conn, made.flow_id)
    flow.members["first"] = made.executions["m0"]
    await flow.fail("first")

    assert await given.count("tickets") == 0
    assert (await given.events()).count("execution_skipped") == 999
    assert await claims.claim(conn, "pool", instance="pool-1", lanes=["rest"]) == []


async def test_the_payloads_of_one_call_are_limited(conn: Connection, given: Given) -> None:
    large = [Member(name=str(number), submission=submission(payload=b"x" * 2**20)) for number in range(65)]
    async with given.nothing_changes():
        with pytest.raises(errors.PayloadTooLarge):
            await flows.submit_flow(conn, "report", large)


async def test_a_flow_can_be_submitted_without_members(conn: Connection) -> None:
    made = await flows.submit_flow(conn, "report", [])
    assert (made.outcome, made.executions) == ("created", {})
