"""PgQueuer: a queue on Postgres. It keeps the final status of a job, but no results, steps or waits."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.engine import Mark
from benchmarks.peers.postgres import OnPostgres

CONNECTIONS = 4
AT_ONCE = 1_000
ENDED = "select count(*) from pgqueuer_log where status = 'successful'"


class Adapter(OnPostgres):
    versions = ("pgqueuer", "asyncpg", "uvloop")

    async def __aenter__(self) -> Self:
        self._pool = await asyncpg.create_pool(self.url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        self._queries: Any = Queries(AsyncpgPoolDriver(self._pool))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.close()
        await super().__aexit__(*exc)

    def settings(self, processes: int) -> dict[str, object]:
        return {"batch_size": 10 if "latency" in self.scenario else 1_000, "connections": CONNECTIONS, "loop": "uvloop"}

    async def install(self) -> None:
        await self._queries.install()

    async def submit(self, task: str, number: int) -> Any:
        [job] = await self._queries.enqueue(task, json.dumps(number).encode())
        return job

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), AT_ONCE):
            payloads = [json.dumps(number).encode() for number in numbers[start : start + AT_ONCE]]
            await self._queries.enqueue([task] * len(payloads), payloads, [0] * len(payloads))

    async def result(self, submitted: Any) -> None:
        """Poll for the status, which is faster than its own watcher, which collects changes for 50 ms."""
        while [status for _, status in await self._queries.job_status([submitted])] != ["successful"]:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def ended(self) -> int:
        return int(await self.value(ENDED))

    async def work(self, mark: Mark, processes: int) -> None:
        async def nothing(job: Any) -> None:
            mark(json.loads(job.payload))

        async def run() -> None:
            pool = await asyncpg.create_pool(self.url, min_size=CONNECTIONS, max_size=CONNECTIONS)
            queue = PgQueuer.from_asyncpg_pool(pool)
            queue.entrypoint("nothing")(nothing)
            await queue.run(batch_size=self.settings(processes)["batch_size"])

        await asyncio.to_thread(uvloop.run, run())
