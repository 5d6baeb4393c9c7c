"""Absurd: durable tasks as SQL functions in Postgres, with a thin Python library."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from absurd_sdk import AsyncAbsurd

from benchmarks.peers.engine import STEPS, Mark
from benchmarks.peers.postgres import OnPostgres

QUEUE = "measured"
AT_ONCE = 500
CONNECTIONS = 4
SPAWN = """
select count(spawned.task_id)
from jsonb_array_elements(%s::jsonb) asked cross join lateral absurd.spawn_task(%s, %s, asked) spawned
"""
EMIT = "select absurd.emit_event(%s, name, 'true') from unnest(%s::text[]) name"
ENDED = f"select count(*) from absurd.t_{QUEUE} where state = 'completed'"
SUSPENDED = f"select count(*) from absurd.w_{QUEUE}"


class Adapter(OnPostgres):
    versions = ("absurd-sdk", "absurdctl", "psycopg")

    async def __aenter__(self) -> Self:
        self._app: Any = AsyncAbsurd(self.url, queue_name=QUEUE)
        # An app has one connection, which takes one call at a time, so many callers get several apps.
        self._apps: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        for _ in range(CONNECTIONS):
            self._apps.put_nowait(AsyncAbsurd(self.url, queue_name=QUEUE))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for app in (self._app, *(self._apps.get_nowait() for _ in range(self._apps.qsize()))):
            await app.close()
        await super().__aexit__(*exc)

    def settings(self, processes: int) -> dict[str, object]:
        return {"concurrency": 50 if processes > 1 else 500, "poll_interval": 0.005}

    async def install(self) -> None:
        program = Path(sys.executable).with_name("absurdctl")
        for verb, *names in (["init"], ["create-queue", QUEUE]):
            made = await asyncio.create_subprocess_exec(program, verb, "-d", self.url, *names, stdout=sys.stderr)
            if await made.wait():
                raise RuntimeError(f"absurdctl {verb} failed")

    async def submit(self, task: str, number: int) -> Any:
        app = await self._apps.get()
        try:
            return (await app.spawn(task, {"number": number}, queue=QUEUE))["task_id"]
        finally:
            self._apps.put_nowait(app)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Call its SQL function for many in one statement, because its library spawns only one at a time."""
        for start in range(0, len(numbers), AT_ONCE):
            some = [{"number": number} for number in numbers[start : start + AT_ONCE]]
            await self.value(SPAWN, json.dumps(some), QUEUE, task)

    async def result(self, submitted: Any) -> None:
        """Poll more often than its own waiting call, which starts at 50 ms."""
        while (found := await self._app.fetch_task_result(submitted)) is None or found.state != "completed":  # noqa: ASYNC110 - its workers change it
            await asyncio.sleep(0.002)

    async def ended(self) -> int:
        return int(await self.value(ENDED))

    async def suspended(self) -> int:
        return int(await self.value(SUSPENDED))

    async def signal(self, number: int) -> None:
        await self._app.emit_event(f"go {number}", 1, queue_name=QUEUE)

    async def signal_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), 100):
            await self.value(EMIT, QUEUE, [f"go {number}" for number in numbers[start : start + 100]])

    async def work(self, mark: Mark, processes: int) -> None:
        async def nothing(params: Any, _: Any) -> int:
            mark(params["number"])
            return int(params["number"])

        async def steps(params: Any, ctx: Any) -> int:
            async def step(index: int) -> int:
                return index

            mark(params["number"])
            return sum([await ctx.step(f"step {index}", lambda index=index: step(index)) for index in range(STEPS)])

        async def waiter(params: Any, ctx: Any) -> int:
            await ctx.await_event(f"go {params['number']}")
            mark(params["number"])
            return int(params["number"])

        async with self:
            for task in (nothing, steps, waiter):
                self._app.register_task(task.__name__)(task)
            chosen = self.settings(processes)
            await self._app.start_worker(concurrency=chosen["concurrency"], poll_interval=chosen["poll_interval"])
