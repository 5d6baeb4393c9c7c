"""Workers whose connections are cut again and again: no handler overlaps another run of the same execution."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchmarks.spans import VARIABLE, overlapping, read
from benchmarks.workers import APP, ROOT
from tests.conftest import SOAK
from tests.given import Given
from tests.worker.scene import LIVENESS, cut, until, worker_process

SECONDS = 30 if SOAK else 6
EVERY = 2
WORKERS = 3


async def cut_one(given: Given) -> None:
    """Cut the connection of one worker that shows that the worker lives."""
    await given.rows(f"select pg_terminate_backend(pid) from ({LIVENESS} order by random() limit 1) l")


@pytest.mark.parametrize("cuts", [cut, cut_one], ids=["every_connection", "one_heartbeat"])
async def test_cut_connections_never_make_a_handler_overlap_another_run_of_its_execution(
    database_url: str, given: Given, tmp_path: Path, cuts: Callable[[Given], Awaitable[None]]
) -> None:
    path = tmp_path / "spans"
    options = ("--concurrency", "10", "--lease", "10s")
    environment = {VARIABLE: str(path), "PYTHONPATH": str(ROOT)}
    async with asyncio.TaskGroup() as workers:
        stop = asyncio.Event()
        for _ in range(WORKERS):
            workers.create_task(work(database_url, APP, stop, *options, **environment))
        await until(lambda: _registered(given))
        for _ in range(SECONDS // EVERY):
            for _ in range(WORKERS * 10):
                await given.submitted(task="spanned")
            await asyncio.sleep(EVERY)  # real connections and processes: the clock cannot be moved
            await cuts(given)
        await until(lambda: _over(given))
        stop.set()

    assert overlapping(read(path)) == []
    found = await given.rows("select detail ->> 'reason' as why from flowfabric.events where kind = 'worker_expired'")
    assert {row["why"] for row in found} == {"stopped"}


async def work(url: str, place: str, stop: asyncio.Event, *options: str, **environment: str) -> None:
    async with worker_process(url, place, *options, **environment) as process:
        await stop.wait()
        process.terminate()
        await process.wait()


async def _registered(given: Given) -> bool:
    return await given.count("workers") == WORKERS


async def _over(given: Given) -> bool:
    return await given.count("tickets") == 0
