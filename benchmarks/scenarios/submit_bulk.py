"""Executions submitted ten thousand to a call, which go to Postgres a thousand to a statement."""

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.engine import executions
from flowfabric.model import Submission, Terms

COUNT = 50_000
AT_ONCE = 10_000
SUBMISSION = Submission(terms=Terms(kind="benchmark"), payload=b"{}")


async def run(ground: Ground) -> int:
    at_once, calls = ground.scaled(AT_ONCE), COUNT // AT_ONCE
    async with ground.database() as database, database.connection() as conn:
        await executions.submit(conn, SUBMISSION)
        submissions = [SUBMISSION] * at_once
        with ground.timed():
            for _ in range(calls):
                await executions.submit_many(conn, submissions)
    return calls * at_once


scenario = Scenario(name="submit_bulk", about="10,000 to a call", run=run, against={"raw_bulk": None}, for_peers=COUNT)
