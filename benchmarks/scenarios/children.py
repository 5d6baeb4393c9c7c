"""A parent that submits a thousand children and waits for all of them, from its submission to its result."""

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, working

COUNT = 1_000


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with opened(ground), working(ground, 1):
        await (await tasks.parent.submit(1)).result()
        with ground.timed():
            total = await (await tasks.parent.submit(count)).result()
    assert total == sum(range(count))
    return count


scenario = Scenario(
    name="children",
    about="a parent with 1,000 children, one worker process",
    run=run,
    unit="children/s",
    against={"raw_drain": None, "drain_one_worker": None},
)
