"""Renew 10,000 leases in one call, as a worker does for everything it runs."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import claims, executions
from flowfabric.model import Options, Submission

LEASES = 10_000
ROUNDS = 10
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


async def run(ground: Ground) -> int:
    leases, rounds = ground.scaled(LEASES), ground.scaled(ROUNDS)
    async with ground.database() as database, database.connection() as conn:
        await executions.submit_many(conn, [SUBMISSION] * leases)
        fences = []
        while taken := await claims.claim(conn, "bench", instance="bench-1", lanes=["default"], take=1_000):
            fences += [claim.fence for claim in taken]
        with ground.timed():
            for _ in range(rounds):
                await claims.renew_many(conn, fences)
    return leases * rounds


scenario = Scenario(
    name="renew", about="10,000 leases in one call", run=run, unit="leases/s", against={"raw_renew": None}
)
