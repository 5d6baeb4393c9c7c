"""Turns: strict priority first; at equal priority routes take turns, so that no flood starves the others."""

from collections import Counter
from uuid import uuid4

import pytest

from flowfabric.engine import executions
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission


async def flood(given: Given, count: int, **options: object) -> None:
    """Submit many equal executions, in as few calls as possible."""
    await executions.submit_many(given.conn, [submission(**options) for _ in range(count)])


def namespaces(claims: list[Claim]) -> Counter[str]:
    return Counter(claim.namespace for claim in claims)


async def claim_one_by_one(given: Given, count: int, after_route: int = 0) -> list[Claim]:
    """Claim one execution at a time, passing the route served last."""
    taken: list[Claim] = []
    for _ in range(count):
        got = await given.claim(after_route=after_route)
        taken += got
        after_route = got[-1].route if got else after_route
    return taken


async def test_priority_is_strict_across_partitions(given: Given) -> None:
    for partition, priority in ((3, 1), (200, 9), (100, 5)):
        await given.submitted(execution_id=ExecutionId(partition, uuid4()), priority=priority)

    assert [claim.priority for claim in await claim_one_by_one(given, 3)] == [9, 5, 1]


async def test_within_a_route_the_oldest_goes_first(given: Given) -> None:
    ids = [ExecutionId(partition, uuid4()) for partition in (200, 3, 100)]
    await executions.submit_many(given.conn, [submission(execution_id=one) for one in ids])
    ids += [await given.submitted() for _ in range(3)]

    claims = [*await given.claim(take=4), *await given.claim(take=4)]

    assert [claim.execution_id for claim in claims] == ids


async def test_a_claim_answers_in_the_order_of_its_choice(given: Given) -> None:
    for priority in (1, 9, 5, 7, 3):
        await flood(given, 3, priority=priority)

    claims = await given.claim(take=12)

    assert [claim.priority for claim in claims] == [9] * 3 + [7] * 3 + [5] * 3 + [3] * 3
    logged = await given.rows("select execution from flowfabric.events where kind = 'lease_acquired' order by id")
    assert [row["execution"] for row in logged] == [claim.execution_id.uuid for claim in claims]


async def test_priority_is_strict_across_lanes_and_routes(given: Given) -> None:
    for lane, namespace, priority in (("a", "x", 1), ("b", "x", 3), ("a", "y", 2), ("b", "y", 4), ("c", "x", 9)):
        await given.submitted(lane=lane, namespace=namespace, priority=priority)

    assert [claim.priority for claim in await given.claim(lanes=["a", "b"], take=3)] == [4, 3, 2]
    assert [claim.priority for claim in await given.claim(lanes=["a", "b", "c"], take=3)] == [9, 1]


async def test_a_flood_of_one_namespace_does_not_starve_another(given: Given) -> None:
    await flood(given, 10_000, namespace="a")
    await flood(given, 10, namespace="b")

    assert namespaces(await given.claim(take=10)) == {"a": 5, "b": 5}
    assert namespaces(await claim_one_by_one(given, 60))["b"] == 5


async def test_claims_of_one_serve_the_small_namespace_too(given: Given) -> None:
    """Turns continue between calls: `take=1` does not start at the same route again."""
    await flood(given, 100, namespace="a")
    await flood(given, 10, namespace="b")

    assert namespaces(await claim_one_by_one(given, 20)) == {"a": 10, "b": 10}


async def test_a_higher_priority_goes_before_any_turn(given: Given) -> None:
    await flood(given, 100, namespace="a")
    await flood(given, 10, namespace="b", priority=1)

    assert namespaces(await given.claim(take=10)) == {"b": 10}
    assert namespaces(await given.claim(take=10)) == {"a": 10}


async def test_turns_wrap_around_from_any_start(given: Given) -> None:
    for namespace in "abc":
        await flood(given, 5, namespace=namespace)
    routes = [claim.route for claim in await claim_one_by_one(given, 3)]

    assert routes == sorted(routes)
    for start, expected in {
        0: "abc", routes[0]: "bca", routes[1]: "cab", routes[2]: "abc", 1_000_000: "abc", -5: "abc",
    }.items():  # fmt: skip
        [claim] = await given.claim(after_route=start)
        assert claim.namespace == expected[0], start


async def test_a_turn_includes_the_route_that_was_served_last(given: Given) -> None:
    claim = await given.claimed(namespace="a")
    await flood(given, 2, namespace="a")

    assert namespaces(await given.claim(after_route=claim.route, take=5)) == {"a": 2}


@pytest.mark.parametrize(("take", "small", "large"), [(10, 5, 5), (30, 10, 20), (100, 10, 90), (1_000, 10, 990)])
async def test_the_share_a_small_route_cannot_fill_is_given_to_the_others(
    given: Given, take: int, small: int, large: int
) -> None:
    await flood(given, 1_000, namespace="large")
    await flood(given, 10, namespace="small")

    assert namespaces(await given.claim(take=take)) == {"small": small, "large": large}


async def test_with_more_routes_than_take_each_gives_one_and_the_rest_come_next(given: Given) -> None:
    for namespace in "abcdefg":
        await flood(given, 3, namespace=namespace)

    first = await given.claim(take=4)
    second = await given.claim(take=4, after_route=first[-1].route)

    assert [claim.namespace for claim in first] == ["a", "b", "c", "d"]
    assert [claim.namespace for claim in second] == ["e", "f", "g", "a"]


async def test_several_lanes_take_turns_too(given: Given) -> None:
    await flood(given, 50, lane="a")
    await flood(given, 50, lane="b")
    await flood(given, 3, lane="c", priority=5)

    claims = await given.claim(lanes=["c", "b", "a"], take=13)

    assert Counter(claim.lane for claim in claims) == {"a": 5, "b": 5, "c": 3}
    assert {claim.lane for claim in claims[:3]} == {"c"}


async def test_a_lane_named_twice_is_served_once(given: Given) -> None:
    await flood(given, 3)

    assert len({claim.execution_id for claim in await given.claim(lanes=["default", "default"], take=9)}) == 3


async def test_closed_routes_have_no_turn(given: Given) -> None:
    """One exhausted budget does not starve executions without that budget."""
    for number in range(40):
        await given.submitted(needs=[f"skill-{number}"])
    await flood(given, 2, namespace="open")

    assert namespaces(await given.claim(take=40)) == {"open": 2}


async def test_a_changed_priority_counts_at_the_next_claim(conn: Connection, given: Given) -> None:
    await flood(given, 3)
    urgent = await given.submitted()
    await executions.change_priority(conn, urgent, 100, by="ops")

    assert [claim.execution_id for claim in await given.claim()] == [urgent]


async def test_equal_creation_times_lose_nothing_and_give_nothing_twice(given: Given) -> None:
    """Rows with equal creation times, as after a restore, are still claimed one by one."""
    await flood(given, 30)
    await flood(given, 30, namespace="other")
    await given.conn.execute("update flowfabric.tickets set created_at = '2026-01-01'")

    taken = [claim.execution_id for _ in range(6) for claim in await given.claim(take=11)]

    assert len(taken) == len(set(taken)) == 60
