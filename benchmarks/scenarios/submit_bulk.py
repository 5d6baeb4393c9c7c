"""Executions submitted ten thousand to a call, which go to Postgres a thousand to a statement."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import executions
from flowfabric.model import Submission, Terms

COUNT = 50_000
AT_ONCE = 10_000
SUBMISSION = Submission(terms=Terms(kind="benchmark"), payload=b"{}")


async def run(ground: Ground) -> int:
    async with ground.database() as database, database.connection() as conn:
        await executions.submit(conn, SUBMISSION)
        submissions = [SUBMISSION] * AT_ONCE
        with ground.timed():
            for _ in range(COUNT // AT_ONCE):
                await executions.submit_many(conn, submissions)
    return COUNT


scenario = Scenario(name="submit_bulk", about="10,000 to a call", run=run, against={"raw_bulk": None})
