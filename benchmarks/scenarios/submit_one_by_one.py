"""Submissions by one caller, one call after the other."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import executions
from flowfabric.model import Options, Submission

COUNT = 1_000
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with ground.database() as database, database.connection() as conn:
        await executions.submit(conn, SUBMISSION)
        with ground.timed():
            for _ in range(count):
                await executions.submit(conn, SUBMISSION)
    return count


scenario = Scenario(
    name="submit_one_by_one",
    about="one caller, one call after the other",
    run=run,
    against={"raw_one_by_one": None},
    for_peers=COUNT,
)
