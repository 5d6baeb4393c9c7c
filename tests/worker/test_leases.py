"""Leases of a worker: renewed whatever the handler does, and a run is stopped as soon as its lease is lost."""

import asyncio
import logging
import threading
from datetime import datetime, timedelta

import pytest

from flowfabric.app import App
from flowfabric.engine import claims, executions, workers
from flowfabric.ids import ExecutionId
from tests.conftest import Connect, Server
from tests.given import Given
from tests.worker.scene import LIVENESS, SECOND, Gate, away, cut, until, working


class Held:
    """A task whose handler waits at a gate; it counts how often it was cancelled there."""

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
    """Leases are renewed by a thread with its own connection; here a lease lasts one second."""
    app = App(url=database_url)

    @app.task
    async def block() -> str:
        threading.Event().wait(1.5)
        return "done"

    async with working(app, **SECOND, sweeps=True):
        execution = await block.submit()
        assert await execution.result(20) == "done"

    kinds = await given.events(execution.execution_id)
    assert kinds == ["execution_submitted", "lease_acquired", "execution_completed"]


async def test_a_revoked_lease_stops_its_run(database_url: str, given: Given) -> None:
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


async def test_a_cancelled_execution_stops_its_run_immediately(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, lease="1h"):  # renewed every ten seconds, so it is the notification that stops it
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
        await until(lambda: _registered(given, worker.instance))

    assert "lease_expired" not in await given.events(execution_id)


async def test_nothing_is_reported_of_a_run_whose_lease_was_lost(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler swallows its cancellation and returns, after its lease was revoked."""
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
    app, begun, proceed = App(url=database_url), threading.Semaphore(0), threading.Event()

    @app.task
    def stuck() -> str:
        begun.release()
        proceed.wait(30)
        return threading.current_thread().name

    async with working(app, **SECOND, concurrency=1):
        execution = await stuck.submit()
        await asyncio.to_thread(begun.acquire)
        await claims.revoke(given.conn, execution.execution_id, by="ops")
        await asyncio.to_thread(begun.acquire)  # the slot was free: it runs again, while the first still runs
        proceed.set()
        assert await execution.result(20) == f"stuck {execution.execution_id}"

    assert f"stuck {execution.execution_id}" in caplog.text
    assert (await given.events(execution.execution_id)).count("execution_completed") == 1


async def test_a_worker_without_its_database_stops_its_runs_when_their_leases_expire(
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


async def test_a_worker_whose_connections_are_cut_keeps_its_leases(database_url: str, given: Given) -> None:
    """Its liveness lock is lost with the connection; it takes the lock again long before the next renewal is due."""
    app = App(url=database_url)
    held = Held(app)

    async with working(app, sweeps=True), asyncio.timeout(8):
        execution_id = await held.begun()
        for _ in range(3):
            [before] = await given.rows(LIVENESS)
            await cut(given)
            await until(lambda before=before: _locked_anew(given, before["pid"]))
        held.gate.open.set()
        assert await app.execution(execution_id).result(20) == "done"

    assert held.gate.came == 1
    assert "lease_expired" not in await given.events(execution_id)


async def test_a_locked_execution_does_not_stop_the_renewal_of_other_leases(
    database_url: str, given: Given, connect: Connect
) -> None:
    """Its lock is held for longer than a lease, as by a handler that keeps a transaction open after `save_step`."""
    app = App(url=database_url)
    held = Held(app)

    async with working(app, **SECOND, concurrency=3):
        locked, *others = [execution.execution_id for execution in await held.task.submit_many([()] * 3)]
        await until(lambda: held.gate.inside == 3)
        async with (other := await connect()).transaction():
            await executions.change_priority(other, locked, 7, by="ops")
            await until(lambda: held.cancelled == 1)
            await until(lambda: _renewed_twice(given, others))
        held.gate.open.set()
        assert [await app.execution(each).result(20) for each in others] == ["done", "done"]

    assert held.cancelled == 1


async def test_a_lease_that_could_not_be_renewed_is_renewed_as_soon_as_its_execution_is_unlocked(
    database_url: str, given: Given, connect: Connect
) -> None:
    app = App(url=database_url)
    held = Held(app)

    async with working(app, lease="3s") as worker:  # renewed every second, and a locked one ten times as often
        execution_id = await held.begun()
        for _ in range(3):
            before = (await given.ticket(execution_id))["expires_at"]
            async with (other := await connect()).transaction():
                await executions.change_priority(other, execution_id, 7, by="ops")
                await until(lambda before=before: _beaten(given, worker.instance, before))
            await until(lambda before=before: _renewed(given, execution_id, before))
        held.gate.open.set()
        assert await app.execution(execution_id).result(20) == "done"

    assert held.cancelled == 0


async def test_a_heartbeat_that_gets_no_answer_says_so(
    database_url: str, given: Given, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(App(url=database_url), **SECOND), (other := await connect()).transaction():
        await other.execute("lock table flowfabric.workers in access exclusive mode")
        await until(lambda: "Postgres did not answer within 0.333333 s" in caplog.text)


async def test_a_run_that_ended_during_an_outage_is_reported_afterwards(
    database_url: str, given: Given, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url=database_url, timeout="100ms")
    held = Held(app)

    async with working(app, lease="30s"):
        execution_id = await held.begun()
        async with away(server, given):
            held.gate.open.set()
            await until(lambda: str(execution_id) in caplog.text)  # the report failed and will be repeated
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


async def _registered(given: Given, instance: str) -> bool:
    return [each.instance for each in (await workers.list_workers(given.conn)).items] == [instance]


async def _renewed_twice(given: Given, execution_ids: list[ExecutionId]) -> bool:
    """Whether these leases end at least two seconds after they were claimed; each lasts one second."""
    tickets = [await given.ticket(execution_id) for execution_id in execution_ids]
    return all(ticket["expires_at"] - ticket["attempt_started_at"] > timedelta(seconds=2) for ticket in tickets)


async def _renewed(given: Given, execution_id: ExecutionId, before: datetime) -> bool:
    return bool((await given.ticket(execution_id))["expires_at"] > before)


async def _beaten(given: Given, instance: str, expires_at: datetime) -> bool:
    """Whether the worker has sent a heartbeat, and so renewed, since its lease of three seconds was extended."""
    [row] = await given.rows("select beat_at from flowfabric.workers where instance = $1", instance)
    return bool(row["beat_at"] > expires_at - timedelta(seconds=3))


async def _locked_anew(given: Given, before: int) -> bool:
    found = await given.rows(LIVENESS)
    return bool(found) and found[0]["pid"] != before


async def _swept(given: Given) -> bool:
    await claims.expire_leases(given.conn)
    return "lease_expired" in await given.events()


async def test_leases_are_renewed_while_the_expired_entry_of_the_worker_is_locked(
    app: App, given: Given, connect: Connect
) -> None:
    held, other = Held(app), await connect()
    async with working(app, **SECOND):
        execution_id = await held.begun()
        first = (await given.ticket(execution_id))["expires_at"]
        async with other.transaction():
            await other.execute("select from flowfabric.workers for update")

            async def is_renewed() -> bool:
                return bool((await given.ticket(execution_id))["expires_at"] > first + timedelta(seconds=2))

            await until(is_renewed)
        held.gate.open.set()
        assert await app.execution(execution_id).result(20) == "done"

    assert (held.gate.came, held.cancelled) == (1, 0)
