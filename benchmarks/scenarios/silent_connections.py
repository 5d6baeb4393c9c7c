"""All connections go silent, without an error, while new ones work: how long nobody gets an answer."""

import asyncio
import time
from itertools import pairwise

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.proxy import proxied
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, working
from flowfabric.errors import FlowFabricError

EVERY = 0.05  # seconds between two submissions
WARM = 2.0
LIMIT = 45.0  # after which it stops waiting for answers


async def run(ground: Ground) -> int:
    """Submit one execution after the other, through connections that go silent all at once."""
    answers: list[float] = []  # when a submission was acknowledged, an execution had ended, or either had failed

    async def call() -> None:
        try:
            execution = await tasks.nothing.submit(0)
            answers.append(time.monotonic())
            await execution.result()
        except FlowFabricError:
            pass
        answers.append(time.monotonic())

    async with proxied(ground.url) as proxy:
        through = Ground(ground.config, proxy.url, directory=ground.directory)
        async with opened(through), working(through, 1, "--drain", "1s"), asyncio.TaskGroup() as calls:
            pending = [calls.create_task(call()) for _ in range(10)]
            await asyncio.wait(pending)
            deadline = time.monotonic() + WARM
            while time.monotonic() < deadline:
                pending.append(calls.create_task(call()))
                await asyncio.sleep(EVERY)
            proxy.silence()
            silent_at = time.monotonic()
            while time.monotonic() < silent_at + LIMIT and not recovered(answers, silent_at):
                pending.append(calls.create_task(call()))
                await asyncio.sleep(EVERY)
            ended_at = time.monotonic()
            await asyncio.wait(pending, timeout=WARM)
            for task in pending:
                task.cancel()
    later = [moment for moment in answers if silent_at < moment < ended_at]
    ground.tell(longest_s=max(after - before for before, after in pairwise([silent_at, *later, ended_at])))
    return len(answers)


def recovered(answers: list[float], silent_at: float) -> bool:
    """Whether answers have come regularly for a while since the connections went silent."""
    now = time.monotonic()
    recent = [moment for moment in answers if moment > max(silent_at, now - 2 * WARM)]
    return now > silent_at + 2 * WARM and max(b - a for a, b in pairwise([now - 2 * WARM, *recent, now])) < 0.5


scenario = Scenario(
    name="silent_connections",
    about="all connections go silent, new ones work: the longest time without an acknowledgement, an end or an error",
    run=run,
    unit="s",
    figure="longest_s",
    less_is_better=True,
)
