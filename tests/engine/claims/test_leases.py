"""Leases: renewing a lease, losing it, and making its execution claimable again."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import attempts, claims, executions, lanes
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FlowFabricError,
    InvalidBody,
    InvalidLease,
    InvalidText,
    LeaseLost,
)
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Completion, FailureReport, PublicState, Renewed, Revoked
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given

MINUTE = timedelta(minutes=1)


async def lease_expires(given: Given, **options: Any) -> None:
    """Let the only lease expire, and run the sweep."""
    await given.time_passes(minutes=1)
    swept = await claims.expire_leases(given.conn, **options)
    assert swept.moved == 1


async def test_a_renewal_moves_the_expiry_and_nothing_else(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    before = await given.ticket(claim.execution_id)
    now = await given.time_passes(seconds=20)

    renewed = await claims.renew(conn, claim.fence)

    after = await given.ticket(claim.execution_id)
    assert renewed.expires_at == after["expires_at"] >= now + timedelta(seconds=30)
    assert before | {"expires_at": None} == after | {"expires_at": None}


async def test_a_renewal_is_logged_if_the_lane_keeps_renewals(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "kept", keep_renewals=True)
    kept, other = await given.claimed(lane="kept", tags={"a.b": "c"}), await given.claimed()

    answers = await claims.renew_many(conn, [kept.fence, other.fence])

    assert all(isinstance(answer, Renewed) for answer in answers)
    assert await given.events(kept.execution_id) == ["execution_submitted", "lease_acquired", "lease_renewed"]
    assert await given.events(other.execution_id) == ["execution_submitted", "lease_acquired"]
    event = await given.event("lease_renewed")
    assert (event["instance"], event["epoch"], event["attempt"]) == (given.instance, 1, 1)


async def test_a_renewal_never_shortens_a_lease(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=timedelta(hours=1))

    assert (await claims.renew(conn, claim.fence, lease=timedelta(seconds=1))).expires_at == claim.expires_at


@pytest.mark.parametrize("milliseconds", [0, 999, 3_600_001])
async def test_a_renewal_with_an_invalid_lease_is_refused(conn: Connection, given: Given, milliseconds: int) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidLease):
            await claims.renew(conn, claim.fence, lease=timedelta(milliseconds=milliseconds))


async def test_renewals_are_answered_in_order(conn: Connection, given: Given) -> None:
    first, second = await given.claimed(), await given.claimed()
    done = await given.claimed()
    await attempts.complete(conn, done.fence)
    missing = first.fence.__class__(execution_id=mint_execution_id(), lease_id=uuid4(), epoch=1, attempt=1)

    answers = await claims.renew_many(
        conn, [second.fence, done.fence, missing, first.fence, second.fence], lease=MINUTE
    )

    assert [type(answer) for answer in answers] == [Renewed, ExecutionNotActive, ExecutionNotFound, Renewed, Renewed]
    assert await claims.renew_many(conn, []) == []


@pytest.mark.parametrize("is_swept", [False, True])
async def test_an_expired_lease_is_refused(conn: Connection, given: Given, is_swept: bool) -> None:
    """From `expires_at` on, every call under the lease is refused, before and after the sweep."""
    claim = await given.claimed()
    await given.time_passes(seconds=30)
    if is_swept:
        await claims.expire_leases(conn)

    async with given.nothing_changes():
        for call in (claims.renew, attempts.complete, attempts.delay):
            with pytest.raises(LeaseLost) as refused:
                await call(conn, claim.fence)
            assert refused.value.fields == {"cause": "expired"}
        with pytest.raises(LeaseLost) as refused:
            await attempts.fail(conn, claim.fence, "late")
        assert refused.value.fields == {"cause": "expired"}


async def test_an_expired_lease_is_reclaimed_automatically(conn: Connection, given: Given) -> None:
    old = await given.claimed()
    await lease_expires(given)
    [new] = await given.claim(instance="pool-2")

    assert (new.execution_id, new.attempt.number, new.attempt.type) == (old.execution_id, 2, "reclaim")
    assert (new.fence.epoch, new.resumed) == (2, False)
    assert (await executions.describe(conn, old.execution_id)).counts.reclaims == 1
    first, second = (await attempts.list_attempts(conn, old.execution_id)).items
    assert (first.lifecycle, first.instance) == ("interrupted_reclaimed", "pool-1")
    assert (second.lifecycle, second.instance) == ("started", "pool-2")
    assert (await given.event("lease_acquired"))["previous_instance"] == "pool-1"


async def test_an_expired_lease_is_recorded(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(minutes=1)

    swept = await claims.expire_leases(conn)

    assert (swept.moved, swept.lanes, swept.ended) == (1, ["default"], ())
    ticket = await given.ticket(claim.execution_id)
    assert (ticket["phase"], ticket["eligibility"], ticket["reason"], ticket["attempt_state"]) == (
        "runnable", "eligible_now", "waiting_for_worker", "pending_reclaim_attempt",
    )  # fmt: skip
    assert (ticket["lease_id"], ticket["epoch"], ticket["attempt"]) == (claim.fence.lease_id, 1, 1)
    assert await given.event("lease_expired") == {
        "lease_id": str(claim.fence.lease_id), "worker": given.worker, "instance": given.instance, "epoch": 1,
        "attempt": 1, "counted": True,
    }  # fmt: skip
    state = (await executions.describe(conn, claim.execution_id)).state
    assert (state.ownership_state, state.public_state) == ("lease_expired_reclaimable", PublicState.WAITING)


async def test_the_previous_holder_is_fenced_once_another_worker_has_the_execution(
    conn: Connection, given: Given
) -> None:
    old = await given.claimed()
    await lease_expires(given)
    await given.claim(instance="pool-2")

    async with given.nothing_changes():
        for call in (claims.renew, attempts.complete, attempts.delay):
            with pytest.raises(LeaseLost) as refused:
                await call(conn, old.fence)
            assert refused.value.fields == {"cause": "superseded"}


@pytest.mark.parametrize("cap", [0, 2])
async def test_an_execution_is_reclaimed_as_often_as_its_policy_allows(
    conn: Connection, given: Given, cap: int
) -> None:
    claim = await given.claimed(policy={"max_reclaim_count": cap})
    for _ in range(cap):
        await lease_expires(given)
        await given.time_passes(minutes=1)
        [claim] = await given.claim()
    await given.time_passes(minutes=1)

    swept = await claims.expire_leases(conn)

    assert (swept.lanes, swept.ended) == ((), [claim.execution_id])
    described = await executions.describe(conn, claim.execution_id)
    assert described.state.public_state is PublicState.FAILED
    assert described.failure is not None
    assert described.failure.reason == "max_reclaims_exceeded"
    assert (described.counts.attempts, described.counts.reclaims) == (cap + 1, cap)
    assert (await given.events(claim.execution_id))[-2:] == ["lease_expired", "execution_failed"]
    lifecycles = [attempt.lifecycle for attempt in (await attempts.list_attempts(conn, claim.execution_id)).items]
    assert lifecycles == ["interrupted_reclaimed"] * (cap + 1)


async def test_the_sweep_keeps_live_leases_and_finds_nothing_twice(conn: Connection, given: Given) -> None:
    await given.claimed()
    await given.time_passes(seconds=29)

    async with given.nothing_changes():
        assert (await claims.expire_leases(conn)).moved == 0
    await given.time_passes(seconds=1)
    assert (await claims.expire_leases(conn)).moved == 1
    assert (await claims.expire_leases(conn)).moved == 0


async def test_the_sweep_honours_its_limit_and_its_offset(conn: Connection, given: Given) -> None:
    """Rows that cannot be processed are skipped, so that they do not block later ones."""
    ids = [(await given.claimed()).execution_id for _ in range(5)]
    await given.time_passes(minutes=1)

    assert (await claims.expire_leases(conn, limit=2, passing=1)).moved == 2
    moved = [row["id"] for row in await given.rows("select id from flowfabric.tickets where phase = 'runnable'")]
    assert sorted(moved) == sorted(one.uuid for one in ids[1:3])
    assert (await claims.expire_leases(conn, limit=2)).moved == 2


async def test_the_sweep_skips_locked_tickets(given: Given, connect: Connect) -> None:
    claim = await given.claimed()
    await given.time_passes(seconds=29)
    other = await connect()
    async with other.transaction():
        await claims.renew(other, claim.fence)
        await given.time_passes(seconds=1)
        assert (await claims.expire_leases(given.conn)).moved == 0

    assert (await claims.expire_leases(given.conn)).moved == 0
    assert (await given.ticket(claim.execution_id))["phase"] == "active"


async def test_a_revoked_execution_is_claimable_immediately_and_no_reclaim_is_counted(
    conn: Connection, given: Given
) -> None:
    old = await given.claimed(policy={"max_reclaim_count": 0})

    revoked = await claims.revoke(conn, old.execution_id, by="ops", reason="stuck\0")

    assert revoked == Revoked(outcome="revoked", lease_id=old.fence.lease_id, epoch=1)
    assert await given.event("lease_revoked") == {
        "lease_id": str(old.fence.lease_id), "worker": given.worker, "instance": given.instance, "epoch": 1,
        "attempt": 1, "reason": "stuck\ufffd",
    }  # fmt: skip
    assert (await executions.describe(conn, old.execution_id)).state.ownership_state == "lease_revoked"
    [new] = await given.claim()
    assert (new.attempt.number, new.attempt.type, new.fence.epoch) == (2, "reclaim", 2)
    assert (await executions.describe(conn, old.execution_id)).counts.reclaims == 0


async def test_revoking_again_does_nothing_and_says_why(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    async def cause(execution_id: ExecutionId, **options: Any) -> str | None:
        async with given.nothing_changes():
            answer = await claims.revoke(conn, execution_id, by="ops", **options)
        assert answer.outcome == "noop"
        return answer.cause

    assert await cause(claim.execution_id, expected_lease_id=uuid4()) == "lease_id_mismatch"
    assert await cause(await given.submitted(lane="other")) == "no_active_lease"
    assert await cause(await given.completed(lane="ended")) == "no_active_lease"
    await claims.revoke(conn, claim.execution_id, by="ops", expected_lease_id=claim.fence.lease_id)
    assert await cause(claim.execution_id) == "already_revoked"
    assert await cause(claim.execution_id, expected_lease_id=uuid4()) == "lease_id_mismatch"
    [again] = await given.claim()
    await given.time_passes(minutes=1)
    assert await cause(again.execution_id) == "already_expired"
    await claims.expire_leases(conn)
    assert await cause(again.execution_id) == "already_expired"
    [last] = await given.claim()
    await attempts.delay(conn, last.fence)
    assert await cause(last.execution_id) == "no_active_lease"


async def test_the_holder_of_a_revoked_lease_is_refused_with_the_cause(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await claims.revoke(conn, claim.execution_id, by="ops")

    async with given.nothing_changes():
        with pytest.raises(LeaseLost) as refused:
            await attempts.complete(conn, claim.fence, b"late")
    assert refused.value.fields == {"cause": "revoked"}


async def test_revoking_refuses_an_unknown_execution_and_an_operator_name_that_is_too_long(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotFound):
            await claims.revoke(conn, mint_execution_id(), by="ops")
        with pytest.raises(InvalidBody):
            await claims.revoke(conn, claim.execution_id, by="x" * 257)
        with pytest.raises(InvalidText):
            await claims.revoke(conn, claim.execution_id, by="\0")


async def test_an_execution_released_at_shutdown_keeps_its_attempt_and_counts_nothing(
    conn: Connection, given: Given
) -> None:
    first = await given.claimed(policy={"max_reclaim_count": 0})

    handed_back = await attempts.delay(conn, first.fence)
    [second] = await given.claim(instance="pool-2")

    assert handed_back.due_at <= second.attempt.started_at + timedelta(seconds=1)
    assert (second.attempt.number, second.attempt.type, second.resumed) == (1, "initial", True)
    assert (second.fence.epoch, second.attempt.started_at) == (2, first.attempt.started_at)
    counts = (await executions.describe(conn, first.execution_id)).counts
    assert (counts.attempts, counts.retries, counts.reclaims) == (1, 0, 0)


async def test_a_stopped_clock_of_a_host_decides_nothing(conn: Connection, given: Given) -> None:
    """An hour forward expires each lease once; an hour back expires none."""
    claim = await given.claimed()
    await given.time_passes(hours=-1)
    assert (await claims.expire_leases(conn)).moved == 0
    await claims.renew(conn, claim.fence)
    await given.time_passes(hours=2)

    assert (await claims.expire_leases(conn)).moved == 1
    [again] = await given.claim()
    assert (again.fence.epoch, (await claims.expire_leases(conn)).moved) == (2, 0)


async def test_the_same_fence_a_thousand_times_is_answered_a_thousand_times(conn: Connection, given: Given) -> None:
    claim, other = await given.claimed(), await given.claimed()

    renewed = await claims.renew_many(conn, [claim.fence] * 1_000)
    completed = await attempts.complete_many(conn, [Completion(fence=claim.fence)] * 1_000)
    failed = await attempts.fail_many(conn, [FailureReport(fence=other.fence, reason="no")] * 1_500)

    assert all(isinstance(answer, Renewed) for answer in renewed)
    assert [isinstance(answer, FlowFabricError) for answer in completed] == [False] + [True] * 999
    assert [isinstance(answer, FlowFabricError) for answer in failed] == [False] + [True] * 1_499
