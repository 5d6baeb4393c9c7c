"""Outages: a worker survives them, and everything that was acknowledged is stored afterwards."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.engine import events
from flowfabric.handler.context import Context
from flowfabric.model import EventFilter
from flowfabric.postgres import embedded
from tests.conftest import SOAK
from tests.given import Given
from tests.stories.test_crashes import ODD
from tests.worker.scene import at_work, cut, until

ROUNDS = 50 if SOAK else 5
BUSY: dict[str, Any] = {"lease": "3s", "concurrency": 20, "sweeps": True}


class Load:
    """Executions that are submitted and run during outages, and their results."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.app = App(url=url(), timeout=20.0)
        self.taken: list[Execution[int]] = []
        self.runs: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.overlaps: list[str] = []
        self.enough = asyncio.Event()

        @self.app.task(policy={"max_reclaim_count": 1_000})
        async def double(ctx: Context, number: int) -> int:
            name = str(ctx.execution_id)
            self.runs[name] += 1
            self.inside[name] += 1
            if self.inside[name] > 1:
                self.overlaps.append(name)
            try:
                await asyncio.sleep(random.uniform(0, 0.2))
                return await ctx.step("double", int, number * 2)
            finally:
                self.inside[name] -= 1

        self.double = double

    async def submit(self) -> None:
        """Submit one after the other until there are enough; each one in `taken` was acknowledged."""
        while not self.enough.is_set():
            self.taken.append(await self.double.submit(len(self.taken)))

    async def results(self) -> list[int]:
        return [await execution.result(60) for execution in self.taken]


async def test_workers_survive_repeated_connection_losses(database_url: str, given: Given) -> None:
    load = Load(lambda: database_url)

    async with load.app, at_work(load.app, **BUSY), at_work(load.app, **BUSY):
        submitting = asyncio.create_task(load.submit())
        for round_ in range(1, ROUNDS + 1):
            await until(lambda at_least=20 * round_: len(load.taken) >= at_least)
            await cut(given)
        load.enough.set()
        await submitting
        assert await load.results() == [number * 2 for number in range(len(load.taken))]

    assert await given.rows(ODD) == []
    assert await given.count("executions") == len(load.taken)


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator["Restartable"]:
    restartable = Restartable(tmp_path / "own")
    yield restartable
    await asyncio.to_thread(restartable.server.stop)


class Restartable:
    """A durable Postgres for one test."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.server = embedded.start(data, durable=True)

    async def restart(self) -> None:
        await asyncio.to_thread(self.server.stop)
        self.server = await asyncio.to_thread(embedded.start, self._data)


async def test_a_postgres_restarted_under_load_loses_nothing_that_was_acknowledged(own_server: Restartable) -> None:
    ff_url = own_server.server.url()
    await _migrated(ff_url)
    load, seen = Load(own_server.server.url), list[str]()

    async with load.app, at_work(load.app, **BUSY), at_work(load.app, **BUSY):
        following = asyncio.create_task(_follow(load.app, seen))
        submitting = asyncio.create_task(load.submit())
        for round_ in (1, 2):
            await until(lambda at_least=40 * round_: len(load.taken) >= at_least)
            acknowledged = await asyncio.gather(*(execution.result(60) for execution in load.taken[:20]))
            await own_server.restart()
        load.enough.set()
        await submitting
        results = await load.results()
        await until(lambda: len(seen) >= len(load.taken))
        following.cancel()

    assert acknowledged == results[:20]
    assert results == [number * 2 for number in range(len(load.taken))]
    assert load.overlaps == []
    assert sorted(seen) == sorted(str(execution.execution_id) for execution in load.taken)
    assert await _odd(ff_url) == []


async def _migrated(url: str) -> None:
    from flowfabric.config import Config
    from flowfabric.schema import migrate

    conn = await asyncpg.connect(url)
    await migrate.migrate(conn, Config())
    await conn.close()


async def _follow(app: App, seen: list[str]) -> None:
    subscription = await app.log.subscribe(events.OLDEST, EventFilter(kinds=["execution_completed"]))
    async for event in subscription:
        seen.append(str(event.execution_id))  # noqa: PERF401 - the loop never ends, and the list is read meanwhile


async def _odd(url: str) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(url)
    found: list[asyncpg.Record] = await conn.fetch(ODD)
    await conn.close()
    return found
