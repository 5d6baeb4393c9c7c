"""The server killed with `kill -9` and started again: how soon workers are as fast as before."""

import asyncio
import time

from benchmarks.faults import kill_server
from benchmarks.feeding import MOST, fed, rate
from benchmarks.ground import Ground, own_server
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, stamped, working
from flowfabric.postgres import embedded

WORKERS = 2
WARM = 3.0  # seconds
WINDOW = 3.0
SETTLE = 3.0  # after the server is back


async def run(ground: Ground) -> int:
    """Compare the rate of two workers before the kill with the rate from 3 s after the server is back."""
    window = max(WINDOW * min(ground.scale, 1.0), 0.5)
    async with own_server(ground) as (data, own):
        stamps = stamped(own, MOST)
        async with opened(own), working(own, WORKERS), fed(stamps):
            await asyncio.sleep(WARM)
            began_at = time.monotonic()
            await asyncio.sleep(window + SETTLE + window)
            killed_at = time.monotonic()
            kill_server(data)
            with await asyncio.to_thread(embedded.start, data):
                back_at = time.monotonic()
                await asyncio.sleep(SETTLE + window)
    moments = stamps.moments()
    before = rate(moments, killed_at - window, killed_at)
    ground.tell(
        rate_after=rate(moments, back_at + SETTLE, back_at + SETTLE + window) / before,
        rate_until_then=rate(moments, back_at, back_at + SETTLE) / before,
        rate_undisturbed=before / rate(moments, began_at, began_at + window),
        before_per_s=before,
        away_ms=(back_at - killed_at) * 1_000,
        first_ms=(next(moment for moment in moments if moment > back_at) - back_at) * 1_000,
    )
    return len(moments)


scenario = Scenario(
    name="server_killed",
    about="rate of two workers from 3 s after Postgres is back from a kill -9, as a fraction of the rate before",
    run=run,
    unit="of the rate before",
    figure="rate_after",
    goal=0.95,
)
