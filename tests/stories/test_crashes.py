"""Eight workers that crash at random: every execution still ends exactly once."""

import asyncio
import random
from datetime import timedelta

import asyncpg

from flowfabric.engine import attempts, claims, executions
from flowfabric.model import Claim, Completion
from tests.conftest import SOAK, Connect
from tests.given import ENDED_ATTEMPTS, Given, submission

EXECUTIONS = 20_000 if SOAK else 1_000
WORKERS = 8
LEASE = timedelta(seconds=30)
PATIENT = {"max_reclaim_count": 10_000}


async def finish(conn: asyncpg.Connection, taken: list[Claim]) -> None:
    await attempts.complete_many(conn, [Completion(fence=each.fence, result=b"{}") for each in taken])


async def crash(conn: asyncpg.Connection) -> None:
    """Roll back, as Postgres does when a process dies in the middle of a transaction."""
    await conn.execute("rollback")


async def work(conn: asyncpg.Connection, number: int) -> None:
    """Claim and complete; sometimes crash before, between or inside the two calls, or complete too late."""
    dice = random.Random(number)
    late: list[Claim] = []
    while not await is_over(conn):
        await finish(conn, late)  # the lease may have expired: the engine must know
        late = []
        fate = dice.random()
        await conn.execute("begin")
        taken = await Given(conn).claim(
            worker=f"w{number}", instance=f"w{number}-1", take=dice.randint(1, 20), lease=LEASE
        )
        if fate < 0.1:
            await crash(conn)
            continue
        await conn.execute("commit")
        if fate < 0.2:
            late = taken
        elif fate < 0.3:
            await finish(conn, taken[::2])  # the leases of the rest expire
        elif fate < 0.4:
            await conn.execute("begin")
            await finish(conn, taken)
            await crash(conn)
        else:
            await finish(conn, taken)


async def is_over(conn: asyncpg.Connection) -> bool:
    return not await conn.fetchval("select exists (select from flowfabric.tickets)")


async def sweep(conn: asyncpg.Connection, given: Given) -> None:
    """Move the clock and expire leases until every execution has ended."""
    while not await is_over(conn):
        await given.time_passes(seconds=7)
        await claims.expire_leases(conn)


LEFT_OVER = f"""
select (select count(*) from flowfabric.tickets) as tickets,
       (select count(*) from flowfabric.executions where outcome = 'success' and result = '{{}}') as completed,
       (select count(*) from flowfabric.executions where outcome is distinct from 'success') as others,
       (select count(*) from {ENDED_ATTEMPTS} where lifecycle = 'ended_success') as successes
"""

# Executions whose claims, expired leases, attempts and end do not add up.
ODD = f"""
select e.id from flowfabric.executions e
cross join lateral (
    select array_agg(v.epoch order by v.id) filter (where v.kind = 'lease_acquired') as epochs,
           array_agg(v.attempt order by v.id) filter (where v.kind = 'lease_acquired') as numbers,
           count(*) filter (where v.kind = 'lease_expired') as expirations,
           count(*) filter (where v.kind = 'execution_completed') as ends,
           (array_agg(v.kind order by v.id desc))[1] as last_kind
    from flowfabric.events v where v.execution = e.id) h
cross join lateral (
    select count(*) as attempts, array_agg(a.number order by a.number) as numbers from {ENDED_ATTEMPTS}
    where a.partition = e.partition and a.execution = e.id) a
where h.ends <> 1 or h.last_kind <> 'execution_completed'
   or h.epochs <> array(select generate_series(1, e.epoch)) or h.numbers <> a.numbers
   or h.expirations <> e.reclaims or (e.attempt, a.attempts) <> (e.reclaims + 1, e.attempt)
"""


async def test_every_execution_ends_exactly_once_whatever_crashes(
    conn: asyncpg.Connection, connect: Connect, given: Given
) -> None:
    await executions.submit_many(conn, [submission(policy=PATIENT)] * EXECUTIONS)
    workers = [work(await connect(), number) for number in range(WORKERS)]

    await asyncio.gather(*workers, sweep(await connect(), given))

    [left] = await given.rows(LEFT_OVER)
    assert dict(left) == {"tickets": 0, "completed": EXECUTIONS, "others": 0, "successes": EXECUTIONS}
    assert await given.rows(ODD) == []
    assert (await given.events()).count("lease_expired") > EXECUTIONS // 20
