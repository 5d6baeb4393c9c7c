"""Procrastinate: a queue on Postgres. It keeps the final status of a job, but no results, steps or waits."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Self

import procrastinate

from benchmarks.peers.engine import Mark
from benchmarks.peers.postgres import OnPostgres

CONNECTIONS = 12
AT_ONCE = 1_000
ENDED = "select count(*) from procrastinate_jobs where status = 'succeeded'"


class Adapter(OnPostgres):
    versions = ("procrastinate", "psycopg")

    async def __aenter__(self) -> Self:
        logging.disable(logging.WARNING)
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=4, max_size=CONNECTIONS)
        self._app: Any = procrastinate.App(connector=connector)
        await self._app.open_async()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._app.close_async()
        await super().__aexit__(*exc)

    def settings(self, processes: int) -> dict[str, object]:
        return {"concurrency": 10, "connections": CONNECTIONS}

    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def submit(self, task: str, number: int) -> Any:
        return await self._app.configure_task(task).defer_async(number=number)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), AT_ONCE):
            jobs = [{"number": number} for number in numbers[start : start + AT_ONCE]]
            await self._app.configure_task(task).batch_defer_async(*jobs)

    async def result(self, submitted: Any) -> None:
        """Poll for the status, because there is no call that waits."""
        while (await self._app.job_manager.get_job_status_async(submitted)).value != "succeeded":  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def ended(self) -> int:
        return int(await self.value(ENDED))

    async def work(self, mark: Mark, processes: int) -> None:
        async def nothing(number: int) -> int:
            mark(number)
            return number

        async with self:
            self._app.task(name="nothing")(nothing)
            await self._app.run_worker_async(concurrency=self.settings(processes)["concurrency"])
