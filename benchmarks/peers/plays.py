"""The scenarios as peers run them, under the same names."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.peers.stage import TIMEOUT, WARM, Play, Stage, gap, told

CALLERS = 200
IN_FLIGHT = 50
WINDOW = 10_000
PINNED_SECONDS = 120.0
BACKLOG = 2_000


@asynccontextmanager
async def attended(stage: Stage, processes: int = 1) -> AsyncIterator[None]:
    """Run workers if the engine needs them before anything can be submitted."""
    if not stage.engine.pushes:
        yield
        return
    stage.stamps(stage.count + 1)
    async with stage.working(processes):
        await stage.engine.ready()
        yield


async def submit_one_by_one(stage: Stage) -> None:
    async with attended(stage):
        await stage.engine.submit("nothing", 0)
        with stage.timed():
            for number in range(stage.count):
                await stage.engine.submit("nothing", number)


async def submit_concurrent(stage: Stage) -> None:
    async def caller() -> None:
        for number in range(max(stage.count // CALLERS, 1)):
            await stage.engine.submit("nothing", number)

    stage.count = max(stage.count // CALLERS, 1) * CALLERS
    async with attended(stage):
        await stage.engine.submit("nothing", 0)
        with stage.timed():
            await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def submit_bulk(stage: Stage) -> None:
    await stage.engine.submit("nothing", 0)
    with stage.timed():
        await stage.engine.submit_many("nothing", range(stage.count))


def draining(task: str, processes: int) -> Play:
    """Measure from the first start to the last end."""

    async def run(stage: Stage) -> None:
        if stage.engine.pushes:
            await pushed(stage, task, processes)
            return
        stamps = stage.stamps(stage.count)
        await stage.submit_many(task, range(stage.count))
        async with stage.working(processes):
            await stage.until(lambda: stamps.reached() > 0)
            used, done = stage.processor_seconds(), stamps.reached()
            await stage.until(lambda: stamps.reached() == stage.count)
            await stage.until_ended(stage.count)
            stage.seconds = time.monotonic() - stamps.moments()[0]
            each = (stage.processor_seconds() - used) / max(stage.count - done, 1)
            stage.figures["processor_us"] = each * 1e6

    return run


async def pushed(stage: Stage, task: str, processes: int) -> None:
    """Measure from the first submission, because the engine starts work before the last one."""
    async with attended(stage, processes):
        used = stage.processor_seconds()
        with stage.timed():
            await stage.engine.submit_many(task, range(stage.count))
            await stage.until_ended(stage.count)
        stage.figures["processor_us"] = (stage.processor_seconds() - used) / stage.count * 1e6


async def idle_latency(stage: Stage) -> None:
    stamps = stage.stamps(WARM + stage.count)
    starts, results = [], []
    async with stage.working(1):
        await stage.engine.ready()
        for number in range(WARM + stage.count):
            await gap()
            submitted_at = time.monotonic()
            await stage.engine.call("nothing", number)
            if number >= WARM:
                starts.append(stamps.at(number) - submitted_at)
                results.append(time.monotonic() - submitted_at)
    told(stage, "start", starts)
    told(stage, "result", results)


async def half_load_latency(stage: Stage) -> None:
    """Measure the capacity of one worker first, then offer half of it, evenly."""
    room = 2 * (WARM + stage.count + IN_FLIGHT)
    stamps = stage.stamps(room)
    engine, numbers = stage.engine, iter(range(room))
    submitted: dict[int, float] = {}

    async def one(number: int) -> None:
        submitted[number] = time.monotonic()
        await engine.submit("nothing", number)
        await stage.until(lambda: stamps.at(number) > 0, 0.001)

    async def caller(least: int) -> None:
        for number in numbers:
            await one(number)
            if number >= least:
                return

    async with stage.working(1):
        await stage.engine.ready()
        await caller(WARM)
        before, began = len(submitted), time.monotonic()
        await asyncio.gather(*(caller(WARM + stage.count) for _ in range(IN_FLIGHT)))
        pace = (len(submitted) - before) / (time.monotonic() - began) / 2
        offered, began = [], time.monotonic()
        for index, number in zip(range(stage.count), numbers, strict=False):
            await asyncio.sleep(max(began + index / pace - time.monotonic(), 0))
            offered.append((number, asyncio.create_task(one(number))))
        await asyncio.gather(*(task for _, task in offered))
    stage.figures["offered_per_s"] = pace
    told(stage, "start", [stamps.at(number) - submitted[number] for number, _ in offered])


async def size(stage: Stage) -> None:
    before = await stage.engine.size()
    await draining("nothing", 1)(stage)
    stage.figures["bytes"] = (await stage.engine.size() - before) / stage.count


async def backlog(stage: Stage) -> None:
    """Measure the first starts of a backlog; if the backlog is not larger than that, measure all of it to the end."""
    window = max(round(WINDOW * stage.asked.scale), 2)
    if stage.count <= window:
        await draining("nothing", 2)(stage)
        return
    stamps = stage.stamps(stage.count)
    await stage.submit_many("nothing", range(stage.count))
    async with stage.working(2):
        await stage.until(lambda: stamps.reached() >= window)
    moments = stamps.moments()
    stage.count, stage.seconds = window - 1, moments[window - 1] - moments[0]


def going_on(pinned: bool) -> Play:
    """Submit work continuously for a while, with or without an idle snapshot beside it."""

    async def run(stage: Stage) -> None:
        seconds = max(PINNED_SECONDS * stage.asked.scale, 1.0)
        stamps = stage.stamps(round(seconds * 50_000))
        await stage.engine.submit_many("nothing", range(500))
        if pinned:
            await stage.engine.pin()
        submitted = 500
        async with stage.working(1):
            await stage.until(lambda: stamps.reached() > 0)
            began = time.monotonic()
            while time.monotonic() < began + seconds and submitted < len(stamps) - 500:
                if submitted - stamps.reached() < BACKLOG:
                    await stage.engine.submit_many("nothing", range(submitted, submitted + 500))
                    submitted += 500
                else:
                    await asyncio.sleep(0.005)
        within = [moment for moment in stamps.moments() if began <= moment <= began + seconds]
        stage.count, stage.seconds = len(within), seconds
        tenth = seconds / 10
        stage.figures["first_tenth_per_s"] = sum(moment < began + tenth for moment in within) / tenth
        stage.figures["last_tenth_per_s"] = sum(moment > began + 9 * tenth for moment in within) / tenth

    return run


@asynccontextmanager
async def waiting(stage: Stage) -> AsyncIterator[None]:
    """Wait until all are waiting. Engines that only report that a run has started get a while longer."""
    if not stage.engine.pushes:
        await stage.submit_many("waiter", range(stage.count))
    async with stage.working(1):
        if stage.engine.pushes:
            await stage.engine.ready()
            await stage.engine.submit_many("waiter", range(stage.count))
        async with asyncio.timeout(TIMEOUT):
            while await stage.engine.suspended() < stage.count:  # noqa: ASYNC110 - its workers change it
                await asyncio.sleep(0.05)
        await asyncio.sleep(2)
        yield


async def signals(stage: Stage) -> None:
    """Signal many waiting runs as fast as possible, until all have ended."""
    stamps = stage.stamps(stage.count)
    async with waiting(stage):
        with stage.timed():
            await stage.engine.signal_many(range(stage.count))
            await stage.until(lambda: stamps.reached() == stage.count)
            await stage.until_ended(stage.count)


async def signal_latency(stage: Stage) -> None:
    """Send one signal at a time and measure how soon the handler resumes."""
    stamps = stage.stamps(stage.count)
    delays = []
    async with waiting(stage):
        for number in range(stage.count):
            await gap()
            sent_at = time.monotonic()
            await stage.engine.signal(number)
            await stage.until(lambda number=number: stamps.at(number) > 0)  # type: ignore[misc]
            delays.append(stamps.at(number) - sent_at)
    told(stage, "handler", delays)


PLAYS: dict[str, Play] = {
    "submit_one_by_one": submit_one_by_one,
    "submit_concurrent": submit_concurrent,
    "submit_bulk": submit_bulk,
    "drain_one_worker": draining("nothing", 1),
    "drain_two_workers": draining("nothing", 2),
    "ten_steps": draining("steps", 1),
    "idle_latency": idle_latency,
    "half_load_latency": half_load_latency,
    "size": size,
    "backlog_1_000": backlog,
    "backlog_100_000": backlog,
    "backlog_1_000_000": backlog,
    "pinned": going_on(True),
    "unpinned": going_on(False),
    "signals": signals,
    "signal_latency": signal_latency,
}
