"""The app that the measured workers run: `ff worker benchmarks/tasks.py:app`."""

import asyncio
import random
import time

from benchmarks import spans
from benchmarks.stamps import Stamps
from flowfabric.app import App
from flowfabric.handler.context import Context
from flowfabric.model import CreatedWaitpoint

SETS = 10

app = App()
stamps = Stamps.inherited()
points: dict[str, CreatedWaitpoint] = {}


def mark(number: int) -> None:
    """Leave a stamp for the process that started this one."""
    if stamps is not None:
        stamps.mark(number)


@app.task
async def nothing(number: int) -> int:
    """Do as little as a task can do."""
    mark(number)
    return number


@app.task
async def began() -> float:
    """Return when it started, by a clock that all processes of the machine share."""
    return time.monotonic()


@app.task
async def began_by_date() -> float:
    """Return when it started, by the clock that the database also reads."""
    return time.time()


@app.task
async def ten_steps(ctx: Context, number: int) -> int:
    """Save ten steps, one after the other."""
    mark(number)
    return sum([await ctx.step("step", int, index) for index in range(10)])


@app.task
async def waiter(ctx: Context, number: int) -> int:
    """Create a waitpoint, wait for its signal, and return."""
    await ctx.create_waitpoint("go")
    await ctx.wait_for_signal("go")
    mark(number)
    return number


@app.task
async def resumed(ctx: Context) -> float:
    """Wait for a signal, and return when the handler resumed; only for a worker in the process that sends it."""
    points[str(ctx.execution_id)] = await ctx.create_waitpoint("go")
    await ctx.wait_for_signal("go")
    return time.monotonic()


@app.task
async def parked(ctx: Context) -> None:
    """Wait for a signal that never arrives."""
    await ctx.wait_for_signal("never")


@app.task
async def parent(ctx: Context, count: int) -> int:
    """Submit this many children and wait for all of them."""
    children = await asyncio.gather(*(ctx.submit(nothing, number) for number in range(count)))
    return sum(await asyncio.gather(*(child.result() for child in children)))


@app.task(lane="held", policy={"max_reclaim_count": 1_000})
async def held(ctx: Context, number: int) -> int:
    """Never end in the first attempt; end at once when taken over from a dead worker."""
    mark(2 * number + (ctx.attempt > 1))
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return number


@app.task(policy={"max_reclaim_count": 1_000})
async def spanned(ctx: Context) -> None:
    """Run for a while, and write down from when to when."""
    began, is_whole = time.monotonic(), False
    try:
        await asyncio.sleep(random.uniform(0.1, 3))
        is_whole = True
    finally:
        spans.write(spans.Span(str(ctx.execution_id), began, time.monotonic(), is_whole))


async def routed(number: int) -> int:
    """Do as little as a task can do, on a worker that has the capabilities."""
    mark(number)
    return number


ROUTED = [
    app.task(name=f"routed_{index}", lane="routed", needs={f"skill-{index}", "common"})(routed) for index in range(SETS)
]


@app.task
async def framed(ctx: Context, count: int) -> None:
    """Append small frames, each when the one before is committed."""
    for number in range(count):
        await ctx.append_frame("token", number, kind="stdout")


@app.task
async def spoken(ctx: Context, count: int) -> None:
    """Write small pieces of text, as a model does that is faster than the database."""
    async with ctx.stream("answer") as out:
        for number in range(count):
            await out.write(f"{number} ")


@app.task
async def timed_frames(ctx: Context, count: int) -> None:
    """Append frames that say when they were appended, and how long the call before took."""
    took = 0.0
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.005, 0.02))
        began = time.monotonic()
        await ctx.append_frame("time", {"appended": began, "previous_call": took})
        took = time.monotonic() - began


@app.task
async def ticking(ctx: Context, count: int, pause: float) -> None:
    """Append frames that say when they were appended, at random times."""
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
        await ctx.append_frame("time", time.monotonic())
