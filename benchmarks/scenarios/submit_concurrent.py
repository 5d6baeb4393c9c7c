"""Submissions by 200 concurrent callers in one process, which share their round trips."""

import asyncio
from collections.abc import Sequence

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import executions
from flowfabric.errors import FlowFabricError
from flowfabric.model import Options, Submission, Submitted
from flowfabric.postgres.batching import Batch

CALLERS = 200
CALLS = 100
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


async def run(ground: Ground) -> int:
    calls = ground.scaled(CALLS)
    async with ground.database() as database:

        async def together(submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
            return await database.run(lambda conn: executions.submit_many(conn, submissions))

        async def caller() -> None:
            for _ in range(calls):
                await submit(SUBMISSION)

        submit = Batch(together)
        await submit(SUBMISSION)
        with ground.timed():
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
        await submit.close()
    return CALLERS * calls


scenario = Scenario(
    name="submit_concurrent",
    about="200 callers at once, one call each at a time",
    run=run,
    against={"submit_one_by_one": 10.0, "raw_one_by_one": None},
    for_peers=CALLERS * CALLS,
)
