"""Worker processes for the scenarios, as a user runs them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import tasks
from benchmarks.ground import Ground
from flowfabric.app import App
from flowfabric.config import Config

APP = f"{Path(__file__).with_name('tasks.py')}:app"


@asynccontextmanager
async def opened(ground: Ground) -> AsyncIterator[App]:
    """The app of the tasks, open on the ground."""
    tasks.app.config = Config.read(url=ground.url)
    async with tasks.app as app:
        yield app


@asynccontextmanager
async def working(ground: Ground, processes: int) -> AsyncIterator[None]:
    """So many worker processes that are up, and stopped at the end."""
    async with AsyncExitStack() as started:
        await asyncio.gather(*(started.enter_async_context(_worker(ground)) for _ in range(processes)))
        yield


@asynccontextmanager
async def _worker(ground: Ground) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "worker", APP),
        env=os.environ | {"FLOWFABRIC_URL": ground.url},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        said = await process.stdout.readline()
        assert said.startswith(b"working as "), said
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
