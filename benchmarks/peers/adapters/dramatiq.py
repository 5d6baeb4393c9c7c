"""Dramatiq: a queue on Redis, with results in Redis. Redis writes to disk before it replies, as Postgres does."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from redis import Redis
from redis.exceptions import ConnectionError as NotUp

from benchmarks.peers.engine import Engine, Mark

RESULTS = "results"
THREADS = 8


class Adapter(Engine):
    versions = ("dramatiq", "redis", "hiredis")
    _server: subprocess.Popen[bytes] | None = None

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url, directory)
        self.socket = f"unix://{directory / 'redis'}"
        self._backend: Any = RedisBackend(url=self.socket, namespace=RESULTS, use_namespace_prefix_keys=True)
        self._broker: Any = RedisBroker(url=self.socket)
        self._broker.add_middleware(Results(backend=self._backend))
        self._mark: Mark = lambda _: None
        dramatiq.set_broker(self._broker)
        self._nothing: Any = dramatiq.actor(actor_name="nothing", store_results=True)(self._run)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()

    def settings(self, processes: int) -> dict[str, object]:
        return {"threads": THREADS, "redis": "appendonly yes, appendfsync always"}

    async def install(self) -> None:
        self._server = await asyncio.to_thread(_start, self.directory)

    async def submit(self, task: str, number: int) -> Any:
        return self._nothing.send(number)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Send one by one, because there is no bulk call."""
        for number in numbers:
            self._nothing.send(number)

    async def result(self, submitted: Any) -> None:
        submitted.get_result(backend=self._backend, block=True, timeout=60_000)

    async def ended(self) -> int:
        return len(Redis.from_url(self.socket).keys(f"{RESULTS}*"))

    async def work(self, mark: Mark, processes: int) -> None:
        self._mark = mark
        worker = dramatiq.Worker(self._broker, worker_threads=THREADS)
        worker.start()
        await asyncio.Event().wait()

    def _run(self, number: int) -> int:
        self._mark(number)
        return number


def _start(directory: Path) -> subprocess.Popen[bytes]:
    settings = ["--port", "0", "--unixsocket", str(directory / "redis"), "--dir", str(directory), "--save", ""]
    settings += ["--appendonly", "yes", "--appendfsync", "always"]
    server = subprocess.Popen(["redis-server", *settings], stdout=sys.stderr)
    while True:
        try:
            Redis.from_url(f"unix://{directory / 'redis'}").ping()
        except NotUp:
            time.sleep(0.05)
        else:
            return server
