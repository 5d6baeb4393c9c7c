"""Submit ten thousand executions per call, which go to Postgres a thousand per statement."""

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened

COUNT = 50_000
AT_ONCE = 10_000


async def run(ground: Ground) -> int:
    at_once, calls = ground.scaled(AT_ONCE), COUNT // AT_ONCE
    async with opened(ground):
        await tasks.nothing.submit(0)
        arguments = [(number,) for number in range(at_once)]
        with ground.timed():
            for _ in range(calls):
                await tasks.nothing.submit_many(arguments)
    return calls * at_once


scenario = Scenario(name="submit_bulk", about="10,000 per call", run=run, against={"raw_bulk": None}, for_peers=COUNT)
