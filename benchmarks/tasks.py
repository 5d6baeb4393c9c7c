"""The app whose workers are measured: `ff worker benchmarks/tasks.py:app`."""

import asyncio
import time

from benchmarks.stamps import Stamps
from flowfabric.app import App
from flowfabric.handler.context import Context

SETS = 10

app = App()
stamps = Stamps.inherited()


def mark(number: int) -> None:
    """Leave a stamp for whoever started this process."""
    if stamps is not None:
        stamps.mark(number)


@app.task
async def nothing(number: int) -> int:
    """As little as a task can do."""
    mark(number)
    return number


@app.task
async def began() -> float:
    """When it began, by a clock that all processes of the machine share."""
    return time.monotonic()


@app.task
async def began_by_date() -> float:
    """When it began, by the clock that the database reads too."""
    return time.time()


@app.task
async def ten_steps(ctx: Context) -> int:
    """Ten saved steps, one after the other."""
    return sum([await ctx.step("step", int, number) for number in range(10)])


@app.task
async def waiter(ctx: Context, number: int) -> int:
    """Gives out a token, waits for the signal it allows, and goes on."""
    await ctx.create_waitpoint("go")
    await ctx.wait_for_signal("go")
    mark(number)
    return number


@app.task
async def parked(ctx: Context) -> None:
    """Waits for what never comes."""
    await ctx.wait_for_signal("never")


@app.task
async def parent(ctx: Context, count: int) -> int:
    """Submits so many children and waits for all of them."""
    children = await asyncio.gather(*(ctx.submit(nothing, number) for number in range(count)))
    return sum(await asyncio.gather(*(child.result() for child in children)))


@app.task(lane="held", policy={"max_reclaim_count": 1_000})
async def held(ctx: Context, number: int) -> int:
    """Begun, it never ends; taken over from a worker that died, it ends at once."""
    mark(2 * number + (ctx.attempt > 1))
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return number


async def routed(number: int) -> int:
    """As little as a task can do, for those who are able to."""
    mark(number)
    return number


ROUTED = [
    app.task(name=f"routed_{index}", lane="routed", needs={f"skill-{index}", "common"})(routed) for index in range(SETS)
]
