"""One execution at a time on an idle worker: how long from submitting to the start, and to the result."""

import sys
import time

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.workers import opened, working

COUNT = 300


async def run(ground: Ground) -> int:
    starts, results = [], []
    async with opened(ground), working(ground, 1):
        await (await tasks.began.submit()).result()
        with ground.timed():
            for _ in range(COUNT):
                submitted_at = time.monotonic()
                execution = await tasks.began.submit()
                starts.append(await execution.result() - submitted_at)
                results.append(time.monotonic() - submitted_at)
    print(f"    submit → start {told(starts)}, submit → result {told(results)}", file=sys.stderr, flush=True)
    return COUNT


def told(seconds: list[float]) -> str:
    """The middle one and the slowest of a hundred, in milliseconds."""
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"p50 {p50 * 1_000:.1f} ms, p99 {p99 * 1_000:.1f} ms"


scenario = Scenario(
    name="idle_latency",
    about="submitted, run and the result awaited, one at a time, by a worker in another process",
    run=run,
    against={"submit_one_by_one": None},
)
