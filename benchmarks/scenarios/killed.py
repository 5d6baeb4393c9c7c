"""A worker killed with `kill -9`: how soon its executions start on another worker."""

import time
from collections.abc import Awaitable, Callable

from benchmarks import tasks
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.stamps import Stamps
from benchmarks.workers import opened, stamped, until, worker

ROUNDS = 20
HELD = 10


def killing(lease: str, **environment: str) -> Callable[[Ground], Awaitable[int]]:
    """Kill a worker that holds some executions while another one waits, one pair after the other."""

    async def run(ground: Ground) -> int:
        rounds = ground.scaled(ROUNDS)
        stamps = stamped(ground, 2 * HELD * rounds)
        delays: list[float] = []
        async with opened(ground):
            for number in range(rounds):
                numbers = range(number * HELD, (number + 1) * HELD)
                delays += await one(ground, stamps, numbers, ("--lanes", "held", "--lease", lease), environment)
        ground.tell(**percentiles("return", delays))
        return len(delays)

    return run


async def one(
    ground: Ground, stamps: Stamps, numbers: range, options: tuple[str, ...], environment: dict[str, str]
) -> list[float]:
    async with worker(ground, *options, **environment) as victim:
        await tasks.held.submit_many([(number,) for number in numbers])
        await until(lambda: all(stamps.at(2 * number) for number in numbers))
        async with worker(ground, *options, **environment):
            victim.kill()
            killed_at = time.monotonic()
            await until(lambda: all(stamps.at(2 * number + 1) for number in numbers))
    return [stamps.at(2 * number + 1) - killed_at for number in numbers]


direct = Scenario(
    name="killed",
    about="kill to restart, a lease of 30 s: the lock of the dead process reveals it",
    run=killing("30s"),
    unit="ms, p99",
    figure="return_p99_ms",
    less_is_better=True,
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
