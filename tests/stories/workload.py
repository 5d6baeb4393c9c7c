"""The tasks of worker processes in the stories: `ff worker tests/stories/workload.py:app`.

Every call of a step is recorded in the table `calls` of the same database, on a separate connection.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg

from flowfabric.app import App
from flowfabric.handler.context import Context
from flowfabric.postgres.driver import Connection

app = App()
pools: dict[str, Any] = {}

TABLES = """
create table calls (execution uuid not null, step int not null, pid int not null, was_saved boolean not null)
"""
NOTE = """
insert into calls select $1, $2::int, $3, exists (
    select from flowfabric.steps s where s.execution = $1 and s.name = 'step ' || $2::int)
"""


async def pool() -> Any:
    if "pool" not in pools:
        pools["pool"] = await asyncpg.create_pool(os.environ["FLOWFABRIC_URL"], min_size=1, max_size=2)
    return pools["pool"]


@app.task(policy={"max_reclaim_count": 1_000})
async def ten_steps(ctx: Context, number: int) -> list[int]:
    """Ten steps; each records that it was called, and whether it was already saved."""

    async def step(index: int) -> int:
        await (await pool()).execute(NOTE, ctx.execution_id.uuid, index, os.getpid())
        return number * 100 + index

    return [await ctx.step(f"step {index}", step, index) for index in range(10)]


@app.task
async def stuck_once(ctx: Context) -> None:
    """Record that it was called, and never end in the first attempt."""
    await (await pool()).execute(NOTE, ctx.execution_id.uuid, ctx.attempt, os.getpid())
    if ctx.attempt == 1:
        await asyncio.Event().wait()


@app.task(policy={"max_reclaim_count": 2})
async def poison(path: str) -> None:
    """Kill the process that runs it."""
    with Path(path).open("a") as file:  # noqa: ASYNC230 - the last thing it does
        file.write(f"{os.getpid()}\n")
    os._exit(9)


@app.task(policy={"max_reclaim_count": int(os.environ.get("CAP", "2"))})
async def killer() -> None:
    """Kill the process that runs it, whatever else runs there."""
    await asyncio.sleep(0.01)
    os._exit(9)


@app.task(policy={"max_reclaim_count": int(os.environ.get("CAP", "2"))})
async def innocent(number: int) -> int:
    await asyncio.sleep(0.1)
    return number


@app.task
async def harmless(number: int) -> int:
    return number


@app.task(policy={"max_reclaim_count": 10})
async def charge_once(ctx: Context, path: str) -> None:
    """Charge in a transaction step; the first process is killed between the writes and the commit."""

    async def charge(conn: Connection) -> None:
        await conn.execute(NOTE, ctx.execution_id.uuid, 0, os.getpid())
        if not os.path.exists(path):  # noqa: ASYNC240, PTH110 - the last thing it does
            Path(path).touch()  # noqa: ASYNC240
            os._exit(9)

    await ctx.transaction_step("step 0", charge)


@app.task(policy={"max_reclaim_count": 1_000})
async def noted_square(ctx: Context, number: int) -> int:
    """Record each call, then square the number."""
    await (await pool()).execute(NOTE, ctx.execution_id.uuid, number, os.getpid())
    await ctx.step("beat", print)
    return number * number


@app.task(policy={"max_reclaim_count": 1_000})
async def squares(ctx: Context, many: int) -> list[int]:
    """Square many numbers, four at a time."""
    return await ctx.map(noted_square, range(many), max_running=4)
