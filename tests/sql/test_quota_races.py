"""Concurrent claims: no quota admits more than its limits, and no claim waits forever."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, executions, quotas
from flowfabric.errors import DatabaseUnavailable, FlowFabricError
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Connect
from tests.engine.executions.stored import blocked
from tests.given import Given, claim, submission
from tests.races import Race

SECONDS = 60 if SOAK else 3
STEP = timedelta(milliseconds=100)
WINDOW = timedelta(seconds=1)
CLAIMERS = 8


async def submitted(given: Given, count: int, **options: object) -> None:
    answers = await executions.submit_many(given.conn, [submission(**{"quotas": ["model"], **options})] * count)
    assert [each for each in answers if isinstance(each, FlowFabricError)] == []


async def active(conn: Connection) -> int:
    rows = await conn.fetch("select count(*) from flowfabric.tickets where phase = 'active'")
    return int(rows[0]["count"])


def most_within(moments: Sequence[datetime], span: timedelta) -> int:
    """The largest number of moments in any window of that length; the start of a window is exclusive."""
    ordered, first, most = sorted(moments), 0, 0
    for number, moment in enumerate(ordered):
        while ordered[first] <= moment - span:
            first += 1
        most = max(most, number - first + 1)
    return most


async def test_eight_who_claim_at_once_pass_neither_the_window_nor_the_cap(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_requests_per_window=100, window_seconds=1, max_concurrent=10)
    await submitted(given, 1_000 * SECONDS // 2)
    conns = [await connect() for _ in range(CLAIMERS)]
    admitted: list[datetime] = []

    async def work(conn: asyncpg.Connection) -> None:
        for _ in range(3):
            taken = await claim(conn, take=4)
            admitted.extend(each.attempt.started_at for each in taken)
            assert await active(conn) <= 10
            for each in taken:
                await attempts.complete(conn, each.fence)

    for _ in range(int(SECONDS / STEP.total_seconds())):
        await asyncio.gather(*map(work, conns))
        await given.time_passes(seconds=STEP.total_seconds())

    assert most_within(admitted, WINDOW) == 100
    assert len(admitted) >= 100 * (SECONDS - 1)

    # Every worker dies.
    await given.time_passes(seconds=1)
    dead = [each for conn in conns for each in await claim(conn, take=10)]
    assert len(dead) == 10
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    assert (await quotas.describe_quota(given.conn, "model")).held_count == 0
    assert len(await claim(given.conn, take=100)) == 10


async def test_ten_concurrent_claims_share_one_slot(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=1)
    await submitted(given, 30)
    conns = [await connect() for _ in range(10)]

    for _ in range(3):
        taken = [each for some in await asyncio.gather(*map(claim, conns)) for each in some]
        assert (len(taken), await active(given.conn)) == (1, 1)
        await attempts.complete(given.conn, taken[0].fence)


async def test_a_claim_that_waited_for_a_quota_counts_what_the_other_took(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=3)
    await submitted(given, 10)
    one, other = await connect(), await connect()

    async with one.transaction():
        assert len(await claim(one, take=2)) == 2
        waiting = asyncio.create_task(claim(other, take=10))
        await blocked(given, other, waiting)

    assert len(await waiting) == 1


async def test_a_claim_rolled_back_leaves_all_the_room(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=3, max_requests_per_window=3)
    await submitted(given, 10)
    conn = await connect()

    async with given.nothing_changes():
        transaction = conn.transaction()
        await transaction.start()
        assert len(await claim(conn, take=10)) == 3
        await transaction.rollback()
    assert len(await claim(given.conn, take=10)) == 3


async def test_a_claim_with_an_old_snapshot_cannot_exceed_the_limit(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=2)
    await submitted(given, 10)
    conn = await connect()

    transaction = conn.transaction(isolation="repeatable_read")
    await transaction.start()
    await active(conn)
    assert len(await claim(given.conn, take=2)) == 2
    with pytest.raises(DatabaseUnavailable, match="could not serialize"):
        await claim(conn, take=2)
    await transaction.rollback()
    assert await active(given.conn) == 2


async def test_a_grant_in_use_keeps_its_slot_after_its_expiry(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=1, max_requests_per_window=1, window_seconds=3600)
    await submitted(given, 2)
    [grant] = await claims.issue_grant(given.conn, "w", instance="w-1", lanes=["default"])
    conn = await connect()

    async with conn.transaction():
        await claims.claim_granted(conn, grant.grant_key, "w", instance="w-1")
        await given.time_passes(seconds=11)
        assert await claim(given.conn, take=10) == []
    assert await active(given.conn) == 1


async def test_a_claim_never_waits_for_a_quota_out_of_order(connect: Connect, given: Given) -> None:
    made = [(await quotas.create_quota(given.conn, f"q{n}", max_concurrent=7)).quota_id for n in range(2)]
    low, high = (f"q{made.index(quota)}" for quota in sorted(made))
    await submitted(given, 2, quotas=[high], lane="a", priority=9)
    await submitted(given, 2, quotas=[low], lane="b")
    conn = await connect()

    async with conn.transaction():
        assert len(await claim(conn, "b", take=1)) == 1
        taken = await asyncio.wait_for(claim(given.conn, "a", "b", take=10), timeout=20)
        assert [each.lane for each in taken] == ["a", "a"]
    assert [each.lane for each in await claim(given.conn, "a", "b", take=10)] == ["b"]


async def test_concurrent_claims_of_many_quotas_do_not_deadlock(connect: Connect, given: Given) -> None:
    for number in range(12):
        await quotas.create_quota(given.conn, f"q{number}", max_concurrent=4)
    for number in range(36):
        await submitted(given, 4, quotas=[f"q{number % 12}", f"q{(number + 5) % 12}"], priority=number // 12)
    conns = [await connect() for _ in range(6)]

    async def work(conn: asyncpg.Connection) -> int:
        done = 0
        for _ in range(10):
            taken = await claim(conn, take=7)
            for each in taken:
                await attempts.complete(conn, each.fence)
            done += len(taken)
        return done

    done = await asyncio.gather(*map(work, conns))
    while left := await claim(given.conn, take=10):
        done += [len(left)]
        for each in left:
            await attempts.complete(given.conn, each.fence)
    assert sum(done) == 12 * 3 * 4


async def test_trimming_skips_a_quota_that_a_claim_has_locked(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=5, window_seconds=1, max_requests_per_window=9)
    await submitted(given, 5)
    await given.claim(take=1)
    await given.time_passes(seconds=5)
    conn = await connect()

    async with conn.transaction():
        await claim(conn, take=1)
        assert (await quotas.trim_windows(given.conn)).moved == 0
    assert (await quotas.trim_windows(given.conn)).moved == 1


async def test_trimming_does_not_lock_a_quota_whose_slots_are_all_held(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=2)
    await submitted(given, 2)
    assert len(await claim(given.conn, take=1)) == 1

    assert len(await race.passes(quotas.trim_windows, lambda conn: claim(conn, take=1))) == 1


async def test_a_claim_that_has_locked_a_stripe_of_one_quota_does_not_wait_for_another(
    connect: Connect, given: Given
) -> None:
    for name in ("model", "tools"):
        await quotas.create_quota(given.conn, name, max_concurrent=1)
    await submitted(given, 1, quotas=["model", "tools"])
    user = await connect()
    held = user.transaction()
    await held.start()
    last = "(select quota from flowfabric.quota_stripes order by quota desc limit 1)"
    await user.execute(f"select from flowfabric.quota_stripes where quota = {last} for update")

    async with asyncio.timeout(5):
        assert await claim(given.conn) == []
    await held.rollback()
    assert len(await claim(given.conn)) == 1
