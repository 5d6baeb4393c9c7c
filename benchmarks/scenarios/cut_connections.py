"""Every connection of every worker is cut again and again: runs that overlap, and what is left of the rate."""

import asyncio
import time

from benchmarks import tasks
from benchmarks.faults import CUT
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.spans import VARIABLE, overlapping, read
from benchmarks.workers import opened, working

WORKERS = 3
OPTIONS = ("--concurrency", "10", "--lease", "10s", "--drain", "5s")
EVERY = 2.0  # seconds
CUTS = 15
UNDISTURBED = 8.0
WARM = 3.0  # the longest run
PER_SECOND = 30  # more than the workers can run


async def run(ground: Ground) -> int:
    """Run handlers of 0.1 to 3 s, undisturbed at first, then with cuts."""
    cuts, undisturbed = ground.scaled(CUTS), UNDISTURBED * min(ground.scale + 0.1, 1.0)
    path = ground.directory / "spans"
    path.touch()
    async with opened(ground), ground.raw() as conn:
        await tasks.spanned.submit_many([()] * round(PER_SECOND * (WARM + undisturbed + EVERY * cuts)))
        async with working(ground, WORKERS, *OPTIONS, **{VARIABLE: str(path)}):
            await asyncio.sleep(WARM)
            began_at = time.monotonic()
            await asyncio.sleep(undisturbed)
            cut_at = time.monotonic()
            for _ in range(cuts):
                await conn.execute(CUT)
                await asyncio.sleep(EVERY)
            ended_at = time.monotonic()
    spans = read(path)
    ends = [span.ended for span in spans if span.is_whole]
    before = sum(began_at <= end < cut_at for end in ends) / (cut_at - began_at)
    after = sum(cut_at <= end < ended_at for end in ends) / (ended_at - cut_at)
    cancelled = len(spans) - len(ends)
    ground.tell(overlaps=len(overlapping(spans)), rate=after / before, runs=len(spans), cancelled=cancelled)
    return len(spans)


scenario = Scenario(
    name="cut_connections",
    about="all connections of three workers are cut every 2 s for 30 s: overlapping runs of one execution",
    run=run,
    unit="overlapping runs",
    figure="overlaps",
    less_is_better=True,
    goal=0,
)
