"""Helpers for tests of the worker: workers in this process and in others."""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults import CUT
from flowfabric.app import App
from flowfabric.app.tasks import Task
from flowfabric.engine import workers
from flowfabric.worker import Worker
from tests.conftest import Server
from tests.given import Given
from tests.given import until as until

TIMEOUT = 30.0
SECOND = {"lease": "1s", "drain": "1s"}
# The sessions that hold the liveness lock of a worker.
LIVENESS = f"""
select l.pid from pg_locks l join pg_database d on d.oid = l.database
where l.locktype = 'advisory' and l.classid = {workers.LOCK_CLASS} and l.granted and d.datname = current_database()
"""


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker of an app in this process, without sweeps unless the options say otherwise."""
    async with app, at_work(app, **options) as worker:
        yield worker


@asynccontextmanager
async def at_work(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker of an open app."""
    worker = Worker(app, **{"sweeps": False, **options})
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(TIMEOUT):
        await worker.ready.wait()
    try:
        yield worker
    finally:
        worker.stop()
        await running


@asynccontextmanager
async def away(server: Server, given: Given) -> AsyncIterator[None]:
    """An outage: the database accepts no connections, and those of the workers are closed; the test keeps its own."""
    [row] = await given.rows("select current_database() as name")
    await server.execute(f"alter database {row['name']} allow_connections false")
    await cut(given)
    yield
    await server.execute(f"alter database {row['name']} allow_connections true")


async def cut(given: Given) -> None:
    """Close all connections to the database but the one of the test."""
    await given.rows(CUT)


class Gate:
    """Where handlers wait until it is opened; it counts how many have arrived."""

    def __init__(self) -> None:
        self.came = 0
        self.inside = 0
        self.most_inside = 0
        self.open = asyncio.Event()

    async def __call__(self) -> None:
        self.came += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1


def gated(app: App, gate: Gate, **options: Any) -> Task[[], None]:
    """A task whose handler waits at a gate."""

    @app.task(**{"name": "gated", **options})
    async def wait() -> None:
        await gate()

    task: Task[[], None] = wait
    return task


@asynccontextmanager
async def worker_process(url: str, place: str, *options: str, **environment: str) -> AsyncIterator[Process]:
    """`ff worker` in another process, after it has printed that it works; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "worker", place, *options),
        env={**os.environ, "FLOWFABRIC_URL": url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        await says(process, b"working as ")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def says(process: Process, beginning: bytes) -> bytes:
    """Return the next line of its output, which must begin like this."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT):
        line = await process.stdout.readline()
        assert line.startswith(beginning), (line, await process.stderr.read())
    return line


async def ends(process: Process) -> tuple[int, bytes]:
    """Its exit code, and its standard error."""
    async with asyncio.timeout(TIMEOUT):
        _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err


def written(directory: Path, source: str, name: str = "tasks.py") -> str:
    """Write a file with an app in it, and return it as a command takes it."""
    path = directory / name
    path.write_text(source)
    return f"{path}:app"
