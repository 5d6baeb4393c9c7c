"""Stopping: the worker claims no more, lets runs finish for a while, and releases the rest without a penalty."""

import asyncio
import re
import threading

import pytest

from flowfabric.app import App
from flowfabric.durations import read_duration
from flowfabric.engine import attempts, workers
from flowfabric.errors import InvalidLane, InvalidLease, InvalidName
from flowfabric.worker import Worker
from tests.given import Given
from tests.worker.scene import Gate, gated, until, working


async def test_runs_may_finish(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    async with working(app, drain="30s") as worker:
        execution = await wait.submit()
        await until(lambda: gate.inside == 1)
        worker.stop()
        later = await wait.submit()
        gate.open.set()
        await execution.result(20)

    assert gate.came == 1
    assert await given.state(later.execution_id) == "waiting"
    assert await given.rows("select from flowfabric.workers") == []
    assert (await given.events())[-1] == "worker_expired"


async def test_a_run_that_does_not_finish_in_time_is_released_and_not_counted(database_url: str, given: Given) -> None:
    """A release at shutdown is not a crash: it uses up no attempt, retry or reclaim."""
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate, policy={"max_reclaim_count": 0})

    async with working(app, drain="0s", concurrency=2):
        released = await wait.submit_many([()] * 2)
        await until(lambda: gate.inside == 2)
    assert gate.inside == 0

    for execution in released:
        assert (await given.events(execution.execution_id))[1:] == ["lease_acquired", "execution_delayed"]
    gate.open.set()
    async with working(app):
        for execution in released:
            await execution.result(20)
            described = await execution.describe()
            assert (described.counts.attempts, described.counts.retries, described.counts.reclaims) == (1, 0, 0)


async def test_executions_that_had_not_started_are_released_immediately(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def work(slow: bool) -> None:
        if slow:
            await gate()

    async with working(app, concurrency=1, prefetch=10, drain="30s") as worker:
        await work.submit_many([(False,)] * 30)
        await until(lambda: _is_idle(given))
        await work.submit_many([(True,)] * 4)
        await until(lambda: gate.inside == 1 and _active(given, 4))
        worker.stop()
        await until(lambda: _active(given, 1))
        gate.open.set()

    assert gate.came == 1


async def test_a_thread_that_does_not_end_does_not_block_the_worker(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    app, begun, proceed = App(url=database_url), threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        begun.set()
        proceed.wait(30)

    async with working(app, drain="0s"):
        execution = await stuck.submit()
        await until(begun.is_set)
    proceed.set()

    assert f"stuck {execution.execution_id}" in caplog.text
    assert (await given.events(execution.execution_id))[-1] == "execution_delayed"


async def test_a_cancelled_worker_releases_its_executions(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    async with app:
        running = asyncio.create_task(Worker(app, sweeps=False).run())
        execution = await wait.submit()
        await until(lambda: gate.inside == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert gate.inside == 0
    assert (await given.events(execution.execution_id))[-1] == "execution_delayed"
    assert (await workers.list_workers(given.conn, expired=True)).items == []


async def test_an_instance_is_new_for_every_start(database_url: str) -> None:
    """A worker that restarts under the same name must not inherit the old leases."""
    app = App(url=database_url)

    assert len({Worker(app, name="same").instance for _ in range(10)}) == 10


async def test_a_worker_with_invalid_options_raises(database_url: str, given: Given) -> None:
    app = App(url=database_url)

    with pytest.raises(ValueError, match=r"concurrency.* 0"):
        Worker(app, concurrency=0)
    async with app, asyncio.timeout(20):
        with pytest.raises(InvalidLane):
            await Worker(app, lanes=["bad\tlane"]).run()
        with pytest.raises(InvalidName):
            await Worker(app, namespace="").run()
        for lease in ("0s", "999ms", "3600001ms", "2h"):
            with pytest.raises(InvalidLease, match=r"1,000 to 3,600,000 ms") as at_once:
                await Worker(app, lease=lease).run()
            with pytest.raises(InvalidLease, match=f"^{re.escape(str(at_once.value))}$"):
                await given.claim(lease=read_duration(lease))
    assert await given.count("workers") == 0


async def test_a_worker_can_be_stopped_before_it_starts(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    async with app:
        worker = Worker(app)
        worker.stop()
        async with asyncio.timeout(20):
            await worker.run()

    assert (await attempts.time_out_attempts(given.conn)).moved == 0
    assert await given.count("workers") == 0


async def _active(given: Given, count: int) -> bool:
    [row] = await given.rows("select count(*) from flowfabric.tickets where phase = 'active'")
    return bool(row["count"] == count)


async def _is_idle(given: Given) -> bool:
    return await given.count("tickets") == 0
