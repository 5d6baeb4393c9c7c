"""Executions of real tasks, run by worker processes until none is left."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, working
from flowfabric.db import Connection
from flowfabric.engine import lanes
from flowfabric.task import Task

COUNT = 20_000


async def drained(conn: Connection) -> None:
    """Wait until no execution is left."""
    while await conn.fetch("select from flowfabric.tickets limit 1"):  # noqa: ASYNC110 - others move it
        await asyncio.sleep(0.01)


def draining(
    task: Task[..., Any], calls: Sequence[tuple[Any, ...]], processes: int
) -> Callable[[Ground], Awaitable[int]]:
    """All of it, by so many worker processes. They are up and idle, and the lane is paused, until the watch runs."""

    async def run(ground: Ground) -> int:
        async with opened(ground) as app, working(ground, processes), app.database.connection() as conn:
            await lanes.configure_lane(conn, task.terms.lane)
            await lanes.pause_lane(conn, task.terms.lane, by="benchmark")
            await task.submit_many(calls)
            with ground.timed():
                await lanes.resume_lane(conn, task.terms.lane, by="benchmark")
                await app.wake(task.terms.lane)
                await drained(conn)
        return len(calls)

    return run


NOTHING = [(number,) for number in range(COUNT)]

by_one = Scenario(
    name="drain_one_worker",
    about="run and completed by one worker process",
    run=draining(tasks.nothing, NOTHING, 1),
    against={"drain_by_100": None},
)
by_two = Scenario(
    name="drain_two_workers",
    about="run and completed by two worker processes",
    run=draining(tasks.nothing, NOTHING, 2),
    against={"drain_one_worker": None},
)
ten_steps = Scenario(
    name="ten_steps",
    about="ten saved steps each, one worker process",
    run=draining(tasks.ten_steps, [()] * 1_000, 1),
    against={"drain_one_worker": None},
)
