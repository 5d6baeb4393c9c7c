"""A worker killed with `kill -9` under load: how soon its executions start on another worker."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks import tasks
from benchmarks.feeding import MOST, fed
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.stamps import Stamps
from benchmarks.workers import opened, stamped, until, worker, working

ROUNDS = 8
HELD = 10
LOADED = 2


def killing(lease: str, **environment: str) -> Callable[[Ground], Awaitable[int]]:
    """Kill one worker after the other, while it holds some executions and two other workers drain a lane.

    The worker that takes the executions over is the next to be killed.
    """
    options = ("--lanes", "held", "--lease", lease)

    async def run(ground: Ground) -> int:
        rounds = ground.scaled(ROUNDS)
        load = 2 * HELD * rounds  # the first stamp of the load
        stamps = stamped(ground, load + MOST)
        delays: list[float] = []
        async with (
            opened(ground),
            working(ground, LOADED, "--lanes", "default", **environment),
            AsyncExitStack() as started,
            fed(stamps, load),
        ):
            victim = await started.enter_async_context(worker(ground, *options, **environment))
            for number in range(rounds):
                numbers = range(number * HELD, (number + 1) * HELD)
                await hold(stamps, numbers)
                heir = await started.enter_async_context(worker(ground, *options, **environment))
                victim.kill()
                delays += await taken_over(stamps, numbers)
                victim = heir
        ground.tell(**percentiles("return", delays))
        return len(delays)

    return run


async def hold(stamps: Stamps, numbers: range) -> None:
    """Submit executions and wait until the only worker of their lane runs all of them."""
    await tasks.held.submit_many([(number,) for number in numbers])
    await until(lambda: all(stamps.at(2 * number) for number in numbers))


async def taken_over(stamps: Stamps, numbers: range) -> list[float]:
    """Wait until all of them run again, and return how many seconds each took."""
    killed_at = time.monotonic()
    await until(lambda: all(stamps.at(2 * number + 1) for number in numbers))
    return [stamps.at(2 * number + 1) - killed_at for number in numbers]


direct = Scenario(
    name="killed",
    about="kill to restart elsewhere, under load, a lease of 30 s: the lock of the dead process reveals it",
    run=killing("30s"),
    unit="ms, p99",
    figure="return_p99_ms",
    less_is_better=True,
    goal=1_500,
)
pooled = Scenario(
    name="killed_pooled",
    about="the same with the settings of a pooler and a lease of 5 s, which has to expire",
    run=killing("5s", FLOWFABRIC_POOLER="true"),
    unit="ms, p99",
    figure="return_p99_ms",
    less_is_better=True,
    against={direct.name: None},
    slow=True,
)
