"""Races, as interleavings of two connections: one wins, and the other gets the right error."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric import errors
from flowfabric.engine import attempts, claims, executions, holds, lanes
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, Completion, FailureClass, Fence, PublicState
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.given import Given, claim, state, submission

Call = Callable[[Connection], Awaitable[Any]]


@pytest.fixture
async def fence(conn: Connection, given: Given) -> Fence:
    """A lease of 30 seconds on the only execution."""
    await given.submitted()
    [taken] = await claim(conn)
    return taken.fence


class Race:
    """Two concurrent calls: the second starts before the first commits."""

    def __init__(self, given: Given, one: asyncpg.Connection, two: asyncpg.Connection) -> None:
        self.given, self.one, self.two = given, one, two

    async def waits(self, first: Call, second: Call) -> Any:
        """Return the answer or error of the second call, which must wait for the first."""
        async with self.one.transaction():
            await first(self.one)
            later = asyncio.ensure_future(second(self.two))
            await blocked(self.given, self.two, later)
        return (await asyncio.gather(later, return_exceptions=True))[0]

    async def passes(self, first: Call, second: Call) -> Any:
        """Return the answer of the second call, which must not wait for the first."""
        async with self.one.transaction():
            await first(self.one)
            async with asyncio.timeout(10):
                return await second(self.two)


@pytest.fixture
async def race(given: Given, connect: Connect) -> Race:
    return Race(given, await connect(), await connect())


def cancel(execution_id: ExecutionId) -> Call:
    return lambda conn: executions.cancel(conn, execution_id, reason="not wanted", by="ops")


def complete(fence: Fence) -> Call:
    return lambda conn: attempts.complete(conn, fence, b'"done"')


def renew(fence: Fence) -> Call:
    return lambda conn: claims.renew(conn, fence)


def revoke(fence: Fence) -> Call:
    return lambda conn: claims.revoke(conn, fence.execution_id, by="ops")


def fail(fence: Fence) -> Call:
    return lambda conn: attempts.fail(conn, fence, "no", class_=FailureClass.PERMANENT)


def prioritize(fence: Fence) -> Call:
    return lambda conn: executions.change_priority(conn, fence.execution_id, 7, by="ops")


async def test_a_cancelled_execution_cannot_be_completed(race: Race, given: Given, fence: Fence) -> None:
    refusal = await race.waits(cancel(fence.execution_id), complete(fence))

    assert isinstance(refusal, errors.ExecutionNotActive)
    assert refusal.fields == {"phase": "terminal", "outcome": "cancelled", "epoch": 1, "attempt": 1}
    assert await state(given.conn, fence.execution_id) is PublicState.CANCELLED
    assert (await given.events(fence.execution_id))[2:] == ["execution_cancelled"]


async def test_a_completed_execution_cannot_be_cancelled(race: Race, given: Given, fence: Fence) -> None:
    refusal = await race.waits(complete(fence), cancel(fence.execution_id))

    assert isinstance(refusal, errors.ExecutionEnded)
    assert refusal.fields == {"outcome": "success"}
    assert await state(given.conn, fence.execution_id) is PublicState.COMPLETED
    assert (await given.events(fence.execution_id))[2:] == ["execution_completed"]


async def test_the_second_of_two_completions_gets_the_outcome_of_the_first(
    race: Race, given: Given, fence: Fence
) -> None:
    refusal = await race.waits(complete(fence), complete(fence))

    assert isinstance(refusal, errors.ExecutionNotActive)
    assert refusal.fields == {"phase": "terminal", "outcome": "success", "epoch": 1, "attempt": 1}
    assert (await given.events(fence.execution_id))[2:] == ["execution_completed"]
    assert len((await attempts.list_attempts(given.conn, fence.execution_id)).items) == 1


async def test_a_lease_that_is_being_reclaimed_cannot_be_renewed(race: Race, given: Given, fence: Fence) -> None:
    await given.time_passes(seconds=30)

    assert (await race.passes(claims.expire_leases, renew(fence))).outcome == "locked"
    with pytest.raises(errors.LeaseLost) as refused:
        await claims.renew(given.conn, fence)
    assert refused.value.fields == {"cause": "expired"}
    assert await state(given.conn, fence.execution_id) is PublicState.WAITING
    assert (await given.events(fence.execution_id))[2:] == ["lease_expired"]


async def test_a_lease_that_is_being_renewed_is_not_reclaimed(race: Race, given: Given, fence: Fence) -> None:
    """The sweep re-checks the expiry under the lock."""
    await given.time_passes(seconds=29)
    async with race.one.transaction():
        await claims.renew(race.one, fence)
        await given.time_passes(seconds=2)  # past the expiry that other connections still see
        assert (await claims.expire_leases(race.two)).moved == 0

    assert (await claims.expire_leases(race.two)).moved == 0
    assert await state(given.conn, fence.execution_id) is PublicState.ACTIVE
    await attempts.complete(given.conn, fence)


async def test_a_revoked_lease_cannot_complete(race: Race, given: Given, fence: Fence) -> None:
    refusal = await race.waits(revoke(fence), complete(fence))

    assert isinstance(refusal, errors.LeaseLost)
    assert refusal.fields == {"cause": "revoked"}
    assert await state(given.conn, fence.execution_id) is PublicState.WAITING
    assert (await given.events(fence.execution_id))[2:] == ["lease_revoked"]


async def test_a_completed_execution_has_no_lease_to_revoke(race: Race, given: Given, fence: Fence) -> None:
    answer = await race.waits(complete(fence), revoke(fence))

    assert (answer.outcome, answer.cause) == ("noop", "no_active_lease")
    assert await state(given.conn, fence.execution_id) is PublicState.COMPLETED
    assert (await given.events(fence.execution_id))[2:] == ["execution_completed"]


async def test_an_expired_execution_cannot_fail(race: Race, given: Given) -> None:
    await given.submitted(deadline=timedelta(seconds=10))
    [taken] = await claim(given.conn)
    await given.time_passes(seconds=10)

    refusal = await race.waits(executions.expire_executions, fail(taken.fence))

    assert isinstance(refusal, errors.ExecutionNotActive)
    assert refusal.fields == {"phase": "terminal", "outcome": "expired", "epoch": 1, "attempt": 1}
    assert await state(given.conn, taken.fence.execution_id) is PublicState.EXPIRED


async def test_a_failure_reported_before_the_deadline_is_kept(race: Race, given: Given) -> None:
    await given.submitted(deadline=timedelta(seconds=10))
    [taken] = await claim(given.conn)
    async with race.one.transaction():
        await fail(taken.fence)(race.one)
        await given.time_passes(seconds=10)
        assert (await executions.expire_executions(race.two)).moved == 0

    assert (await executions.expire_executions(race.two)).moved == 0
    assert await state(given.conn, taken.fence.execution_id) is PublicState.FAILED
    assert (await given.events(taken.execution_id))[2:] == ["execution_failed"]


async def test_an_execution_claimed_before_a_pause_continues(race: Race, given: Given) -> None:
    await given.submitted()
    await given.submitted()
    async with race.one.transaction():
        [taken] = await claim(race.one)
        await lanes.pause_lane(race.two, "default", by="ops")

    assert await claim(race.two) == []
    await attempts.complete(race.one, taken.fence)
    await lanes.resume_lane(race.two, "default", by="ops")
    assert len(await claim(race.two)) == 1


async def test_a_claim_does_not_wait_for_a_pause_and_returns_nothing_after_it(race: Race, given: Given) -> None:
    first, second = await given.submitted(), await given.submitted()

    [taken] = await race.passes(lambda conn: lanes.pause_lane(conn, "default", by="ops"), claim)

    assert taken.execution_id == first
    assert await claim(race.two) == []
    described = await executions.describe(given.conn, second)
    assert described.state.eligibility_state == "blocked_by_lane_state"


async def test_one_of_two_workers_gets_the_execution_and_the_other_nothing(race: Race, given: Given) -> None:
    only = await given.submitted()

    async with race.one.transaction():
        [taken] = await claim(race.one)
        assert await claim(race.two, worker="v") == []
    assert await claim(race.two, worker="v") == []

    assert taken.execution_id == only
    assert (await given.events(only))[1:] == ["lease_acquired"]


async def test_a_claim_locks_only_the_rows_it_takes(race: Race, given: Given) -> None:
    """Locking more rows would hide them from other claims."""
    submitted = [await given.submitted() for _ in range(5)]

    async with race.one.transaction():
        first = await claim(race.one, take=2)
        second = await claim(race.two, worker="v", take=10)

    assert [taken.execution_id for taken in first + second] == submitted


async def test_an_execution_of_a_crashed_claim_can_be_claimed_again(race: Race, given: Given) -> None:
    only = await given.submitted()
    doomed = race.one.transaction()
    await doomed.start()
    await claim(race.one)
    assert await claim(race.two) == []
    await doomed.rollback()

    [taken] = await claim(race.two)

    assert (taken.execution_id, taken.fence.epoch, taken.attempt.number) == (only, 1, 1)


@pytest.mark.parametrize("stop", ["cancel", "hold"])
async def test_a_claim_skips_an_execution_that_is_being_held_or_cancelled(race: Race, given: Given, stop: str) -> None:
    only = await given.submitted()
    stops = {"cancel": cancel(only), "hold": lambda conn: holds.hold(conn, only, by="ops")}

    assert await race.passes(stops[stop], claim) == []
    assert await claim(race.two) == []


async def test_a_cancel_that_waited_for_a_claim_ends_the_active_execution(race: Race, given: Given) -> None:
    only = await given.submitted()
    taken: list[Claim] = []

    async def take(conn: Connection) -> None:
        taken.extend(await claim(conn))

    await race.waits(take, cancel(only))

    assert await state(given.conn, taken[0].execution_id) is PublicState.CANCELLED
    with pytest.raises(errors.ExecutionNotActive, match="cancelled"):
        await attempts.complete(given.conn, taken[0].fence)


async def test_a_hold_that_waited_for_a_claim_is_refused(race: Race, given: Given) -> None:
    only = await given.submitted()

    refusal = await race.waits(claim, lambda conn: holds.hold(conn, only, by="ops"))

    assert isinstance(refusal, errors.ExecutionNotRunnable)


UNDER_A_LEASE: dict[str, Callable[[Fence], Call]] = {
    "complete": complete,
    "fail": fail,
    "delay": lambda fence: lambda conn: attempts.delay(conn, fence, timedelta(minutes=1)),
}


@pytest.mark.parametrize("name", UNDER_A_LEASE)
async def test_a_call_that_waited_for_a_change_without_effect_on_the_lease_succeeds(
    race: Race, given: Given, fence: Fence, name: str
) -> None:
    answer = await race.waits(prioritize(fence), UNDER_A_LEASE[name](fence))

    assert not isinstance(answer, BaseException), repr(answer)
    assert (await executions.describe(given.conn, fence.execution_id)).priority == 7


async def test_a_renewal_skips_the_executions_that_another_transaction_has_locked(
    race: Race, given: Given, fence: Fence
) -> None:
    other = await given.claimed(lane="other")
    [before] = await given.rows("select expires_at from flowfabric.tickets where id = $1", fence.execution_id.uuid)
    await given.time_passes(seconds=5)

    locked, renewed = await race.passes(prioritize(fence), lambda conn: claims.renew_many(conn, [fence, other.fence]))

    assert (locked.outcome, locked.expires_at) == ("locked", before["expires_at"])
    assert (renewed.outcome, renewed.expires_at) > ("renewed", other.expires_at)
    assert (await claims.renew(given.conn, fence)).outcome == "renewed"


async def test_a_renewal_of_a_locked_execution_whose_lease_has_ended_is_refused(
    race: Race, given: Given, fence: Fence
) -> None:
    await claims.revoke(given.conn, fence.execution_id, by="ops")

    async with race.one.transaction():
        await prioritize(fence)(race.one)
        with pytest.raises(errors.LeaseLost):
            await claims.renew(race.two, fence)


async def test_eight_concurrent_workers_claim_every_execution_exactly_once(connect: Connect, given: Given) -> None:
    submitted = [await given.submitted() for _ in range(200)]

    taken: list[ExecutionId] = []

    async def work(number: int) -> None:
        conn = await connect()
        while some := await claim(conn, worker=f"w{number}", take=5):
            taken.extend(each.execution_id for each in some)

    await asyncio.gather(*(work(number) for number in range(8)))

    assert sorted(taken) == sorted(submitted)
    assert (await given.events()).count("lease_acquired") == 200


async def test_batches_over_the_same_executions_never_deadlock(connect: Connect, given: Given) -> None:
    one, two = await connect(), await connect()

    async def finish(conn: asyncpg.Connection, fences: list[Fence]) -> list[object]:
        # In a transaction: outside of one, a deadlock would be retried and stay unnoticed.
        async with conn.transaction():
            return list(await attempts.complete_many(conn, [Completion(fence=fence) for fence in fences]))

    for _ in range(50):
        await executions.submit_many(given.conn, [submission()] * 40)
        fences = [taken.fence for taken in await claim(given.conn, take=40)]
        answers = await asyncio.gather(finish(one, fences), finish(two, fences[::-1]))
        refused = [answer for batch in answers for answer in batch if isinstance(answer, errors.ExecutionNotActive)]
        assert (len(refused), await given.count("tickets")) == (40, 0)


async def test_every_mix_of_batches_and_sweeps_is_free_of_deadlocks(connect: Connect, given: Given) -> None:
    conns = [await connect() for _ in range(4)]

    async def inside(conn: asyncpg.Connection, call: Call) -> None:
        async with conn.transaction():
            await call(conn)

    for _ in range(25):
        await executions.submit_many(given.conn, [submission()] * 40)
        fences = [taken.fence for taken in await claim(given.conn, take=40)]
        await given.time_passes(seconds=20)
        calls: list[Call] = [
            lambda conn, fences=fences: claims.renew_many(conn, fences[::-1]),  # type: ignore[misc]
            lambda conn, fences=fences: attempts.complete_many(conn, [Completion(fence=f) for f in fences[::2]]),  # type: ignore[misc]
            lambda conn: claims.expire_leases(conn),
            lambda conn: claim(conn, worker="v", take=40),
        ]
        await asyncio.gather(*(inside(conn, call) for conn, call in zip(conns, calls, strict=True)))

    assert (await given.events()).count("execution_completed") == 500


async def test_idempotency_keys_are_acquired_in_order_whether_or_not_they_exist(
    race: Race, given: Given, connect: Connect
) -> None:
    """A call that waits for a key that exists holds no key behind it."""
    await given.submitted(key="a")
    third = await connect()
    async with race.one.transaction():
        await executions.submit(race.one, submission(key="a"))
        both = [submission(key="a"), submission(key="b")]
        later = asyncio.ensure_future(executions.submit_many(race.two, both))
        await blocked(race.given, race.two, later)
        async with asyncio.timeout(10):
            mine = await executions.submit(third, submission(key="b"))
    answers: list[Any] = await later

    assert [answer.outcome for answer in answers] == ["duplicate", "duplicate"]
    assert answers[1].execution_id == mine.execution_id
