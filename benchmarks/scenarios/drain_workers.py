"""Real tasks, run by worker processes until none is left."""

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import drained, opened, stamped, until, working
from flowfabric.app.tasks import Task
from flowfabric.engine import lanes

COUNT = 20_000
RUNS_OF_STEPS = 1_000


def draining(
    task: Task[..., Any], call: Callable[[int], tuple[Any, ...]], count: int, processes: int
) -> Callable[[Ground], Awaitable[int]]:
    """Drain everything with this many worker processes, which are idle on a paused lane until the timer starts."""

    async def run(ground: Ground) -> int:
        calls = [call(number) for number in range(ground.scaled(count))]
        stamps = stamped(ground, len(calls))
        async with opened(ground) as app, working(ground, processes), app.database.connection() as conn:
            await lanes.configure_lane(conn, task.options.lane)
            await lanes.pause_lane(conn, task.options.lane, by="benchmark")
            await task.submit_many(calls)
            with ground.timed():
                await lanes.resume_lane(conn, task.options.lane, by="benchmark")
                await app.wake(task.options.lane)
                await until(lambda: stamps.reached() == len(calls))
                await drained(conn)
        ground.tell(processor_us=ground.processor_seconds / len(calls) * 1e6)
        return len(calls)

    return run


by_one = Scenario(
    name="drain_one_worker",
    about="run and completed by one worker process",
    run=draining(tasks.nothing, lambda number: (number,), COUNT, 1),
    against={"raw_drain": None, "drain_by_100": None},
    for_peers=COUNT,
)
by_two = Scenario(
    name="drain_two_workers",
    about="run and completed by two worker processes",
    run=draining(tasks.nothing, lambda number: (number,), COUNT, 2),
    against={"raw_drain": None, "drain_one_worker": None},
    for_peers=COUNT,
)
ten_steps = Scenario(
    name="ten_steps",
    about="ten saved steps each, one worker process",
    run=draining(tasks.ten_steps, lambda number: (number,), RUNS_OF_STEPS, 1),
    against={"raw_steps": None, "drain_one_worker": None},
    for_peers=RUNS_OF_STEPS,
)
