"""A load for the scenarios that break something: work that never runs out, and its rate."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from benchmarks import tasks
from benchmarks.stamps import Stamps
from benchmarks.workers import until

AT_ONCE = 2_000
MOST = 1_000_000


@asynccontextmanager
async def fed(stamps: Stamps, first: int = 0) -> AsyncIterator[None]:
    """Keep one or two thousand executions waiting in the lane `default` during the block.

    They leave the stamps from `first` on.
    """
    feeding = asyncio.create_task(feed(stamps, first))
    try:
        await until(lambda: feeding.done() or stamps.is_marked(first))
        yield
        if feeding.done():
            feeding.result()
            raise RuntimeError(f"{len(stamps):,} executions were not enough; raise MOST in {__file__}")
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])


async def feed(stamps: Stamps, first: int) -> None:
    for start in range(first, len(stamps) - AT_ONCE, AT_ONCE):
        await tasks.nothing.submit_many([(number,) for number in range(start, start + AT_ONCE)])
        await until(partial(stamps.is_marked, start))


def rate(moments: list[float], begin: float, end: float) -> float:
    """How many of these ordered moments a second has, from `begin` to `end`."""
    return (bisect_left(moments, end) - bisect_left(moments, begin)) / (end - begin)
