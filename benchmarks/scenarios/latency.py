"""The time from submission to start and to result, on an idle worker and on a worker at half of its capacity."""

import asyncio
import os
import random
import time

from benchmarks import processors, tasks
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, working

COUNT = 300
OFFERED = 10_000
WARM = 20
IN_FLIGHT = 50
GAP = (0.002, 0.012)  # seconds between two calls, so that they do not synchronize with a poll


async def once() -> tuple[float, float]:
    """Return the seconds from submission to start and to result."""
    submitted_at = time.monotonic()
    began_at = await (await tasks.began.submit()).result()
    return began_at - submitted_at, time.monotonic() - submitted_at


async def idle(ground: Ground) -> int:
    times = []
    async with opened(ground), working(ground, 1):
        for number in range(WARM + ground.scaled(COUNT)):
            await asyncio.sleep(random.uniform(*GAP))
            took = await once()
            if number >= WARM:
                times.append(took)
    return told(ground, times)


async def half_load(ground: Ground) -> int:
    """Measure the capacity of one worker first, then offer half of it, evenly."""
    count = ground.scaled(OFFERED)
    async with opened(ground), working(ground, 1):
        for _ in range(WARM):
            await once()
        used = processor_seconds(ground)
        pace = await most(count) / 2
        at_most, used = processor_seconds(ground) - used, processor_seconds(ground)
        offered, began = [], time.monotonic()
        for index in range(count):
            await asyncio.sleep(max(began + index / pace - time.monotonic(), 0))
            offered.append(asyncio.create_task(once()))
        times = await asyncio.gather(*offered)
        at_half = processor_seconds(ground) - used
    ground.tell(offered_per_s=pace, processor_us=at_half / count * 1e6, processor_us_at_most=at_most / count * 1e6)
    return told(ground, times)


def processor_seconds(ground: Ground) -> float:
    """The processor time so far of the worker, of the server and of this process, which submits and waits."""
    return processors.seconds(os.getpid(), ground.server) + time.process_time()


async def most(count: int) -> float:
    """The rate per second with `IN_FLIGHT` executions always in progress."""

    async def caller() -> None:
        for _ in range(max(count // IN_FLIGHT, 1)):
            await once()

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return max(count // IN_FLIGHT, 1) * IN_FLIGHT / (time.monotonic() - began)


def told(ground: Ground, times: list[tuple[float, float]]) -> int:
    ground.tell(**percentiles("start", [start for start, _ in times]))
    ground.tell(**percentiles("result", [result for _, result in times]))
    return len(times)


idle_latency = Scenario(
    name="idle_latency",
    about="submit to start and to result, one at a time, the worker in another process",
    run=idle,
    unit="ms to start, p50",
    figure="start_p50_ms",
    less_is_better=True,
    against={"raw_latency": None},
    for_peers=COUNT,
)
half_load_latency = Scenario(
    name="half_load_latency",
    about="the same while the worker runs at half of its capacity",
    run=half_load,
    unit="ms to start, p50",
    figure="start_p50_ms",
    less_is_better=True,
    against={"raw_latency": None, "idle_latency": None},
    for_peers=OFFERED // 5,
)
