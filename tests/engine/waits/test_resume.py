"""Resuming by an operator; ends, removals and replays while an execution waits."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, executions, waits
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    ExecutionNotSuspended,
    InvalidBody,
    InvalidTime,
    InvalidToken,
    WaitpointClosed,
)
from flowfabric.ids import mint_execution_id
from flowfabric.model import Journal, PublicState
from flowfabric.postgres.driver import Connection
from tests.engine.waits.scene import ANY, OPERATOR_ONLY, Waiting, state, to, waiting, wish
from tests.given import Given

HOUR = timedelta(hours=1)


async def test_an_operator_can_resume_any_suspended_execution(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, OPERATOR_ONLY)

    assert (await waits.resume(conn, suspended.execution_id, by="ann", note="go\0")).public_state is PublicState.WAITING

    [claim] = await given.claim()
    assert ((await given.event("execution_resumed"))["by"], await suspended.signals(conn)) == ("operator", [])
    assert (claim.attempt, claim.fence.epoch) == (suspended.claim.attempt, 2)
    [event] = await given.rows("select by from flowfabric.events where kind = 'execution_resumed'")
    assert (event["by"], (await given.event("execution_resumed"))["note"]) == ("ann", "go\ufffd")
    assert (await given.event("waitpoint_closed"))["reason"] == "resumed"


async def test_an_execution_that_is_not_suspended_cannot_be_resumed(conn: Connection, given: Given) -> None:
    suspended = await waiting(given)
    await waits.resume(conn, suspended.execution_id, by="ops")
    ended = await given.cancelled(lane="other")

    async with given.nothing_changes():
        for execution_id in (suspended.execution_id, ended):
            with pytest.raises(ExecutionNotSuspended):
                await waits.resume(conn, execution_id, by="ops")
        with pytest.raises(ExecutionNotFound):
            await waits.resume(conn, mint_execution_id(), by="ops")
        with pytest.raises(InvalidBody):
            await waits.resume(conn, suspended.execution_id, by="b" * 257)
        for delay in (timedelta(milliseconds=-1), timedelta.max, timedelta.min):
            with pytest.raises(InvalidTime):
                await waits.resume(conn, suspended.execution_id, by="ops", delay=delay)


async def test_a_resume_delay_delays_the_execution(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, resume_delay=timedelta(seconds=5))

    await waits.deliver_signal(conn, suspended.signal())

    described = await executions.describe(conn, suspended.execution_id)
    assert described.state.public_state is PublicState.DELAYED
    assert described.state.blocking_reason == "waiting_for_resume_delay"
    await given.time_passes(seconds=1)
    assert await given.claim() == []
    await given.time_passes(seconds=4)
    assert (await executions.describe(conn, suspended.execution_id)).state.public_state is PublicState.WAITING
    [_] = await given.claim()
    assert (await given.event("execution_resumed"))["by"] == "signal"


async def test_the_delay_of_the_operator_overrides_that_of_the_wait(conn: Connection, given: Given) -> None:
    slow, quick = await waiting(given), await waiting(given, resume_delay=HOUR)

    assert (await waits.resume(conn, slow.execution_id, by="ops", delay=HOUR)).public_state is PublicState.DELAYED
    assert (
        await waits.resume(conn, quick.execution_id, by="ops", delay=timedelta(0))
    ).public_state is PublicState.WAITING
    assert [claim.execution_id for claim in await given.claim(take=5)] == [quick.execution_id]


async def test_resuming_closes_only_the_waitpoints_of_the_wait(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    later = await waits.create_waitpoint(conn, claim.fence, "later")
    first = Waiting(claim, await waits.suspend(conn, claim.fence, wish()))
    await waits.deliver_signal(conn, first.signal())
    [again] = await given.claim()

    early = await waits.deliver_signal(conn, to(claim.execution_id, later.waitpoint_id, later.token))
    answer = await waits.suspend(conn, again.fence, wish({**ANY, "waitpoint": "later"}, ["later"]))

    assert (early.effect, answer.outcome) == ("buffered_for_pending_waitpoint", "already_satisfied")
    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, first.signal())


async def test_a_wait_that_is_already_satisfied_closes_no_other_waitpoint(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made, later = [await waits.create_waitpoint(conn, claim.fence, key) for key in ("w", "later")]
    await waits.deliver_signal(conn, to(claim.execution_id, made.waitpoint_id, made.token))
    await waits.suspend(conn, claim.fence, wish())

    open_ones = (await waits.list_waitpoints(conn, claim.execution_id, state="pending")).items

    assert [point.waitpoint_id for point in open_ones] == [later.waitpoint_id]


async def test_a_cancellation_closes_every_waitpoint(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(conn, claim.fence, "later")
    suspended = Waiting(claim, await waits.suspend(conn, claim.fence, wish()))

    for _ in range(2):
        await executions.cancel(conn, claim.execution_id, reason="not wanted", by="ops")

    listed = (await waits.list_waitpoints(conn, claim.execution_id)).items
    assert {(point.state, point.close_reason) for point in listed} == {("closed", "cancelled")}
    assert (await waits.list_suspended(conn)).items == []
    assert await state(conn, suspended.execution_id) == "cancelled"
    assert (await given.events(claim.execution_id))[5:] == ["waitpoint_closed"] * 2 + ["execution_cancelled"]
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.lifecycle == "ended_cancelled"


async def test_a_completion_closes_unused_waitpoints(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(conn, claim.fence, "later")

    await attempts.complete(conn, claim.fence)

    assert (await given.event("waitpoint_closed"))["reason"] == "ended"


async def test_a_deadline_ends_an_execution_while_it_waits(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, submitted={"deadline": HOUR}, timeout=2 * HOUR)
    await given.time_passes(hours=1)

    assert (await executions.expire_executions(conn)).moved == 1

    assert await state(conn, suspended.execution_id) == "expired"
    await given.time_passes(hours=1)
    assert (await waits.time_out_waits(conn)).moved == 0
    assert (await waits.list_suspended(conn)).items == []


async def test_retention_removes_waits_and_signals(conn: Connection, given: Given) -> None:
    gone, kept = await waiting(given), await waiting(given)
    for one in (gone, kept):
        await waits.deliver_signal(conn, one.signal("x"))
    await executions.cancel(conn, gone.execution_id, reason="not wanted", by="ops")
    await given.time_passes(days=7)

    await executions.remove_ended(conn)

    assert [await given.count(table) for table in ("waits", "waitpoints", "signals")] == [1, 1, 1]
    with pytest.raises(InvalidToken):
        await waits.deliver_signal(conn, gone.signal())
    assert (await waits.deliver_signal(conn, kept.signal())).effect == "resume_condition_satisfied"


async def test_a_replay_forgets_the_wait_it_ended_in(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, idempotency_key="once", name="answer", occurrence=1)
    await executions.cancel(conn, suspended.execution_id, reason="not wanted", by="ops")
    with pytest.raises(ExecutionNotActive):
        await attempts.complete(conn, suspended.claim.fence)
    await executions.replay(conn, suspended.execution_id, by="ops")

    [claim] = await given.claim()
    assert claim.journal == Journal(entries=[], more=False)
    answer = await waits.suspend(conn, claim.fence, wish(idempotency_key="once", name="answer", occurrence=1))

    assert answer.suspension_id != suspended.answer.suspension_id
    with pytest.raises(WaitpointClosed):
        await waits.deliver_signal(conn, suspended.signal())
    assert await state(conn, suspended.execution_id) == "suspended"


async def test_a_wait_with_a_name_and_no_occurrence_has_no_place_in_the_journal(conn: Connection, given: Given) -> None:
    suspended = await waiting(given, OPERATOR_ONLY, name="look")
    await waits.resume(conn, suspended.execution_id, by="ops")

    [taken] = await given.claim()
    assert (taken.resumed, taken.journal) == (True, Journal(entries=[], more=False))
