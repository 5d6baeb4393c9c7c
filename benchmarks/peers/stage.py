"""Runs on a peer's Python: runs one scenario and prints its result, or is one of its workers."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from benchmarks import processors
from benchmarks.figures import percentiles
from benchmarks.peers.engine import Engine
from benchmarks.stamps import VARIABLE, Stamps

TIMEOUT = 900.0
WARM = 20
GAP = (0.002, 0.012)  # seconds between two calls, so that they do not synchronize with a poll


class Asked(NamedTuple):
    """The arguments of a peer's process, passed as JSON."""

    peer: str
    scenario: str
    url: str
    directory: str
    amount: int
    scale: float = 1.0
    processes: int = 1
    server: int = 0
    """The process id of Postgres."""


class Stage:
    """One scenario, run by one peer."""

    def __init__(self, engine: Engine, asked: Asked) -> None:
        self.engine = engine
        self.asked = asked
        self.count = asked.amount
        self.seconds = 0.0
        self.figures: dict[str, float] = {}
        self.settings: dict[str, object] = {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds += time.monotonic() - start

    def processor_seconds(self) -> float:
        """The processor time so far of its workers and servers."""
        return processors.seconds(os.getpid(), self.asked.server)

    def stamps(self, count: int) -> Stamps:
        return Stamps.make(Path(self.asked.directory, "stamps"), count)

    @asynccontextmanager
    async def working(self, processes: int) -> AsyncIterator[None]:
        """Run this many worker processes, which end when their standard input closes."""
        self.settings = self.engine.settings(processes)
        asked = json.dumps(self.asked._replace(processes=processes))
        command = [sys.executable, "-m", "benchmarks.peers.stage", "work", asked]
        environment = os.environ | {VARIABLE: str(Path(self.asked.directory, "stamps"))}
        workers = [_start(command, environment) for _ in range(processes)]
        watching = asyncio.create_task(_watch(workers))
        try:
            yield
        finally:
            watching.cancel()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.close()
                worker.wait()

    async def until(self, reached: Callable[[], bool], pause: float = 0.005) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not reached():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(pause)

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            while await self.engine.ended() < count:  # noqa: ASYNC110 - its workers change it
                await asyncio.sleep(0.01)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        await self.engine.submit_many(task, numbers)
        await self.engine.settle()


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr)


async def _watch(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Exit if a worker dies; otherwise this process would wait for ever."""
    while all(worker.poll() is None for worker in workers):  # noqa: ASYNC110 - processes send no notification
        await asyncio.sleep(0.2)
    print("a worker of the peer has died", file=sys.stderr, flush=True)
    os._exit(1)


async def work(engine: Engine, asked: Asked) -> None:
    """Be a worker until the parent process has ended for any reason."""

    def leave_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    stamps = Stamps.inherited()
    assert stamps is not None
    await engine.work(stamps.mark, asked.processes)


async def play(engine: Engine, asked: Asked) -> None:
    """Run the scenario and print its result."""
    from benchmarks.peers.plays import PLAYS

    async with engine:
        await engine.install()
        stage = Stage(engine, asked)
        await PLAYS[asked.scenario](stage)
    versions = {"python": sys.version.split()[0]}
    for package in engine.versions:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    rate = stage.count / stage.seconds if stage.seconds else None
    about = {"versions": versions, "settings": stage.settings, "on_postgres": engine.on_postgres}
    print(json.dumps({"rate": rate, "figures": stage.figures, **about}))


Play = Callable[[Stage], Awaitable[None]]


async def gap() -> None:
    await asyncio.sleep(random.uniform(*GAP))


def told(stage: Stage, name: str, seconds: Sequence[float]) -> None:
    stage.figures.update(percentiles(name, seconds))


def main() -> None:
    verb, text = sys.argv[1:]
    asked = Asked(*json.loads(text))
    adapter = import_module(f"benchmarks.peers.adapters.{asked.peer}")
    engine: Engine = adapter.Adapter(asked.url, Path(asked.directory))
    engine.scenario = asked.scenario
    asyncio.run(play(engine, asked) if verb == "play" else work(engine, asked))
    sys.stdout.flush()
    os._exit(0)  # some libraries leave threads behind that would keep the process alive


if __name__ == "__main__":
    main()
