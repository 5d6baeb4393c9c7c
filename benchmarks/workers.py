"""Worker processes for the scenarios, as a user runs them, and what keeps them busy."""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.stamps import VARIABLE, Stamps
from flowfabric.app import App
from flowfabric.config import Config
from flowfabric.postgres.driver import Connection

APP = f"{Path(__file__).with_name('tasks.py')}:app"
ROOT = Path(__file__).parent.parent
TIMEOUT = 900.0
STOP_TIMEOUT = 60.0


@asynccontextmanager
async def opened(ground: Ground) -> AsyncIterator[App]:
    """Open the app of the tasks on the database of this measurement."""
    tasks.app.config = Config.read(url=ground.url)
    async with tasks.app as app:
        yield app


def stamped(ground: Ground, count: int) -> Stamps:
    """Create room for the stamps of this many runs; workers that start afterwards use it."""
    return Stamps.make(ground.directory / "stamps", count)


@asynccontextmanager
async def working(ground: Ground, processes: int, *options: str, **environment: str) -> AsyncIterator[list[Process]]:
    """Run this many worker processes and stop them at the end."""
    async with AsyncExitStack() as started:
        starting = [worker(ground, *options, **environment) for _ in range(processes)]
        yield await asyncio.gather(*map(started.enter_async_context, starting))


@asynccontextmanager
async def worker(ground: Ground, *options: str, **environment: str) -> AsyncIterator[Process]:
    """Run one worker process and stop it at the end, unless it has ended by then; kill it if it does not stop."""
    async with command(ground, "worker", APP, *options, says=b"working as ", **environment) as process:
        yield process


@asynccontextmanager
async def command(ground: Ground, *arguments: str, says: bytes, **environment: str) -> AsyncIterator[Process]:
    """Run `ff` with these arguments for the length of the block, from when it prints what it `says` at its start."""
    stamps = ground.directory / "stamps"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", *arguments),
        cwd=ROOT,
        env={
            **os.environ,
            "FLOWFABRIC_URL": ground.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            VARIABLE: str(stamps) if stamps.exists() else "",
            **environment,
        },
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        said = await process.stdout.readline()
        if not said.startswith(says):
            raise RuntimeError(
                f"ff {arguments[0]} did not start; it printed {said.decode()!r}, and standard error says why"
            )
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            process.kill()
            await process.wait()


async def until(reached: Callable[[], bool], pause: float = 0.005) -> None:
    """Wait until other processes have made a condition true."""
    async with asyncio.timeout(TIMEOUT):
        while not reached():  # noqa: ASYNC110 - they send no notification
            await asyncio.sleep(pause)


async def until_none(conn: Connection, query: str) -> None:
    """Wait until a query finds nothing."""
    async with asyncio.timeout(TIMEOUT):
        while await conn.fetch(query):  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.01)


async def drained(conn: Connection) -> None:
    """Wait until no execution is left."""
    await until_none(conn, "select from flowfabric.tickets limit 1")
