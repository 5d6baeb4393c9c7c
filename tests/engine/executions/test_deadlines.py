"""Deadlines apply in every phase of an execution."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, claims, executions, holds, lanes
from flowfabric.errors import ExecutionNotActive
from flowfabric.ids import ExecutionId
from flowfabric.model import PublicState
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given

MINUTE = timedelta(minutes=1)
RETRY = {"retry": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def waiting(given: Given) -> ExecutionId:
    return await given.submitted(deadline=MINUTE)


async def delayed(given: Given) -> ExecutionId:
    return await given.submitted(deadline=MINUTE, delay=timedelta(hours=1))


async def blocked_by_lane(given: Given) -> ExecutionId:
    execution_id = await given.submitted(deadline=MINUTE)
    await lanes.pause_lane(given.conn, "default", by="ops")
    return execution_id


async def blocked_by_route(given: Given) -> ExecutionId:
    return await given.submitted(deadline=MINUTE, needs=["gpu"])


async def held(given: Given) -> ExecutionId:
    return await given.held(deadline=MINUTE)


async def active(given: Given) -> ExecutionId:
    return (await given.claimed(deadline=MINUTE, lease=timedelta(hours=1))).execution_id


async def lease_expired(given: Given) -> ExecutionId:
    return (await given.claimed(deadline=MINUTE)).execution_id


async def delayed_attempt(given: Given) -> ExecutionId:
    claim = await given.claimed(deadline=MINUTE)
    await attempts.delay(given.conn, claim.fence, timedelta(hours=1))
    return claim.execution_id


async def backing_off(given: Given) -> ExecutionId:
    claim = await given.claimed(deadline=MINUTE, policy=RETRY)
    await attempts.fail(given.conn, claim.fence, "no")
    return claim.execution_id


async def reclaimable(given: Given) -> ExecutionId:
    claim = await given.claimed(deadline=MINUTE)
    await claims.revoke(given.conn, claim.execution_id, by="ops")
    return claim.execution_id


PHASES = [
    waiting, delayed, blocked_by_lane, blocked_by_route, held, active,
    lease_expired, delayed_attempt, backing_off, reclaimable,
]  # fmt: skip


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_a_deadline_holds_in_every_phase(conn: Connection, given: Given, phase: object) -> None:
    execution_id: ExecutionId = await phase(given)  # type: ignore[operator]
    await given.time_passes(seconds=59)
    async with given.nothing_changes():
        assert (await executions.expire_executions(conn)).moved == 0
    await given.time_passes(seconds=1)

    swept = await executions.expire_executions(conn)

    assert (swept.moved, swept.ended) == (1, [execution_id])
    described = await executions.describe(conn, execution_id)
    assert (described.state.public_state, described.state.terminal_outcome) == (PublicState.EXPIRED, "expired")
    assert described.failure is not None
    assert described.failure.reason == "execution_deadline"
    assert await given.count("tickets") == 0
    assert (await given.events(execution_id)).count("execution_expired") == 1
    assert [attempt.lifecycle for attempt in (await attempts.list_attempts(conn, execution_id)).items][-1:] in (
        [], ["ended_failure"], ["interrupted_reclaimed"],
    )  # fmt: skip


async def test_a_deadline_ends_an_execution_with_a_live_lease(conn: Connection, given: Given) -> None:
    claim = await given.claimed(deadline=MINUTE, lease=timedelta(hours=1))
    await given.time_passes(minutes=1)
    await executions.expire_executions(conn)

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive) as refused:
            await attempts.complete(conn, claim.fence, b"late")
    assert refused.value.fields == {"phase": "terminal", "outcome": "expired", "epoch": 1, "attempt": 1}
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.lifecycle == "ended_failure"


async def test_a_deadline_takes_precedence_over_a_reclaim(conn: Connection, given: Given) -> None:
    claim = await given.claimed(deadline=MINUTE)
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)

    assert await given.claim() == []
    described = await executions.describe(conn, claim.execution_id)
    assert described.state.public_state is PublicState.EXPIRED
    assert described.counts.reclaims == 0


async def test_renewals_and_delays_do_not_move_the_deadline(conn: Connection, given: Given) -> None:
    claim = await given.claimed(deadline=MINUTE)
    await claims.renew(conn, claim.fence, lease=timedelta(hours=1))
    await attempts.delay(conn, claim.fence, timedelta(hours=1))
    await holds.hold(conn, claim.execution_id, by="ops")

    assert (await given.ticket(claim.execution_id))["deadline_at"] == claim.deadline_at


async def test_an_execution_without_a_deadline_never_expires(conn: Connection, given: Given) -> None:
    await given.submitted()
    await given.time_passes(days=3_650)

    async with given.nothing_changes():
        assert (await executions.expire_executions(conn)).moved == 0


async def test_the_sweep_expires_the_earliest_deadlines_first_up_to_its_limit(conn: Connection, given: Given) -> None:
    ids = [await given.submitted(deadline=timedelta(minutes=minutes)) for minutes in (3, 1, 2, 4)]
    await given.time_passes(minutes=3)

    first = await executions.expire_executions(conn, limit=1, passing=1)
    second = await executions.expire_executions(conn, limit=5)

    assert first.ended == [ids[2]]
    assert second.ended == [ids[1], ids[0]]
    assert (await executions.expire_executions(conn)).moved == 0


async def test_the_sweep_skips_locked_executions(given: Given, connect: Connect) -> None:
    """Every change re-checks the state under the lock."""
    execution_id = await given.submitted(deadline=MINUTE)
    await given.time_passes(minutes=1)
    other = await connect()
    async with other.transaction():
        await executions.cancel(other, execution_id, by="ops")
        assert (await executions.expire_executions(given.conn)).moved == 0

    assert (await executions.expire_executions(given.conn)).moved == 0
    assert (await executions.describe(given.conn, execution_id)).state.public_state is PublicState.CANCELLED


async def test_the_sweep_makes_due_executions_eligible(conn: Connection, given: Given) -> None:
    ids = [await given.submitted(lane=lane, delay=MINUTE) for lane in ("a", "b", "a")]
    await given.submitted(lane="c", delay=timedelta(hours=1))
    assert (await executions.promote_due(conn)).moved == 0
    await given.time_passes(minutes=1)

    assert (await executions.promote_due(conn, limit=2)).moved == 2
    swept = await executions.promote_due(conn)

    assert swept.moved == 1
    assert {(await given.ticket(one))["eligibility"] for one in ids} == {"eligible_now"}
    assert (await executions.promote_due(conn)).moved == 0
    assert [await given.events(one) for one in ids] == [["execution_submitted"]] * 3
