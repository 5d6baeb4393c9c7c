"""A claim of 100 from a small and from a large backlog, which must cost about the same."""

import os
from collections.abc import Awaitable, Callable

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import claims, executions
from flowfabric.model import Options, Submission

SMALL = 1_000
LARGE = 1_000_000 if os.environ.get("FLOWFABRIC_SOAK") == "1" else 100_000
CLAIMS = 50
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


def claiming(backlog: int) -> Callable[[Ground], Awaitable[int]]:
    """Roll every claim back, so that each finds the same backlog."""

    async def run(ground: Ground) -> int:
        calls = ground.scaled(CLAIMS)
        async with ground.raw() as conn:
            left = ground.scaled(backlog, least=100)
            while left > 0:
                await executions.submit_many(conn, [SUBMISSION] * min(left, 10_000))
                left -= 10_000
            await conn.execute("vacuum analyze")
            for _ in range(calls):
                transaction = conn.transaction()
                await transaction.start()
                with ground.timed():
                    await claims.claim(conn, "bench", instance="bench-1", lanes=["default"], take=100)
                await transaction.rollback()
        return calls

    return run


small = Scenario(
    name="claim_small_backlog", about="100 at a time from 1,000", run=claiming(SMALL), unit="claims of 100/s"
)
large = Scenario(
    name="claim_large_backlog",
    about=f"100 at a time from {LARGE:,}",
    run=claiming(LARGE),
    unit="claims of 100/s",
    against={small.name: None},
)
