"""The fence: lease id, epoch and attempt, sent with every call under a lease and checked in one place."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric.engine import attempts, claims, executions, holds
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    LeaseLost,
    PartialFence,
)
from flowfabric.ids import mint_execution_id
from flowfabric.model import Fence, PublicState
from flowfabric.postgres.driver import Connection
from tests.given import Given

RETRY = {"retry": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def _fail(conn: Connection, fence: Fence) -> object:
    return await attempts.fail(conn, fence, "no")


CALLS: list[Callable[[Connection, Fence], Awaitable[object]]] = [
    claims.renew,
    attempts.complete,
    attempts.delay,
    _fail,
]


def changed(fence: Fence, **changes: Any) -> Fence:
    return msgspec.structs.replace(fence, **changes)


async def refused(conn: Connection, given: Given, fence: Fence) -> FlowFabricError:
    """The error that every fenced call raises for this fence, without changing anything."""
    refusals = set()
    async with given.nothing_changes():
        for call in CALLS:
            with pytest.raises(FlowFabricError) as caught:
                await call(conn, fence)
            refusals.add(caught.value)
    [only] = refusals
    return only


async def test_every_part_of_a_fence_is_checked(conn: Connection, given: Given) -> None:
    fence = (await given.claimed()).fence

    for stale in (
        changed(fence, lease_id=uuid4()),
        changed(fence, epoch=0),
        changed(fence, epoch=2),
        changed(fence, epoch=1 << 80),
        changed(fence, attempt=0),
        changed(fence, attempt=2),
        changed(fence, attempt=1 << 40),
    ):
        answer = await refused(conn, given, stale)
        assert (type(answer), answer.fields) == (LeaseLost, {"cause": "superseded"})


async def test_a_fence_is_all_or_nothing(conn: Connection, given: Given) -> None:
    fence = (await given.claimed()).fence
    parts = ("lease_id", "epoch", "attempt")

    assert type(await refused(conn, given, changed(fence, **dict.fromkeys(parts)))) is FenceRequired
    for part in parts:
        assert type(await refused(conn, given, changed(fence, **{part: None}))) is PartialFence


async def test_an_unknown_execution_is_refused(conn: Connection, given: Given) -> None:
    fence = (await given.claimed()).fence

    assert type(await refused(conn, given, changed(fence, execution_id=mint_execution_id()))) is ExecutionNotFound
    nowhere = type(fence.execution_id)(70_000, fence.execution_id.uuid)
    assert type(await refused(conn, given, changed(fence, execution_id=nowhere))) is ExecutionNotFound


async def test_an_ended_execution_answers_with_its_outcome_before_the_fence_is_checked(
    conn: Connection, given: Given
) -> None:
    """A repeated `complete` emits no second event, and a late `fail` does not revive the execution."""
    claim = await given.claimed()
    await executions.cancel(conn, claim.execution_id, by="ops")

    for fence in (claim.fence, changed(claim.fence, epoch=7, lease_id=uuid4())):
        answer = await refused(conn, given, fence)
        assert type(answer) is ExecutionNotActive
        assert answer.fields == {"phase": "terminal", "outcome": "cancelled", "epoch": 1, "attempt": 1}


async def test_a_superseded_fence_is_refused_before_the_phase_is_checked(conn: Connection, given: Given) -> None:
    first = await given.claimed()
    await attempts.delay(conn, first.fence)
    [second] = await given.claim()
    await attempts.delay(conn, second.fence)

    assert (await refused(conn, given, first.fence)).fields == {"cause": "superseded"}


async def test_a_released_lease_is_not_active(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.delay(conn, claim.fence, timedelta(hours=1))

    answer = await refused(conn, given, claim.fence)

    assert type(answer) is ExecutionNotActive
    assert answer.fields == {
        "phase": "runnable", "eligibility": "not_eligible_until_time", "epoch": 1, "attempt": 1,
    }  # fmt: skip


async def test_the_lease_of_a_reclaimable_execution_that_is_held_is_still_lost(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await claims.revoke(conn, claim.execution_id, by="ops")
    await holds.hold(conn, claim.execution_id, by="ops")

    answer = await refused(conn, given, claim.fence)
    assert (type(answer), answer.fields) == (LeaseLost, {"cause": "revoked"})


async def test_a_lease_ends_at_its_expiry_and_not_before(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(seconds=29)
    await claims.renew(conn, claim.fence)
    await given.time_passes(seconds=30)

    answer = await refused(conn, given, claim.fence)
    assert (type(answer), answer.fields) == (LeaseLost, {"cause": "expired"})


async def test_the_fence_of_another_execution_does_not_help(conn: Connection, given: Given) -> None:
    mine, other = await given.claimed(), await given.claimed()

    assert (await refused(conn, given, changed(mine.fence, execution_id=other.execution_id))).fields == {
        "cause": "superseded"
    }


async def test_the_fence_from_before_a_replay_is_superseded(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.complete(conn, claim.fence)
    await executions.replay(conn, claim.execution_id, by="ops")

    answer = await refused(conn, given, claim.fence)
    assert (type(answer), answer.fields) == (LeaseLost, {"cause": "superseded"})


async def test_the_epoch_grows_over_the_whole_life_of_an_execution(conn: Connection, given: Given) -> None:
    """Every claim raises the epoch: after a failure, a delay, an expired lease and a replay."""
    claim = await given.claimed(policy=RETRY)
    seen = [claim.fence]

    async def claim_again() -> None:
        [again] = await given.claim()
        seen.append(again.fence)

    await attempts.fail(conn, seen[-1], "no")
    await claim_again()
    await attempts.delay(conn, seen[-1])
    await claim_again()
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)
    await claim_again()
    await attempts.complete(conn, seen[-1])
    await executions.replay(conn, claim.execution_id, by="ops")
    await claim_again()

    assert [fence.epoch for fence in seen] == [1, 2, 3, 4, 5]
    assert [fence.attempt for fence in seen] == [1, 2, 2, 3, 4]
    assert len({fence.lease_id for fence in seen}) == 5


async def test_the_holder_of_a_lease_may_cancel_with_its_fence(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    fence, parts = claim.fence, ("lease_id", "epoch", "attempt")

    async def cancel(shown: Fence | None) -> PublicState:
        cancelled = await executions.cancel(conn, claim.execution_id, source="lease_holder", fence=shown)
        return cancelled.public_state

    async with given.nothing_changes():
        with pytest.raises(FenceRequired):
            await cancel(None)
        for part in parts:
            with pytest.raises(PartialFence):
                await cancel(changed(fence, **{part: None}))
        with pytest.raises(LeaseLost):
            await cancel(changed(fence, epoch=0))
    assert await cancel(fence) is PublicState.CANCELLED


async def test_an_operator_cancels_a_running_execution_and_its_worker_is_refused(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()

    assert (await executions.cancel(conn, claim.execution_id, by="ops")).public_state is PublicState.CANCELLED
    async with given.nothing_changes():
        assert (await executions.cancel(conn, claim.execution_id, by="ops")).public_state is PublicState.CANCELLED

    assert await given.count("tickets") == 0
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.lifecycle == "ended_cancelled"
    with pytest.raises(ExecutionNotActive) as caught:
        await claims.renew(conn, claim.fence)
    assert caught.value.fields["outcome"] == "cancelled"
