"""Leases under a worker: kept whatever the handler does, and a run stopped as soon as its own is gone."""

import asyncio
import logging
import threading

import pytest

from flowfabric.app import App
from flowfabric.engine import claims, workers
from flowfabric.ids import ExecutionId
from tests.conftest import Server
from tests.given import Given
from tests.worker.scene import SECOND, Gate, away, until, working


class Held:
    """A task whose handler waits at a gate, and says whether it was cancelled there."""

    def __init__(self, app: App) -> None:
        self.gate = Gate()
        self.cancelled = 0

        @app.task(name="held")
        async def held() -> str:
            try:
                await self.gate()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return "done"

        self.task = held

    async def begun(self) -> ExecutionId:
        execution = await self.task.submit()
        await until(lambda: self.gate.inside == 1)
        return execution.execution_id


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(database_url: str, given: Given) -> None:
    """Pitfall P29."""
    app = App(url=database_url)

    @app.task
    async def block() -> str:
        threading.Event().wait(2.5)
        return "done"

    async with working(app, **SECOND, sweeps=True):
        execution = await block.submit()
        assert await execution.result(20) == "done"

    told = await given.events(execution.execution_id)
    assert told == ["execution_submitted", "lease_acquired", "execution_completed"]


async def test_a_lease_that_is_revoked_stops_its_run(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, **SECOND, concurrency=1):
        execution_id = await held.begun()
        await claims.revoke(given.conn, execution_id, by="ops")
        await until(lambda: held.cancelled == 1)
        held.gate.open.set()
        assert await app.execution(execution_id).result(20) == "done"

    assert (await given.events(execution_id))[-3:] == ["lease_revoked", "lease_acquired", "execution_completed"]
    assert held.gate.came == 2


async def test_a_cancelled_execution_stops_its_run_at_once(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, lease="1h"):  # renewed every ten seconds: it is the hint that tells
        execution_id = await held.begun()
        async with asyncio.timeout(8):
            await app.execution(execution_id).cancel("not wanted")
            await until(lambda: held.cancelled == 1)

    assert (await given.events(execution_id))[-1] == "execution_cancelled"


async def test_a_worker_that_is_marked_dead_stops_its_runs_and_registers_again(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, **SECOND) as worker:
        execution_id = await held.begun()
        await workers.mark_dead(given.conn, worker.instance, by="ops", reason="it hangs")
        await until(lambda: held.cancelled == 1)
        held.gate.open.set()
        assert await app.execution(execution_id).result(20) == "done"
        [again] = (await workers.list_workers(given.conn)).items

    assert again.instance == worker.instance
    assert "lease_expired" not in await given.events(execution_id)


async def test_nothing_is_said_of_a_run_whose_lease_was_lost(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler does not listen: it returns although it was cancelled. Another holds the execution by then."""
    app, gate, ended = App(url=database_url), Gate(), asyncio.Event()

    @app.task
    async def deaf() -> str:
        try:
            await gate()
        except asyncio.CancelledError:
            ended.set()
        return "stale"

    async with working(app, **SECOND):
        execution = await deaf.submit()
        await until(lambda: gate.inside == 1)
        await given.conn.execute("update flowfabric.lanes set state = 'paused'")
        await claims.revoke(given.conn, execution.execution_id, by="ops")
        async with asyncio.timeout(20):
            await ended.wait()

    assert (await given.events(execution.execution_id))[-1] == "lease_revoked"
    assert "its run is cancelled" in caplog.text
    assert "is dropped, because this worker has lost its lease" not in caplog.text


async def test_a_thread_whose_lease_is_lost_is_named_and_its_result_dropped(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    app, begun, go_on = App(url=database_url), threading.Semaphore(0), threading.Event()

    @app.task
    def stuck() -> str:
        begun.release()
        go_on.wait(30)
        return threading.current_thread().name

    async with working(app, **SECOND, concurrency=1):
        execution = await stuck.submit()
        await asyncio.to_thread(begun.acquire)
        await claims.revoke(given.conn, execution.execution_id, by="ops")
        await asyncio.to_thread(begun.acquire)  # the slot was free: it runs again, beside the first
        go_on.set()
        assert await execution.result(20) == f"stuck {execution.execution_id}"

    assert f"thread of stuck {execution.execution_id} was cancelled but cannot be stopped" in caplog.text
    assert (await given.events(execution.execution_id)).count("execution_completed") == 1


async def test_a_worker_whose_database_is_away_past_its_lease_stops_its_runs_by_its_own_clock(
    database_url: str, given: Given, server: Server
) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, **SECOND):
        execution_id = await held.begun()
        async with away(server, given):
            await until(lambda: held.cancelled == 1)
            assert "lease_expired" not in await given.events(execution_id)
        held.gate.open.set()
        await until(lambda: _swept(given))
        assert await app.execution(execution_id).result(20) == "done"


async def test_what_was_done_while_the_database_was_away_is_reported_when_it_is_back(
    database_url: str, given: Given, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url=database_url, timeout="100ms")
    held = Held(app)

    async with working(app, lease="30s"):
        execution_id = await held.begun()
        async with away(server, given):
            held.gate.open.set()
            await until(lambda: f"held {execution_id} waits for the database" in caplog.text)
        assert await app.execution(execution_id).result(20) == "done"

    assert held.gate.came == 1


async def test_a_lease_is_released_once_its_run_is_reported(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.worker")
    app = App(url=database_url)

    @app.task
    async def quick() -> None: ...

    async with working(app, **SECOND) as worker:
        for execution in await quick.submit_many([()] * 50):
            await execution.result(20)
        await until(lambda: not worker.busy)

    assert caplog.text == ""


async def _swept(given: Given) -> bool:
    await claims.expire_leases(given.conn)
    return "lease_expired" in await given.events()
