"""Timeouts: what happens when a wait does not complete in time."""

from datetime import timedelta

import pytest

from flowfabric import testing
from flowfabric.engine import attempts, executions, waits
from flowfabric.errors import ExecutionNotSuspended, WaitpointClosed
from flowfabric.model import PublicState, Swept
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.waits.scene import ANY, APPROVE, state, waiting, wish
from tests.given import Given

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("behavior", "outcome", "closed"),
    [
        (None, "failed", "timed_out_fail"),
        ("fail", "failed", "timed_out_fail"),
        ("cancel", "cancelled", "timed_out_cancel"),
        ("expire", "expired", "timed_out_expire"),
    ],
)
async def test_a_timed_out_wait_ends_the_execution_by_its_timeout_behavior(
    conn: Connection, given: Given, behavior: str | None, outcome: str, closed: str
) -> None:
    suspended = await waiting(given, timeout=HOUR, timeout_behavior=behavior)
    await given.time_passes(minutes=59)
    assert (await waits.time_out_waits(conn)).moved == 0
    await given.time_passes(minutes=1)

    swept = await waits.time_out_waits(conn)

    assert swept == Swept(moved=1, lanes=(), ended=[suspended.execution_id])
    described = await executions.describe(conn, suspended.execution_id)
    assert described.state.public_state == outcome
    assert described.failure is not None
    assert described.failure.reason == "suspension_timeout"
    [point] = (await waits.list_waitpoints(conn, suspended.execution_id)).items
    assert (point.state, point.close_reason) == ("closed", closed)
    assert (await given.events(suspended.execution_id))[4:] == ["waitpoint_closed", f"execution_{outcome}"]
    async with given.nothing_changes():
        assert (await waits.time_out_waits(conn)).moved == 0
        with pytest.raises(ExecutionNotSuspended):
            await waits.resume(conn, suspended.execution_id, by="ops")


@pytest.mark.parametrize("behavior", ["auto_resume", "auto_resume_with_timeout_signal"])
async def test_a_timed_out_wait_can_resume_with_a_timeout_signal(conn: Connection, given: Given, behavior: str) -> None:
    """A 30-day timeout acts when the clock moves 30 days, and the handler sees why it was resumed."""
    month = timedelta(days=30)
    suspended = await waiting(given, timeout=month, timeout_behavior=behavior)
    early = await waits.deliver_signal(conn, suspended.signal("x"))
    await given.time_passes(days=30)

    swept = await waits.time_out_waits(conn)

    assert swept == Swept(moved=1, lanes=["default"])
    assert await state(conn, suspended.execution_id) == "runnable"
    [claim] = await given.claim()
    assert claim.attempt == suspended.claim.attempt
    [signal] = await suspended.signals(conn)
    assert (signal.name, signal.category) == ("timeout", "system")
    assert (signal.source_type, signal.source_identity) == ("system", "suspension_timeout")
    assert (signal.payload, signal.waitpoint_id) == (None, None)
    assert signal.signal_id != early.signal_id
    assert (await given.event("waitpoint_closed"))["reason"] == "timed_out_auto_resume"
    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, suspended.signal())


async def test_a_timed_out_wait_can_be_escalated_to_an_operator(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, timeout=HOUR, timeout_behavior="escalate")
    await given.time_passes(hours=1)

    assert await waits.time_out_waits(conn) == Swept(moved=1)

    described = await executions.describe(conn, suspended.execution_id)
    assert described.state.public_state is PublicState.SUSPENDED
    assert described.state.blocking_reason == "paused_by_operator"
    assert described.suspension is not None
    assert (described.suspension.timeout_at, described.suspension.reason_code) == (None, "waiting_for_operator_review")
    assert described.explanation.sentence == "waits for an operator; resume releases it"
    await given.time_passes(days=30)
    async with given.nothing_changes():
        assert (await waits.time_out_waits(conn)).moved == 0
    assert (await waits.deliver_signal(conn, suspended.signal())).effect == "resume_condition_satisfied"
    assert (await given.events(suspended.execution_id)).count("suspension_escalated") == 1


async def test_a_timeout_of_an_earlier_wait_moves_nothing(conn: Connection, given: Given) -> None:
    """A timeout acts only on the suspension that it belongs to."""
    resumed = await waiting(given, submitted={"lane": "one"}, timeout=HOUR)
    again = await waiting(given, submitted={"lane": "two"}, timeout=HOUR)
    ended = await waiting(given, submitted={"lane": "three"}, timeout=HOUR)
    for one in (resumed, again, ended):
        await waits.resume(conn, one.execution_id, by="ops")
    [second] = await given.claim(lanes=["two"])
    await waits.suspend(conn, second.fence, wish(timeout=2 * HOUR))
    [last] = await given.claim(lanes=["three"])
    await attempts.complete(conn, last.fence)
    await given.time_passes(hours=1)

    async with given.nothing_changes():
        assert (await waits.time_out_waits(conn)).moved == 0
    await given.time_passes(hours=1)
    assert (await waits.time_out_waits(conn)).ended == [again.execution_id]
    assert await state(conn, resumed.execution_id) == "runnable"


async def test_one_pass_handles_all_timeout_behaviors(conn: Connection, given: Given) -> None:
    behaviors = ["fail", "cancel", "expire", "auto_resume", "escalate"] * 3
    asked = [await waiting(given, timeout=HOUR, timeout_behavior=behavior) for behavior in behaviors]
    await given.time_passes(hours=1)

    first = await waits.time_out_waits(conn, limit=10)
    second = await waits.time_out_waits(conn, limit=10)

    assert (first.moved, second.moved, len(first.ended) + len(second.ended)) == (10, 5, 9)
    states = [await state(conn, one.execution_id) for one in asked]
    assert states == ["failed", "cancelled", "expired", "runnable", "suspended"] * 3


async def test_a_sweep_skips_locked_executions(conn: Connection, given: Given, connect: Connect) -> None:
    """A later pass handles them."""
    held, free = [await waiting(given, timeout=HOUR, timeout_behavior="escalate") for _ in range(2)]
    await given.time_passes(hours=1)
    other = await connect()

    async with other.transaction():
        await other.execute("select from flowfabric.tickets where id = $1 for update", held.execution_id.uuid)
        assert (await waits.time_out_waits(conn)).moved == 1
        assert (await waits.time_out_waits(conn)).moved == 0

    assert (await waits.time_out_waits(conn)).moved == 1
    assert len({held.execution_id, free.execution_id}) == 2
    assert (await given.events()).count("suspension_escalated") == 2


async def test_the_policy_provides_the_default_timeout(conn: Connection, given: Given) -> None:
    policy = {"suspension": {"default_timeout_ms": 60_000, "timeout_behavior": "cancel"}}
    by_policy = await waiting(given, submitted={"policy": policy})
    own = await waiting(given, submitted={"policy": policy}, timeout=HOUR, timeout_behavior="expire")
    standing = await waiting(given, {"kind": "timeout_only"}, [], submitted={"policy": policy})
    await given.time_passes(minutes=1)

    swept = await waits.time_out_waits(conn)

    assert sorted(swept.ended) == sorted((by_policy.execution_id, standing.execution_id))
    assert await state(conn, by_policy.execution_id) == "cancelled"
    await given.time_passes(hours=1)
    await waits.time_out_waits(conn)
    assert await state(conn, own.execution_id) == "expired"


async def test_a_timeout_may_be_a_point_in_time(conn: Connection, given: Given) -> None:
    moment = await testing.now(conn) + HOUR
    suspended = await waiting(given, ANY, timeout=moment)

    [listed] = (await waits.list_suspended(conn)).items

    assert (listed.execution_id, listed.timeout_at) == (suspended.execution_id, moment)


async def test_without_a_timeout_an_execution_waits_for_ever(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, APPROVE)
    await given.time_passes(days=3650)

    assert (await waits.time_out_waits(conn)).moved == 0
    assert await state(conn, suspended.execution_id) == "suspended"


async def test_a_pending_waitpoint_is_closed_as_ended_when_the_wait_beside_it_fails(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(conn, claim.fence, "later", expires_in=timedelta(days=30))
    await waits.suspend(conn, claim.fence, wish(timeout=HOUR))
    await given.time_passes(hours=1)

    await waits.time_out_waits(conn)

    listed = (await waits.list_waitpoints(conn, claim.execution_id)).items
    assert {point.key: point.close_reason for point in listed} == {"later": "ended", "w": "timed_out_fail"}
