"""Sixteen connections that claim and complete one execution at a time behind one quota, and the same without it."""

import asyncio
import time
from statistics import median

import asyncpg

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import attempts, claims, executions, quotas
from flowfabric.model import Options, Submission

CONNECTIONS = 16
COUNT = 4_000
TURNS = 3
ENOUGH = 1_000_000


async def turn(conns: list[asyncpg.Connection], lane: str, count: int, named: list[str]) -> float:
    """Submit executions to a lane, then claim and complete all of them: how many per second."""
    some = [Submission(options=Options(task="benchmark", lane=lane, quotas=named), payload=b"{}")] * count
    await executions.submit_many(conns[0], some)

    async def life(conn: asyncpg.Connection, number: int) -> None:
        while taken := await claims.claim(conn, "bench", instance=f"bench-{number}", lanes=[lane]):
            await attempts.complete(conn, taken[0].fence)

    began = time.perf_counter()
    await asyncio.gather(*(life(conn, number) for number, conn in enumerate(conns)))
    return count / (time.perf_counter() - began)


async def run(ground: Ground) -> int:
    """Take turns with and without the quota, which is never full, so that only the admission itself differs."""
    count = ground.scaled(COUNT, least=CONNECTIONS)
    conns = [await asyncpg.connect(ground.url) for _ in range(CONNECTIONS)]
    try:
        await quotas.create_quota(conns[0], "shared", max_concurrent=ENOUGH, max_requests_per_window=ENOUGH)
        with_quota, without = [], []
        with ground.timed():
            for _ in range(TURNS):
                without.append(await turn(conns, "free", count, []))
                with_quota.append(await turn(conns, "limited", count, ["shared"]))
    finally:
        for conn in conns:
            await conn.close()
    ground.tell(
        ratio=median(mine / other for mine, other in zip(with_quota, without, strict=True)),
        with_quota_per_s=median(with_quota),
        without_per_s=median(without),
    )
    return 2 * TURNS * count


scenario = Scenario(
    name="quota",
    about="16 connections, one execution at a time, with one shared quota and without",
    run=run,
    unit="x the rate without",
    figure="ratio",
)
