"""The first executions of a small and a large backlog, run by two workers: the depth must not matter."""

import time
from collections.abc import Awaitable, Callable

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import drained, opened, stamped, until, working
from flowfabric.engine import lanes

SMALL, LARGE, HUGE = 1_000, 100_000, 1_000_000
WINDOW = 10_000
AT_ONCE = 10_000


def running(backlog: int) -> Callable[[Ground], Awaitable[int]]:
    """Measure from the first start to the last start of the window; to the last end if there are no more executions."""

    async def run(ground: Ground) -> int:
        count = ground.scaled(backlog, least=2)
        window = ground.scaled(WINDOW, least=2)
        stamps = stamped(ground, count)
        async with opened(ground) as app, app.database.connection() as conn:
            await lanes.configure_lane(conn, "default")
            for start in range(0, count, AT_ONCE):
                await tasks.nothing.submit_many([(number,) for number in range(start, min(start + AT_ONCE, count))])
            await conn.execute("vacuum analyze")
            await conn.execute("checkpoint")
            async with working(ground, 2, "--drain", "0s"):
                if count <= window:
                    await until(lambda: stamps.reached() == count)
                    await drained(conn)
                    ground.seconds = time.monotonic() - stamps.moments()[0]
                    return count
                await until(lambda: stamps.reached() >= window)
        moments = stamps.moments()
        ground.seconds = moments[window - 1] - moments[0]
        return window - 1

    return run


small = Scenario(
    name="backlog_1_000", about=f"of {SMALL:,}", run=running(SMALL), against={"raw_drain": None}, for_peers=SMALL
)
large = Scenario(
    name="backlog_100_000",
    about=f"the first {WINDOW:,} of {LARGE:,}",
    run=running(LARGE),
    against={"raw_drain": None, small.name: None},
    for_peers=LARGE,
)
huge = Scenario(
    name="backlog_1_000_000",
    about=f"the first {WINDOW:,} of {HUGE:,}",
    run=running(HUGE),
    against={"raw_drain": None, large.name: None},
    for_peers=HUGE,
    slow=True,
)
