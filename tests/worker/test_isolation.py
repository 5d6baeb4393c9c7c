"""Isolation: what may have ended two workers runs when nothing else runs in its worker."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from flowfabric.app import App
from flowfabric.engine import claims, executions, holds
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, CurrentAttempt, Fence
from flowfabric.worker.isolation import Isolation
from tests.given import Given
from tests.worker.scene import Gate, at_work, gated, until


@pytest.fixture
def app(database_url: str) -> App:
    return App(url=database_url)


async def suspect(given: Given, task: str) -> ExecutionId:
    """An execution whose lease has expired twice while it ran, so that it runs alone; held for now."""
    execution_id = await given.submitted(task=task)
    for _ in range(2):
        await given.claim()
        await given.time_passes(minutes=1)
        await claims.expire_leases(given.conn)
    await given.time_passes(minutes=1)
    await holds.hold(given.conn, execution_id, by="ops")
    return execution_id


async def test_a_suspect_runs_when_its_neighbours_have_ended_and_nothing_is_claimed_until_it_has(
    app: App, given: Given
) -> None:
    before, alone, after = Gate(), Gate(), Gate()
    neighbour, later = gated(app, before, name="neighbour"), gated(app, after, name="later")
    gated(app, alone, name="suspect")

    held = await suspect(given, "suspect")
    async with app, at_work(app, concurrency=10) as worker:
        await neighbour.submit()
        await until(lambda: before.inside == 1)
        await holds.unhold(given.conn, held, by="ops")
        await until(lambda: _active(given, 2))
        await later.submit()
        assert (alone.came, after.came) == (0, 0)

        before.open.set()
        await until(lambda: alone.inside == 1)
        assert (len(worker._running), after.came) == (1, 0)
        assert await given.count("tickets where begun and crashes = 2") == 1

        alone.open.set()
        await until(lambda: after.inside == 1)
        after.open.set()


async def test_a_suspect_does_not_wait_for_ever_and_does_not_keep_the_worker_for_ever(app: App, given: Given) -> None:
    before, alone, after = Gate(), Gate(), Gate()
    neighbour, later = gated(app, before, name="neighbour"), gated(app, after, name="later")
    gated(app, alone, name="suspect")

    held = await suspect(given, "suspect")
    async with app, at_work(app, concurrency=10) as worker:
        worker._isolation = Isolation(patience=0.2)
        await neighbour.submit()
        await until(lambda: before.inside == 1)
        await holds.unhold(given.conn, held, by="ops")
        await until(lambda: alone.inside == 1)
        assert before.inside == 1
        await later.submit()
        await until(lambda: after.inside == 1)
        assert alone.inside == 1
        for gate in (before, alone, after):
            gate.open.set()


async def test_a_suspect_that_loses_its_lease_while_it_waits_gives_the_worker_free(app: App, given: Given) -> None:
    before, alone, after = Gate(), Gate(), Gate()
    neighbour, later = gated(app, before, name="neighbour"), gated(app, after, name="later")
    gated(app, alone, name="suspect")

    held = await suspect(given, "suspect")
    async with app, at_work(app, concurrency=10) as worker:
        await neighbour.submit()
        await until(lambda: before.inside == 1)
        await holds.unhold(given.conn, held, by="ops")
        await until(lambda: _active(given, 2))
        await executions.cancel(given.conn, held, reason="not wanted", by="ops")
        worker._heartbeat.renew_now()
        await later.submit()
        await until(lambda: after.inside == 1)
        assert alone.came == 0
        before.open.set()
        after.open.set()


async def test_isolation_ends_by_its_clock() -> None:
    moments = [0.0]
    kept = Isolation(clock=lambda: moments[0])
    claim = _claim()
    kept.wait(claim)
    assert (kept.is_held, kept.is_closed) == (True, True)
    assert (kept.may_start(claim, 1), kept.may_start(claim, 0)) == (False, True)
    assert kept.may_start(_claim(), 1)
    moments[0] = 30.0
    assert (kept.is_closed, kept.may_start(claim, 1)) == (False, True)
    kept.start(claim)
    assert kept.is_closed
    moments[0] = 60.0
    assert (kept.is_closed, kept.is_held) == (False, True)
    kept.end(_claim().fence)
    assert kept.is_held
    kept.end(claim.fence)
    assert not kept.is_held


def _claim() -> Claim:
    execution_id = ExecutionId(1, uuid4())
    now = datetime.now(UTC)
    return Claim(
        execution_id=execution_id,
        fence=Fence(execution_id=execution_id, lease_id=uuid4(), epoch=1, attempt=1),
        task="suspect", namespace="default", lane="default", priority=0, route=1, created_at=now,
        attempt=CurrentAttempt(number=1, type="reclaim", started_at=now), expires_at=now, alone=True,
    )  # fmt: skip


async def _active(given: Given, number: int) -> bool:
    return await given.count("tickets where phase = 'active'") == number
