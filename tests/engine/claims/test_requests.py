"""A claim whose reply was lost: the same instance repeats its request and gets the same leases again."""

from datetime import timedelta
from uuid import uuid4

import asyncpg

from flowfabric.engine import attempts, executions
from flowfabric.model import Claim
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given, submission
from tests.sql.reading import reading


def leases(claims: list[Claim]) -> list[object]:
    return [claim.fence for claim in claims]


async def test_a_repeated_claim_gets_the_same_leases_in_the_same_order(given: Given) -> None:
    for _ in range(7):
        await given.submitted(payload=b'{"topic": "tides"}', tags={"a": "b"}, policy={"max_reclaim_count": 2})
    request = uuid4()
    first = await given.claim(take=5, request=request)
    await given.time_passes(seconds=12)
    again = await given.claim(take=5, request=request, repeated=True)

    assert leases(again) == leases(first)
    assert len({claim.fence.lease_id for claim in first}) == 5
    assert [(c.task, c.payload, c.tags, c.policy, c.attempt) for c in again] == [
        (c.task, c.payload, c.tags, c.policy, c.attempt) for c in first
    ]
    assert again[0].expires_at >= first[0].expires_at + timedelta(seconds=12)
    assert (await given.events()).count("lease_acquired") == 5


async def test_the_leases_are_those_of_one_request_and_one_instance(given: Given) -> None:
    for _ in range(3):
        await given.submitted()
    request = uuid4()
    [first] = await given.claim(request=request)

    [foreign] = await given.claim(instance="pool-2", request=request, repeated=True)
    [other] = await given.claim(request=uuid4(), repeated=True)
    assert len({first.execution_id, foreign.execution_id, other.execution_id}) == 3


async def test_a_request_that_never_arrived_takes_new_work(given: Given) -> None:
    execution_id = await given.submitted()

    [claim] = await given.claim(request=uuid4(), repeated=True)
    assert claim.execution_id == execution_id


async def test_leases_that_have_ended_are_not_returned_again(given: Given) -> None:
    for _ in range(2):
        await given.submitted()
    request = uuid4()
    done, left = await given.claim(take=2, request=request)
    await attempts.complete(given.conn, done.fence, None)

    assert leases(await given.claim(take=2, request=request, repeated=True)) == [left.fence]
    await given.time_passes(seconds=31)
    assert await given.claim(take=2, request=request, repeated=True) == []


async def test_a_repeated_claim_does_not_wait_for_a_locked_ticket(given: Given, connect: Connect) -> None:
    for _ in range(2):
        await given.submitted()
    request = uuid4()
    locked, free = await given.claim(take=2, request=request)
    other: Connection = await connect()

    async with other.transaction():
        await other.fetch("select from flowfabric.tickets where id = $1 for update", locked.execution_id.uuid)
        again = await given.claim(take=2, request=request, repeated=True)
    assert leases(again) == [free.fence]


async def test_a_repeated_claim_of_a_resumed_execution_says_so(given: Given) -> None:
    first = await given.claimed()
    await attempts.delay(given.conn, first.fence)
    request = uuid4()
    [resumed] = await given.claim(request=request)
    [again] = await given.claim(request=request, repeated=True)

    assert (again.resumed, again.attempt, again.journal) == (True, resumed.attempt, None)


async def test_a_repeated_claim_reads_only_what_its_instance_holds(given: Given, conn: asyncpg.Connection) -> None:
    await executions.submit_many(conn, [submission()] * 520)
    request = uuid4()
    first = await given.claim(take=20, request=request)
    await given.claim(instance="pool-2", take=500)

    async with conn.transaction():
        again, read = await reading(
            conn, given.claim(take=20, request=request, repeated=True), ["executions", "tickets", "routes"]
        )
    assert leases(again) == leases(first)
    assert read.rows <= 10 * 20
    assert read.whole == 0
