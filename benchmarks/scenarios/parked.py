"""Executions that wait for ever: what each one costs in worker memory and on disk."""

import subprocess

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.signals import NOT_SUSPENDED
from benchmarks.scenarios.size import size
from benchmarks.workers import opened, until_none, working

COUNT = 100_000
AT_ONCE = 10_000
WARM = 1_000


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with opened(ground) as app, working(ground, 1) as [process], app.database.connection() as conn:
        await tasks.parked.submit_many([()] * ground.scaled(WARM))
        await until_none(conn, NOT_SUSPENDED)
        memory, disk = resident(process.pid), await size(conn)
        with ground.timed():
            for start in range(0, count, AT_ONCE):
                await tasks.parked.submit_many([()] * min(AT_ONCE, count - start))
                await until_none(conn, NOT_SUSPENDED)
        ground.tell(memory_bytes=(resident(process.pid) - memory) / count, disk_bytes=(await size(conn) - disk) / count)
    ground.tell(parked_per_s=count / ground.seconds)
    return count


def resident(pid: int) -> int:
    """The resident memory of a process in bytes."""
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return int(said) * 1_024


scenario = Scenario(
    name="parked",
    about=f"{COUNT:,} waiting executions: worker memory for each",
    run=run,
    unit="bytes of memory",
    figure="memory_bytes",
    less_is_better=True,
    slow=True,
)
