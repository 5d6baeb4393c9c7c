"""Workers whose connections are cut again and again: no handler overlaps another run of the same execution."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.given import Given
from tests.worker.scene import LIVENESS, cut, until, worker_process, written

SECONDS = 30 if SOAK else 6
EVERY = 2
WORKERS = 3

SOURCE = """
import asyncio, os, random, time

from flowfabric import App, Context

app = App()
lines = os.open(os.environ["LINES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.task(policy={"max_reclaim_count": 1_000})
async def slow(ctx: Context) -> None:
    began = time.monotonic()
    try:
        await asyncio.sleep(random.uniform(0.1, 3))
    finally:
        line = f'["{ctx.execution_id}", {ctx.attempt}, {began}, {time.monotonic()}]\\n'
        os.write(lines, line.encode())
"""


async def cut_one(given: Given) -> None:
    """Cut the connection of one worker that shows that the worker lives."""
    await given.rows(f"select pg_terminate_backend(pid) from ({LIVENESS} order by random() limit 1) l")


@pytest.mark.parametrize("cuts", [cut, cut_one], ids=["every_connection", "one_heartbeat"])
async def test_cut_connections_never_make_a_handler_overlap_another_run_of_its_execution(
    database_url: str, given: Given, tmp_path: Path, cuts: Callable[[Given], Awaitable[None]]
) -> None:
    place, lines = written(tmp_path, SOURCE), tmp_path / "lines"
    options = ("--concurrency", "10", "--lease", "10s")
    async with asyncio.TaskGroup() as workers:
        stop = asyncio.Event()
        for _ in range(WORKERS):
            workers.create_task(work(database_url, place, stop, *options, LINES=str(lines)))
        await until(lambda: _registered(given))
        for _ in range(SECONDS // EVERY):
            for _ in range(WORKERS * 10):
                await given.submitted(task="slow")
            await asyncio.sleep(EVERY)  # real connections and processes: the clock cannot be moved
            await cuts(given)
        await until(lambda: _over(given))
        stop.set()

    assert overlaps(lines) == []
    found = await given.rows("select detail ->> 'reason' as why from flowfabric.events where kind = 'worker_expired'")
    assert {row["why"] for row in found} == {"stopped"}


async def work(url: str, place: str, stop: asyncio.Event, *options: str, **environment: str) -> None:
    async with worker_process(url, place, *options, **environment) as process:
        await stop.wait()
        process.terminate()
        await process.wait()


def overlaps(lines: Path) -> list[tuple[str, list[float]]]:
    """The runs that began before an earlier run of the same execution had ended."""
    runs = defaultdict(list)
    for line in lines.read_text().splitlines():
        execution, _, began, ended = json.loads(line)
        runs[execution].append((began, ended))
    return [
        (execution, [later[0], earlier[1]])
        for execution, spans in runs.items()
        for earlier, later in zip(sorted(spans), sorted(spans)[1:], strict=False)
        if later[0] < earlier[1]
    ]


async def _registered(given: Given) -> bool:
    return await given.count("workers") == WORKERS


async def _over(given: Given) -> bool:
    return await given.count("tickets") == 0
