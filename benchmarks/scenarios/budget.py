"""Sixteen connections that run lives charged to one budget, and the same with a budget of their own each."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

import asyncpg

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import attempts, budgets, claims, executions
from flowfabric.model import Claim, Options, Submission, UsageReport

CONNECTIONS = 16
COUNT = 1_600
TURNS = 3
ENOUGH = 1_000_000_000

Act = Callable[[asyncpg.Connection, Claim, str], Awaitable[object]]


async def nothing(_: asyncpg.Connection, __: Claim, ___: str) -> None:
    """Only claim and complete: the budget can close the route, so every claim reads it."""


async def report(conn: asyncpg.Connection, claim: Claim, budget: str) -> None:
    await budgets.report_usage(conn, UsageReport(budget=budget, amounts={"tokens": 10}, fence=claim.fence))


async def reserve(conn: asyncpg.Connection, claim: Claim, budget: str) -> None:
    reserved = await budgets.reserve(conn, budget, {"tokens": 10}, fence=claim.fence)
    assert reserved.reservation_id is not None
    await budgets.settle(conn, reserved.reservation_id, {"tokens": 8}, fence=claim.fence)


ACTS: dict[str, Act] = {"claim": nothing, "report": report, "reserve": reserve}


async def turn(conns: Sequence[asyncpg.Connection], act: Act, names: Sequence[str], lane: str, count: int) -> float:
    """Submit executions of the first budget to a lane, then run all of them: how many per second.

    Each connection charges a budget of these names.
    """
    options = Options(task="benchmark", lane=lane, budgets=names[:1] if len(names) == 1 else [])
    await executions.submit_many(conns[0], [Submission(options=options, payload=b"{}")] * count)

    async def life(conn: asyncpg.Connection, number: int) -> None:
        while taken := await claims.claim(conn, "bench", instance=f"bench-{number}", lanes=[lane]):
            await act(conn, taken[0], names[number % len(names)])
            await attempts.complete(conn, taken[0].fence)

    began = time.perf_counter()
    await asyncio.gather(*(life(conn, number) for number, conn in enumerate(conns)))
    return count / (time.perf_counter() - began)


async def run(ground: Ground) -> int:
    """Take turns with one budget and with one for each connection; no limit is reached."""
    count = ground.scaled(COUNT, least=CONNECTIONS)
    conns = [await asyncpg.connect(ground.url) for _ in range(CONNECTIONS)]
    own = [f"own {number}" for number in range(CONNECTIONS)]
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ACTS}
    try:
        for name in ["shared", *own]:
            await budgets.create_budget(conns[0], name, hard_limits={"tokens": ENOUGH})
        with ground.timed():
            for _ in range(TURNS):
                for name, act in ACTS.items():
                    alone = await turn(conns, act, own, "own", count)
                    rates[name].append((await turn(conns, act, ["shared"], "shared", count), alone))
    finally:
        for conn in conns:
            await conn.close()
    for name, pairs in rates.items():
        ground.tell(
            **{
                f"{name}_ratio": median(shared / alone for shared, alone in pairs),
                f"{name}_shared_per_s": median(shared for shared, _ in pairs),
                f"{name}_own_per_s": median(alone for _, alone in pairs),
            }
        )
    return 2 * TURNS * len(ACTS) * count


scenario = Scenario(
    name="budget",
    about="16 connections, one execution at a time, charged to one budget and to a budget of each connection",
    run=run,
    unit="x the rate of claims without",
    figure="claim_ratio",
)
