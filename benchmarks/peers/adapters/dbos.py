"""DBOS Transact: durable workflows as a library on Postgres, with queues that workers poll."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from dbos import DBOS, DBOSClient, SendMessage

from benchmarks.peers.engine import STEPS, Mark
from benchmarks.peers.postgres import OnPostgres

QUEUE = "measured"
NAME = "benchmark"
VERSION = "1"
AT_ONCE = 500
ENDED = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
WAITING = "select count(*) from dbos.workflow_status where status = 'PENDING'"


class Adapter(OnPostgres):
    versions = ("dbos", "SQLAlchemy", "psycopg")
    _client: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            self._client.destroy()
        await super().__aexit__(*exc)

    def settings(self, processes: int) -> dict[str, object]:
        # A few polls take a whole backlog; frequent polls only slow down the work.
        polling = 0.005 if "latency" in self.scenario else 0.1
        at_once = 100 if self.scenario == "ten_steps" else 200 if processes > 1 else None
        return {"worker_concurrency": at_once, "polling_interval_sec": polling, "pool": 20}

    async def install(self) -> None:
        await asyncio.to_thread(DBOS.migrate, system_database_url=self.url)
        self._client = DBOSClient(system_database_url=self.url, application_name=NAME, system_database_pool_size=20)

    async def submit(self, task: str, number: int) -> Any:
        options = {"workflow_name": task, "queue_name": QUEUE}
        return await self._client.enqueue_async(options, number)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Send many in one transaction, because there is no bulk call."""

        def send() -> None:
            for start in range(0, len(numbers), AT_ONCE):
                with self._client._sys_db.engine.begin() as conn:
                    for number in numbers[start : start + AT_ONCE]:
                        options = {"workflow_name": task, "queue_name": QUEUE, "workflow_id": f"{task} {number}"}
                        self._client.enqueue_in_transaction(conn, options, number)

        await asyncio.to_thread(send)

    async def result(self, submitted: Any) -> None:
        await submitted.get_result(polling_interval_sec=0.002)

    async def ended(self) -> int:
        return int(await self.value(ENDED))

    async def suspended(self) -> int:
        return int(await self.value(WAITING))

    async def signal(self, number: int) -> None:
        await self._client.send_async(f"waiter {number}", 1, "go")

    async def signal_many(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), 100):
            some = numbers[start : start + 100]
            sent = [SendMessage(destination_id=f"waiter {number}", message=1, topic="go") for number in some]
            await self._client.send_bulk_async(sent)

    async def work(self, mark: Mark, processes: int) -> None:
        chosen = self.settings(processes)
        DBOS(config={
            "name": NAME, "system_database_url": self.url, "sys_db_pool_size": chosen["pool"],
            "log_level": "ERROR", "application_version": VERSION,
        })  # fmt: skip
        _define(mark)
        DBOS.launch()
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=chosen["worker_concurrency"],
            polling_interval_sec=chosen["polling_interval_sec"],
            on_conflict="always_update",
        )
        await asyncio.Event().wait()


def _define(mark: Mark) -> None:
    async def nothing(number: int) -> int:
        mark(number)
        return number

    async def step(index: int) -> int:
        return index

    saved = DBOS.step(name="step")(step)

    async def steps(number: int) -> int:
        mark(number)
        return sum([await saved(index) for index in range(STEPS)])

    async def waiter(number: int) -> int:
        await DBOS.recv_async("go", timeout_seconds=3_600)
        mark(number)
        return number

    for workflow in (nothing, steps, waiter):
        DBOS.workflow(name=workflow.__name__)(workflow)
