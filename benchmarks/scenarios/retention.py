"""Continuous work beside the removal of ended executions, in turns with the same work alone.

The turns are short, so that whatever else the machine does slows both alike. The sweeps run in both, in a process of
their own; only the retention differs.
"""

import asyncio
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean

from benchmarks.feeding import fed
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.stamps import Stamps
from benchmarks.workers import command, opened, stamped, worker

COUNT = 400_000
TURNS = 20
SECONDS = 1.0
SETTLE = 0.2  # for the pass that is in flight when the removal stops
MOST_PER_SECOND = 20_000
KEEPING = {"FLOWFABRIC_RETENTION": "3650d"}
LEAST = 0.9  # of the rate without removal

# Executions that ended long ago, as a worker leaves them: the record, and a removal entry for every 100.
FILL = """
with ended as (
    select (hashtext(n::text) & 255)::smallint as partition, at, date_trunc('second', at) as ended_at,
           (lpad(to_hex(extract(epoch from at)::bigint * 1000), 12, '0')
            || '7' || lpad(to_hex(n & 4095), 3, '0') || '8' || substr(md5(n::text), 1, 15))::uuid as id
    from (select n, '2024-01-01'::timestamptz + n * interval '10 ms' as at from generate_series(1, $1::int) n) n
), recorded as (
    insert into flowfabric.executions (partition, id, route, task, encoding, payload, created_at, started_at, ended_at,
                                       epoch, attempt, retries, reclaims, outcome, result_encoding, result,
                                       attempt_epoch, attempt_started_at, attempt_type, worker, instance)
    select e.partition, e.id, r.id, 'nothing', 'json', '[1]', e.at, e.at, e.ended_at, 1, 1, 0, 0, 'success', 'json',
           '1', 1, e.at, 'initial', 'worker', 'instance'
    from ended e, (select r.id from flowfabric.routes r limit 1) r
)
insert into flowfabric.removals (ended_at, amount, partitions, executions)
select e.ended_at, count(*), array_agg(e.partition), array_agg(e.id) from ended e group by e.ended_at
"""
# The oldest are removed first; those that run meanwhile are far behind them.
REMOVED = """
select least((extract(epoch from min(ended_at) - '2024-01-01'::timestamptz) * 100)::bigint - 1, $1::int)
from flowfabric.removals where remove_at is null
"""


async def rate(stamps: Stamps, seconds: float) -> float:
    """How many executions per second run from now on."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return sum(began <= moment < began + seconds for moment in stamps.moments()) / seconds


async def sweeping(process: Process, stamps: Stamps, seconds: float) -> float:
    """Let the stopped process sweep for a while; return the rate of the work."""
    process.send_signal(signal.SIGCONT)
    worked = await rate(stamps, seconds)
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(SETTLE)
    return worked


@asynccontextmanager
async def stopped_sweep(ground: Ground, **environment: str) -> AsyncIterator[Process]:
    """A process that runs the sweeps, stopped before its first one."""
    async with command(ground, "sweep", says=b"sweeping", **environment) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)


async def run(ground: Ground) -> int:
    count, seconds = ground.scaled(COUNT, least=40_000), max(SECONDS * ground.scale, 0.2)
    stamps = stamped(ground, round(2 * (seconds + SETTLE) * (TURNS + 1) * MOST_PER_SECOND))
    alone: list[float] = []
    beside: list[float] = []
    async with opened(ground), ground.raw() as conn:
        await conn.execute(FILL, count)
        await conn.execute("vacuum analyze")
        async with (
            worker(ground, **KEEPING),
            stopped_sweep(ground, **KEEPING) as keeping,
            stopped_sweep(ground) as removing,
            fed(stamps),
        ):
            while not (removed := await conn.fetchval(REMOVED, count)):
                await sweeping(removing, stamps, seconds)
            while len(beside) < TURNS and await conn.fetchval(REMOVED, count) < count:
                alone.append(await sweeping(keeping, stamps, seconds))
                beside.append(await sweeping(removing, stamps, seconds))
            removed = await conn.fetchval(REMOVED, count) - removed
    ground.seconds = len(beside) * seconds
    ground.tell(
        kept=sum(beside) / sum(alone),
        alone_per_s=fmean(alone),
        beside_per_s=fmean(beside),
        removed_per_s=removed / ground.seconds,
    )
    return round(sum(beside) * seconds)


scenario = Scenario(
    name="retention",
    about="the rate of continuous work while ended executions are removed, one worker process",
    run=run,
    unit="of the rate without removal",
    figure="kept",
    goal=LEAST,
    slow=True,
)
