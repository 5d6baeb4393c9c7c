"""Timeouts of attempts: only leased time counts, and an expired lease is never a timeout."""

from datetime import UTC, datetime, timedelta

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import ExecutionNotActive, LeaseLost
from flowfabric.model import PublicState
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

LONG = timedelta(hours=1)
TEN_MINUTES = {"attempt_timeout_ms": 600_000}
RETRY = {"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 60_000}}}


async def test_an_attempt_that_takes_too_long_is_retried(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES | RETRY, lease=LONG)
    await given.time_passes(minutes=10)

    swept = await attempts.time_out_attempts(conn)

    assert (swept.moved, swept.ended) == (1, ())
    ticket = await given.ticket(claim.execution_id)
    assert (ticket["attempt_state"], ticket["retries"]) == ("pending_retry_attempt", 1)
    assert (ticket["reason"], ticket["attempt_deadline"]) == ("waiting_for_retry_backoff", None)
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.failure is not None
    assert (attempt.lifecycle, attempt.failure.class_) == ("ended_failure", "timeout")
    assert attempt.failure.reason == "attempt_timeout: attempt 1 used up its 600 s; that happened once"
    await given.time_passes(minutes=1)
    [again] = await given.claim(lease=LONG)
    assert (again.attempt.number, again.attempt.type) == (2, "retry")
    assert again.attempt_deadline == again.attempt.started_at + timedelta(minutes=10)


async def test_an_attempt_that_takes_too_long_without_a_retry_left_is_a_failure(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.time_passes(minutes=10)

    swept = await attempts.time_out_attempts(conn)

    assert (swept.moved, swept.ended) == (1, [claim.execution_id])
    described = await executions.describe(conn, claim.execution_id)
    assert described.state.public_state is PublicState.FAILED
    assert described.failure is not None
    assert described.failure.class_ == "timeout"
    assert described.failure.reason == "attempt_timeout: attempt 1 used up its 600 s; that happened once"
    assert (await given.events(claim.execution_id))[-1] == "execution_failed"
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.lifecycle == "ended_failure"


async def test_the_failure_says_how_long_the_timeout_is_and_how_often_it_was_used_up(
    conn: Connection, given: Given
) -> None:
    policy = {"attempt_timeout_ms": 1_500, "retry": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 0}}}
    await given.submitted(policy=policy)
    for _ in range(3):
        [claim] = await given.claim(lease=LONG)
        await given.time_passes(seconds=2)
        await attempts.time_out_attempts(conn)

    result = await executions.get_result(conn, claim.execution_id)
    assert result.failure is not None
    assert result.failure.reason == "attempt_timeout: attempt 3 used up its 1.5 s; that happened 3 times"
    [listed] = (await executions.list_executions(conn, states=[PublicState.FAILED])).items
    assert listed.execution_id == claim.execution_id


async def test_the_worker_of_a_timed_out_attempt_has_no_lease(conn: Connection, given: Given) -> None:
    retried = await given.claimed(policy=TEN_MINUTES | RETRY, lease=LONG)
    ended = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.time_passes(minutes=10)
    await attempts.time_out_attempts(conn)

    answers = await claims.renew_many(conn, [retried.fence, ended.fence])

    assert [type(answer) for answer in answers] == [ExecutionNotActive, ExecutionNotActive]


async def test_an_attempt_within_its_timeout_is_not_failed(conn: Connection, given: Given) -> None:
    await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.claimed(lane="no limit", lease=LONG)
    await given.time_passes(minutes=9, seconds=59)

    async with given.nothing_changes():
        assert (await attempts.time_out_attempts(conn)).moved == 0


async def test_only_time_under_a_lease_counts(conn: Connection, given: Given) -> None:
    """Waiting does not count towards the timeout of an attempt."""
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.time_passes(minutes=4)
    await attempts.delay(conn, claim.fence, timedelta(days=2))
    await given.time_passes(days=2)
    assert (await attempts.time_out_attempts(conn)).moved == 0
    [claim] = await given.claim(lease=LONG)

    await given.time_passes(minutes=5)
    assert (await attempts.time_out_attempts(conn)).moved == 0
    await given.time_passes(minutes=2)
    assert (await attempts.time_out_attempts(conn)).moved == 1
    assert (await executions.describe(conn, claim.execution_id)).state.public_state is PublicState.FAILED


async def test_time_used_before_a_delay_still_counts(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.time_passes(minutes=11)
    await attempts.delay(conn, claim.fence)
    [again] = await given.claim(lease=LONG)

    assert again.attempt_deadline is not None
    assert again.attempt_deadline < again.expires_at - LONG
    assert (await attempts.time_out_attempts(conn)).moved == 1


async def test_no_wait_counts_towards_the_timeout(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    for _ in range(3):
        await given.time_passes(minutes=3)
        await attempts.delay(conn, claim.fence, timedelta(days=1))
        await given.time_passes(days=1)
        [claim] = await given.claim(lease=LONG)

    assert claim.attempt_deadline is not None
    left = claim.attempt_deadline - (claim.expires_at - LONG)
    assert timedelta(seconds=55) < left <= timedelta(minutes=1)


async def test_the_remaining_time_does_not_change_with_daylight_saving(conn: Connection, given: Given) -> None:
    """A day is an hour shorter when daylight saving time begins."""
    await conn.execute("set timezone to 'Europe/Berlin'")
    before = datetime(2027, 3, 26, 12, tzinfo=UTC)
    await testing.move_clock(conn, before - await testing.now(conn))
    claim = await given.claimed(policy={"attempt_timeout_ms": 5 * 86_400_000}, lease=LONG)
    await attempts.delay(conn, claim.fence)
    [again] = await given.claim(lease=LONG)

    assert claim.attempt_deadline is not None
    assert again.attempt_deadline is not None
    assert abs(again.attempt_deadline - claim.attempt_deadline) < timedelta(minutes=1)


async def test_an_expired_lease_is_not_a_timeout(conn: Connection, given: Given) -> None:
    """An expired lease and an attempt timeout are handled by different sweeps."""
    claim = await given.claimed(policy=TEN_MINUTES)
    await given.time_passes(minutes=9)

    assert (await attempts.time_out_attempts(conn)).moved == 0
    assert (await claims.expire_leases(conn)).moved == 1
    await given.time_passes(minutes=9)
    assert (await attempts.time_out_attempts(conn)).moved == 0
    [again] = await given.claim()
    assert (again.attempt.type, (await given.ticket(claim.execution_id))["retries"]) == ("reclaim", 0)


async def test_a_timeout_is_not_an_expired_lease(conn: Connection, given: Given) -> None:
    """An expired lease and an attempt timeout are handled by different sweeps."""
    claim = await given.claimed(policy=TEN_MINUTES | RETRY, lease=LONG)
    await given.time_passes(minutes=10)

    assert (await claims.expire_leases(conn)).moved == 0
    await attempts.time_out_attempts(conn)
    await given.time_passes(minutes=1)
    await given.claim()
    assert (await executions.describe(conn, claim.execution_id)).counts.reclaims == 0


async def test_a_reclaimed_attempt_gets_its_full_timeout_again(given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES)
    await given.time_passes(minutes=9)
    await claims.expire_leases(given.conn)
    [again] = await given.claim()

    assert again.execution_id == claim.execution_id
    assert again.attempt_deadline == again.attempt.started_at + timedelta(minutes=10)


async def test_the_sweep_moves_up_to_its_limit(conn: Connection, given: Given) -> None:
    batch = [submission(policy=TEN_MINUTES | (RETRY if at % 2 else {})) for at in range(6)]
    await executions.submit_many(conn, batch)
    claimed = await given.claim(take=6, lease=LONG)
    await given.time_passes(minutes=10)

    first = await attempts.time_out_attempts(conn, limit=4, passing=1)
    second = await attempts.time_out_attempts(conn, limit=4)

    assert (first.moved, second.moved) == (4, 2)
    endings = {claim.execution_id for claim in claimed if "retry" not in claim.policy}
    assert {*first.ended, *second.ended} == endings


async def test_a_worker_that_completes_in_time_is_not_timed_out_later(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await attempts.complete(conn, claim.fence)
    await given.time_passes(hours=2)

    async with given.nothing_changes():
        assert (await attempts.time_out_attempts(conn)).moved == 0


async def test_a_renewal_does_not_extend_the_timeout(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=TEN_MINUTES, lease=LONG)
    await given.time_passes(minutes=9)
    await claims.renew(conn, claim.fence, lease=LONG)
    await given.time_passes(minutes=1)

    assert (await attempts.time_out_attempts(conn)).moved == 1
    [answer] = await claims.renew_many(conn, [claim.fence])
    assert not isinstance(answer, LeaseLost)
