"""Claiming with `last`: dead index entries are skipped, and nothing with a better claim is."""

import asyncpg

from flowfabric.engine import claims, executions
from flowfabric.model import Claim
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given, submission
from tests.sql.reading import reading

DEAD = 2_000


async def claim(conn: Connection, take: int, last: Claim | None = None) -> list[Claim]:
    return await claims.claim(
        conn, "w", instance="i", lanes=["default"], take=take, last=last, after_route=last.route if last else 0
    )


async def taken(given: Given, count: int) -> Claim:
    """Claim many executions, which leaves dead index entries; return the last claim."""
    await executions.submit_many(given.conn, [submission() for _ in range(count)])
    while count > 0:
        got = await claim(given.conn, min(count, 1_000))
        count -= len(got)
    return got[-1]


async def pin(conn: asyncpg.Connection) -> None:
    """Hold a snapshot, so that vacuum cannot remove dead entries."""
    await conn.execute("begin isolation level repeatable read; select txid_current()")


async def test_a_claim_with_last_does_not_read_tickets_taken_before(connect: Connect, given: Given) -> None:
    await pin(await connect())
    await taken(given, DEAD)
    await given.time_passes(seconds=1)
    last = await taken(given, 1)
    await executions.submit_many(given.conn, [submission() for _ in range(5)])
    conn = await connect()

    async with conn.transaction():
        _, whole = await reading(conn, claim(conn, 2), ["tickets"])
    async with conn.transaction():
        going_on, short = await reading(conn, claim(conn, 2, last), ["tickets"])

    assert len(going_on) == 2
    assert whole.rows > DEAD
    assert short.rows < 100


async def test_the_order_is_that_of_a_claim_from_the_front(given: Given) -> None:
    ids = [await given.submitted() for _ in range(6)]
    first = await claim(given.conn, 2)
    second = await claim(given.conn, 2, first[-1])
    third = await claim(given.conn, 2, second[-1])

    assert [one.execution_id for one in (*first, *second, *third)] == ids


async def test_a_higher_priority_still_comes_first(given: Given) -> None:
    last = await taken(given, 1)
    await given.submitted()
    urgent = await given.submitted(priority=5)

    [got] = await claim(given.conn, 1, last)
    assert got.execution_id == urgent


async def test_another_route_still_gets_its_turn(given: Given) -> None:
    last = await taken(given, 1)
    for namespace in ("default", "default", "other", "other"):
        await given.submitted(namespace=namespace)

    assert sorted(one.namespace for one in await claim(given.conn, 2, last)) == ["default", "other"]


async def test_a_route_whose_needs_are_no_longer_covered_gives_nothing(given: Given) -> None:
    await given.submitted(needs=["gpu"])
    await given.submitted(needs=["gpu"])
    [last] = await claims.claim(given.conn, "w", instance="i", lanes=["default"], capabilities=["gpu"])

    assert await claim(given.conn, 1, last) == []


async def test_executions_that_committed_late_are_found_by_a_claim_without_last(given: Given) -> None:
    late = await given.submitted()
    await given.time_passes(seconds=1)
    await executions.submit_many(given.conn, [submission() for _ in range(4)])
    [_, *younger] = await claim(given.conn, 3)
    await given.conn.execute(
        "update flowfabric.tickets set phase = 'runnable', attempt_state = 'pending_reclaim_attempt' where id = $1",
        late.uuid,
    )

    [passed] = await claim(given.conn, 1, younger[-1])
    [found] = await claim(given.conn, 1)
    assert (passed.execution_id != late, found.execution_id) == (True, late)


async def test_a_claim_with_last_starts_from_the_front_if_nothing_follows(given: Given) -> None:
    old = await given.submitted()
    await given.time_passes(seconds=1)
    await given.submitted()
    got = await claim(given.conn, 2)
    await given.conn.execute(
        "update flowfabric.tickets set phase = 'runnable', attempt_state = 'pending_reclaim_attempt' where id = $1",
        old.uuid,
    )

    assert [one.execution_id for one in await claim(given.conn, 2, got[-1])] == [old]


async def test_a_worker_of_several_lanes_continues_and_misses_none(given: Given) -> None:
    last = await taken(given, 1)
    other = await given.submitted(lane="other")
    younger = await given.submitted()

    both = ["default", "other"]
    first, second = [
        await claims.claim(given.conn, "w", instance="i", lanes=both, last=last, after_route=last.route)
        for _ in range(2)
    ]
    assert {one.execution_id for one in (*first, *second)} == {other, younger}
    assert first[0].execution_id == other  # it is the turn of its route
