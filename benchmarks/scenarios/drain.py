"""Claim and complete executions in batches until none is left."""

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import attempts, claims, executions
from flowfabric.model import Completion, Options, Submission
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection

COUNT = 20_000
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


async def drain(conn: Connection, instance: str, take: int) -> None:
    while taken := await claims.claim(conn, "bench", instance=instance, lanes=["default"], take=take):
        done = [Completion(fence=claim.fence, result=b"{}") for claim in taken]
        await attempts.complete_many(conn, done)


def draining(take: int, connections: int) -> Callable[[Ground], Awaitable[int]]:
    """Drain everything on this many connections at once."""

    async def work(database: Database, number: int) -> None:
        async with database.connection() as conn:
            await drain(conn, f"bench-{number}", take)

    async def run(ground: Ground) -> int:
        count = ground.scaled(COUNT)
        async with ground.database() as database:
            async with database.connection() as conn:
                await executions.submit_many(conn, [SUBMISSION] * count)
            with ground.timed():
                await asyncio.gather(*(work(database, number) for number in range(connections)))
        return count

    return run


by_100 = Scenario(
    name="drain_by_100", about="one connection, 100 at a time", run=draining(100, 1), against={"raw_drain": None}
)
by_500 = Scenario(
    name="drain_by_500",
    about="one connection, 500 at a time",
    run=draining(500, 1),
    against={"drain_by_100": None, "raw_drain": None},
)
by_two = Scenario(
    name="drain_by_two",
    about="two connections, 500 at a time",
    run=draining(500, 2),
    against={"drain_by_500": None, "raw_drain": None},
)
