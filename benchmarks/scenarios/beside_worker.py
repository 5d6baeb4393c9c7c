"""A process that submits or signals and runs the worker too: with leases that come back with the call, and without."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.latency import GAP, once
from benchmarks.workers import opened
from flowfabric.app import App
from flowfabric.app.lending import Lenders
from flowfabric.model import PublicState
from flowfabric.postgres.driver import Connection
from flowfabric.worker import Worker

COUNT = 200
TURNS = 5
LEASED_AT_ONCE = """
select count(*)::float8 as amount from flowfabric.events s join flowfabric.events l
on l.execution = s.execution and l.xmin = s.xmin
where s.kind = $1 and l.kind = 'lease_acquired'
"""
SESSIONS = "select pid from pg_stat_activity where datname = current_database()"

Times = list[tuple[float, float]]


async def cpu_seconds(conn: Connection) -> float:
    """The processor time of this process and of all sessions of this database."""
    pids = [int(row["pid"]) for row in await conn.fetch(SESSIONS)]
    return time.process_time() + sum(map(session_seconds, pids))


def session_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@asynccontextmanager
async def beside_worker(ground: Ground) -> AsyncIterator[App]:
    """The app of the tasks, with a worker in this process."""
    async with opened(ground) as app:
        worker = Worker(app, sweeps=False)
        working = asyncio.create_task(worker.run())
        await worker.ready.wait()
        try:
            yield app
        finally:
            worker.stop()
            await working


async def measured(ground: Ground, act: Callable[[], Awaitable[tuple[float, float]]], cause: str) -> int:
    """Take turns with and without leases that come back with the call, which appends an event of the kind `cause`."""
    count = ground.scaled(COUNT)
    took: dict[str, Times] = {"plain": [], "leased": []}
    used = {"plain": 0.0, "leased": 0.0}
    async with beside_worker(ground) as app, app.database.connection() as conn:
        lenders = {"plain": Lenders(), "leased": app.client.lenders}
        for _ in range(20):
            await act()
        with ground.timed():
            for _ in range(TURNS):
                for kind, times in took.items():
                    app.client.lenders = lenders[kind]
                    began = await cpu_seconds(conn)
                    for _ in range(count):
                        await asyncio.sleep(random.uniform(*GAP))
                        times.append(await act())
                    used[kind] += await cpu_seconds(conn) - began
        [leased] = await conn.fetch(LEASED_AT_ONCE, cause)
    for kind, times in took.items():
        ground.tell(
            **{
                f"{kind}_first_p50_ms": median(first for first, _ in times) * 1e3,
                f"{kind}_second_p50_ms": median(second for _, second in times) * 1e3,
                f"{kind}_cpu_us": used[kind] / len(times) * 1e6,
            }
        )
    turns = [slice(number * count, (number + 1) * count) for number in range(TURNS)]
    ratios = [
        median(first for first, _ in took["leased"][turn]) / median(first for first, _ in took["plain"][turn])
        for turn in turns
    ]
    ground.tell(ratio=median(ratios), leased_at_once=leased["amount"] / (TURNS * count))
    return 2 * TURNS * count


async def submitting(ground: Ground) -> int:
    return await measured(ground, once, "execution_submitted")


async def signalled() -> tuple[float, float]:
    """Return the seconds from a signal to the handler that it resumes, and to its result."""
    waiting = await tasks.resumed.submit()
    while await waiting.state() is not PublicState.SUSPENDED:  # noqa: ASYNC110 - it sends no notification
        await asyncio.sleep(0.001)
    token = tasks.points.pop(str(waiting.execution_id)).token
    sent_at = time.monotonic()
    await waiting.signal("go", token=token)
    resumed_at = await waiting.result()
    return resumed_at - sent_at, time.monotonic() - sent_at


async def signalling(ground: Ground) -> int:
    return await measured(ground, signalled, "execution_resumed")


submit = Scenario(
    name="submit_beside_worker",
    about="submit to start (first) and to result (second) in the process of the worker, leased at once or claimed",
    run=submitting,
    unit="x the time to start when claimed",
    figure="ratio",
    less_is_better=True,
)
signal = Scenario(
    name="signal_beside_worker",
    about="signal to handler (first) and to result (second) in the process of the worker, leased at once or claimed",
    run=signalling,
    unit="x the time to the handler when claimed",
    figure="ratio",
    less_is_better=True,
)
