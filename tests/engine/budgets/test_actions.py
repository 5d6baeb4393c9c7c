"""Actions of a hard limit on the execution that exceeds it."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, budgets, claims, executions, waits
from flowfabric.ids import ExecutionId
from flowfabric.model import Outcome, PublicState, State, UsageReport
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, read, report_of, spend
from tests.given import Given


async def state(conn: Connection, execution_id: ExecutionId) -> State:
    return (await executions.describe(conn, execution_id)).state


@pytest.mark.parametrize(("action", "outcome"), [("fail", Outcome.FAILED), ("cancel", Outcome.CANCELLED)])
async def test_a_hard_limit_may_end_the_execution_in_the_same_transaction(
    conn: Connection, given: Given, action: str, outcome: Outcome
) -> None:
    """The action is applied in the transaction of the report, and the reservations are released."""
    await make(conn, on_hard_limit=action)
    claim = await given.claimed(policy={"retry": {"max_retries": 5}})
    await budgets.reserve(conn, TEAM, {"tokens": 60}, fence=claim.fence)

    answer = await spend(conn, 101, fence=claim.fence)

    assert (answer.outcome, answer.action) == ("hard_breach", action)
    ended = await executions.describe(conn, claim.execution_id)
    assert ended.state.terminal_outcome == outcome
    assert ended.failure is not None
    assert ended.failure.reason == "budget_exhausted"
    assert await figures(conn) == (0, 0, 0)
    with pytest.raises(errors.ExecutionNotActive):
        await spend(conn, 1, fence=claim.fence)


async def test_a_hard_limit_may_leave_the_execution_running(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()

    assert (await spend(conn, 101, fence=claim.fence)).action == "refuse"
    assert (await state(conn, claim.execution_id)).public_state is PublicState.ACTIVE
    assert (await given.event("budget_hard_breached"))["execution_id"] == str(claim.execution_id)


async def test_a_breach_without_a_lease_affects_no_execution(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="fail")
    claim = await given.claimed()

    assert (await spend(conn, 101)).action == "refuse"
    assert (await state(conn, claim.execution_id)).public_state is PublicState.ACTIVE


async def test_a_suspended_execution_resumes_only_when_the_limit_is_raised_enough(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="suspend")
    await spend(conn, 60)
    claim = await given.claimed()

    assert (await spend(conn, 50, fence=claim.fence)).action == "suspend"
    waiting = await state(conn, claim.execution_id)
    assert (waiting.public_state, waiting.blocking_reason) == (PublicState.SUSPENDED, "waiting_for_budget")
    assert (await read(conn)).waiting_count == 1
    assert (await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 109}, by="ops")).lanes == ()
    assert (await state(conn, claim.execution_id)).public_state is PublicState.SUSPENDED
    assert (await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 110}, by="ops")).lanes == ["default"]
    [again] = await given.claim()
    assert (again.execution_id, again.attempt.number) == (claim.execution_id, 1)
    assert (await given.event("execution_resumed"))["by"] == "budget"
    assert (await spend(conn, 50, fence=again.fence)).outcome == "ok"
    assert (await read(conn)).waiting_count == 0


async def suspended(given: Given, tokens: int, lane: str = "default") -> ExecutionId:
    """An execution that is suspended until `tokens` fit."""
    claim = await given.claimed(lane=lane)
    assert (await spend(given.conn, tokens, fence=claim.fence)).action == "suspend"
    return claim.execution_id


async def waiting(conn: Connection) -> int:
    return (await read(conn)).waiting_count


async def test_every_call_that_frees_amounts_resumes_waiting_executions(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="suspend")
    spender = await given.claimed()
    await spend(conn, 40, fence=spender.fence)
    reserved = await budgets.reserve(conn, TEAM, {"tokens": 60}, fence=spender.fence)
    assert reserved.reservation_id is not None

    await suspended(given, 50, "a")
    await budgets.settle(conn, reserved.reservation_id, {"tokens": 10}, fence=spender.fence)
    assert await waiting(conn) == 0
    await suspended(given, 70, "b")
    await budgets.release_usage(conn, TEAM, spender.execution_id, by="ops")
    assert await waiting(conn) == 0
    held = await budgets.reserve(conn, TEAM, {"tokens": 90})
    assert held.reservation_id is not None
    await suspended(given, 20, "c")
    assert (await budgets.release(conn, held.reservation_id)).lanes == ["c"]
    assert await waiting(conn) == 0
    await spend(conn, 90)
    await suspended(given, 20, "d")
    await budgets.reset_budget(conn, TEAM, by="ops")
    assert await waiting(conn) == 0


async def test_waiting_executions_resume_oldest_first_as_many_as_fit(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="suspend")
    await spend(conn, 100)
    waiting_ones = [await suspended(given, tokens) for tokens in (30, 80, 40, 20)]

    await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 175}, by="ops")

    states = [(await state(conn, each)).public_state.value for each in waiting_ones]
    assert states == ["waiting", "suspended", "waiting", "suspended"]


async def test_the_sweep_resumes_after_a_due_reset_only_executions_that_fit(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="suspend", reset_interval=timedelta(hours=1))
    await spend(conn, 100)
    fits, never = await suspended(given, 30), await suspended(given, 300)
    assert (await budgets.resume_budget_waits(conn)).moved == 0
    await given.time_passes(minutes=61)

    assert (await budgets.resume_budget_waits(conn, limit=0)).moved == 0
    swept = await budgets.resume_budget_waits(conn)
    assert (swept.moved, swept.lanes) == (1, ["default"])
    assert (await budgets.resume_budget_waits(conn)).moved == 0
    assert (await state(conn, fits)).public_state is PublicState.WAITING
    assert (await state(conn, never)).public_state is PublicState.SUSPENDED
    assert (await given.event("execution_resumed"))["by"] == "budget"


async def test_the_reset_sweep_also_resumes_waiting_executions(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="suspend", reset_interval=timedelta(hours=1))
    await spend(conn, 100)
    await suspended(given, 30)
    await given.time_passes(minutes=61)

    swept = await budgets.reset_budgets(conn)
    assert (swept.moved, swept.lanes, await waiting(conn)) == (1, ["default"], 0)


async def test_an_expired_reservation_resumes_waiting_executions(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="suspend")
    await budgets.reserve(conn, TEAM, {"tokens": 100}, ttl=timedelta(minutes=1))
    await suspended(given, 30)
    await given.time_passes(minutes=2)

    assert (await budgets.resume_budget_waits(conn)).moved == 1


async def test_an_operator_can_resume_or_cancel_an_execution_suspended_by_a_budget(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="suspend")
    await spend(conn, 100)
    one, two = await suspended(given, 30), await suspended(given, 30)

    await waits.resume(conn, one, by="ops")
    await executions.cancel(conn, two, by="ops")
    await budgets.reset_budget(conn, TEAM, by="ops")
    assert (await state(conn, one)).public_state is PublicState.WAITING
    assert (await state(conn, two)).public_state is PublicState.CANCELLED
    assert (await given.events()).count("execution_resumed") == 1


async def test_a_suspension_has_no_waitpoint_and_no_timeout_and_says_what_it_waits_for(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="suspend")
    execution_id = await suspended(given, 101)

    found = await executions.describe(conn, execution_id)
    assert found.suspension is not None
    assert (found.suspension.reason_code, found.suspension.timeout_at) == ("paused_by_budget", None)
    assert found.suspension.waitpoint_keys == []
    assert found.explanation.waits_for == "budget"
    assert "budget team-a" in found.explanation.sentence


@pytest.mark.parametrize("action", ["fail", "suspend"])
async def test_a_reservation_that_does_not_fit_triggers_the_action_of_the_budget(
    conn: Connection, given: Given, action: str
) -> None:
    await make(conn, on_hard_limit=action)
    claim = await given.claimed()

    assert (await budgets.reserve(conn, TEAM, {"tokens": 101}, fence=claim.fence)).action == action
    expected = {"fail": PublicState.FAILED, "suspend": PublicState.SUSPENDED}[action]
    assert (await state(conn, claim.execution_id)).public_state is expected


async def test_a_settlement_over_the_limit_ends_the_execution_and_keeps_what_it_spent(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="fail")
    claim = await given.claimed()
    reserved = await budgets.reserve(conn, TEAM, {"tokens": 60}, fence=claim.fence)
    await budgets.reserve(conn, TEAM, {"tokens": 20}, fence=claim.fence)
    assert reserved.reservation_id is not None

    answer = await budgets.settle(conn, reserved.reservation_id, {"tokens": 90}, fence=claim.fence)

    assert (answer.outcome, answer.action, answer.overrun) == ("hard_breach", "fail", {"tokens": 30})
    assert (await state(conn, claim.execution_id)).public_state is PublicState.FAILED
    assert await figures(conn) == (60, 0, 30)


async def test_the_report_of_a_stale_worker_is_fenced(conn: Connection, given: Given) -> None:
    await make(conn, on_hard_limit="cancel")
    claim = await given.claimed()
    await claims.revoke(conn, claim.execution_id, by="ops")

    async with given.nothing_changes():
        with pytest.raises(errors.LeaseLost):
            await spend(conn, 101, fence=claim.fence)
        with pytest.raises(errors.LeaseLost):
            await budgets.reserve(conn, TEAM, {"tokens": 1}, fence=claim.fence)


async def test_in_a_batch_a_report_after_the_one_that_ended_its_execution_is_fenced(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="fail")
    claim, other = await given.claimed(), await given.claimed()
    await budgets.reserve(conn, TEAM, {"tokens": 50}, fence=claim.fence)
    fences = [claim.fence, claim.fence, claim.fence, other.fence]
    amounts: list[Any] = [40, 20, 1, 60]

    answers = await budgets.report_usage_many(
        conn, [report_of(tokens, fence=fence) for tokens, fence in zip(amounts, fences, strict=True)]
    )

    assert [getattr(answer, "outcome", type(answer).__name__) for answer in answers] == [
        "ok",
        "hard_breach",
        "ExecutionNotActive",
        "ok",
    ]
    assert await figures(conn) == (100, 0, 0)


async def test_a_breach_can_be_raised_as_an_exception(conn: Connection) -> None:
    await make(conn)
    answer = await budgets.report_usage(conn, UsageReport(budget=TEAM, amounts={"tokens": 101}))

    refusal = budgets.exhausted(TEAM, answer)
    assert isinstance(refusal, errors.BudgetExhausted)
    assert refusal.status == 429
    assert refusal.fields.items() >= {"budget": TEAM, "dimension": "tokens"}.items()


async def test_a_retry_can_reserve_what_the_first_attempt_released(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed(policy={"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}})
    await budgets.reserve(conn, TEAM, {"tokens": 100}, fence=claim.fence)
    await attempts.fail(conn, claim.fence, "it broke")

    [again] = await given.claim()
    assert (await budgets.reserve(conn, TEAM, {"tokens": 100}, fence=again.fence)).outcome == "reserved"
