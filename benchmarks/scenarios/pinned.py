"""Continuous work beside a transaction with an old snapshot, so that vacuum cannot remove dead rows."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, stamped, until, working

SECONDS = 120.0
MOST_PER_SECOND = 50_000
BACKLOG = 2_000
AT_ONCE = 500


@asynccontextmanager
async def snapshot(ground: Ground, is_open: bool) -> AsyncIterator[None]:
    """An idle transaction with an old snapshot."""
    async with ground.raw() as conn:
        if is_open:
            await conn.execute("begin isolation level repeatable read; select txid_current()")
        yield


def going_on(pinned: bool) -> Callable[[Ground], Awaitable[int]]:
    """Keep one worker busy with a constant backlog."""

    async def run(ground: Ground) -> int:
        seconds = max(SECONDS * ground.scale, 1.0)
        stamps = stamped(ground, round(seconds * MOST_PER_SECOND))
        submitted = 0
        async with opened(ground), working(ground, 1), snapshot(ground, pinned):
            await tasks.nothing.submit(0)
            await until(lambda: stamps.at(0) > 0)
            began, submitted = time.monotonic(), 1
            while time.monotonic() < began + seconds and submitted < len(stamps) - AT_ONCE:
                if submitted - stamps.reached() < BACKLOG:
                    await tasks.nothing.submit_many([(submitted + index,) for index in range(AT_ONCE)])
                    submitted += AT_ONCE
                else:
                    await asyncio.sleep(0.005)
        within = [moment for moment in stamps.moments() if began <= moment <= began + seconds]
        tenth, ground.seconds = seconds / 10, seconds
        ground.tell(
            first_tenth_per_s=sum(moment < began + tenth for moment in within) / tenth,
            last_tenth_per_s=sum(moment > began + 9 * tenth for moment in within) / tenth,
        )
        return len(within)

    return run


unpinned = Scenario(
    name="unpinned",
    about="two minutes of continuous work, one worker process",
    run=going_on(False),
    against={"raw_drain": None},
    for_peers=1,
    slow=True,
)
pinned = Scenario(
    name="pinned",
    about="the same beside an idle transaction with a snapshot",
    run=going_on(True),
    against={unpinned.name: None, "raw_drain": None},
    for_peers=1,
    slow=True,
)
