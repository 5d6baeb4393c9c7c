"""The app whose workers are measured: `ff worker benchmarks/tasks.py:app`."""

import time

from flowfabric.app import App
from flowfabric.context import Context

app = App()


@app.task
async def nothing(number: int) -> int:
    """As little as a task can do."""
    return number


@app.task
async def began() -> float:
    """When it began, by a clock that all processes of the machine share."""
    return time.monotonic()


@app.task
async def ten_steps(ctx: Context) -> int:
    """Ten saved steps, one after the other."""
    return sum([await ctx.step("step", int, number) for number in range(10)])
