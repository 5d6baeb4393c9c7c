"""Stopping: no more is claimed, what runs may finish for a while, the rest is handed back and counts as nothing."""

import asyncio
import threading
from datetime import timedelta

import pytest

from flowfabric.app import App
from flowfabric.durations import read_span
from flowfabric.engine import attempts, executions, workers
from flowfabric.errors import InvalidLane, InvalidLease, InvalidName
from flowfabric.worker import Worker
from tests.given import Given
from tests.worker.scene import Gate, gated, until, working


async def test_what_runs_may_finish(database_url: str, given: Given) -> None:
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
    assert (await executions.describe(given.conn, later.execution_id)).state.public_state == "waiting"
    assert await given.rows("select from flowfabric.workers") == []
    assert (await given.events())[-1] == "worker_expired"


async def test_what_does_not_finish_in_time_is_handed_back_and_counts_as_nothing(
    database_url: str, given: Given
) -> None:
    """Pitfall P26."""
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate, policy={"max_reclaim_count": 0})

    async with working(app, drain="0s", concurrency=2):
        handed_back = await wait.submit_many([()] * 2)
        await until(lambda: gate.inside == 2)
    assert gate.inside == 0

    for execution in handed_back:
        assert (await given.events(execution.execution_id))[1:] == ["lease_acquired", "execution_delayed"]
    gate.open.set()
    async with working(app):
        for execution in handed_back:
            await execution.result(20)
            described = await execution.describe()
            assert (described.counts.attempts, described.counts.retries, described.counts.reclaims) == (1, 0, 0)


async def test_what_had_not_begun_is_handed_back_at_once(database_url: str, given: Given) -> None:
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


async def test_a_thread_that_does_not_end_does_not_keep_the_worker(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    app, begun, go_on = App(url=database_url), threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        begun.set()
        go_on.wait(30)

    async with working(app, drain="0s"):
        execution = await stuck.submit()
        await until(begun.is_set)
    go_on.set()

    assert "cannot be stopped" in caplog.text
    assert (await given.events(execution.execution_id))[-1] == "execution_delayed"


async def test_a_worker_that_is_cancelled_hands_its_work_back(database_url: str, given: Given) -> None:
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
    assert (await workers.list_workers(given.conn, lapsed=True)).items == []


async def test_an_instance_is_new_for_every_start(database_url: str) -> None:
    """Pitfall P28."""
    app = App(url=database_url)

    assert len({Worker(app, name="same").instance for _ in range(10)}) == 10


async def test_a_worker_that_cannot_be_says_why(database_url: str, given: Given) -> None:
    app = App(url=database_url)

    with pytest.raises(ValueError, match="concurrency is 0"):
        Worker(app, concurrency=0)
    async with app, asyncio.timeout(20):
        with pytest.raises(InvalidLane):
            await Worker(app, lanes=["bad\tlane"]).run()
        with pytest.raises(InvalidName):
            await Worker(app, namespace="").run()
        for lease in ("0s", "999ms", "3600001ms", "2h"):
            milliseconds = read_span(lease) // timedelta(milliseconds=1)
            with pytest.raises(InvalidLease, match=f"{milliseconds} ms; give 1000 to 3600000 ms"):
                await Worker(app, lease=lease).run()
            with pytest.raises(InvalidLease, match=f"{milliseconds} ms"):
                await given.claim(lease=read_span(lease))
    assert await given.count("workers") == 0


async def test_a_worker_can_be_stopped_before_it_has_begun(database_url: str, given: Given) -> None:
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
