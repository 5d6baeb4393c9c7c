"""Fail: what is recorded about a failure, and which reports are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, executions
from flowfabric.errors import ExecutionNotActive, InvalidBody, InvalidTime, LeaseLost
from flowfabric.model import Failed, FailureClass, FailureReport, PublicState
from flowfabric.postgres.driver import Connection
from tests.given import ENDED_ATTEMPTS, Given, submission

RETRY = {"retry": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 1_000}}}


async def test_without_a_policy_a_failure_is_final(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    assert await attempts.fail(conn, claim.fence, "it broke", category="oops") == Failed(outcome="failed")

    described = await executions.describe(conn, claim.execution_id)
    assert described.state.public_state is PublicState.FAILED
    assert described.failure is not None
    assert (described.failure.class_, described.failure.category) == ("transient", "oops")
    assert described.failure.reason == "it broke"
    assert await given.event("execution_failed") == {
        "outcome": "failed", "attempt": 1, "epoch": 1, "reason": "it broke",
        "lease_id": str(claim.fence.lease_id), "worker": given.worker, "instance": given.instance,
    }  # fmt: skip


@pytest.mark.parametrize("class_", [FailureClass.PERMANENT, FailureClass.CANCELLED])
async def test_a_class_that_is_never_retried_is_final(conn: Connection, given: Given, class_: FailureClass) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 3, "retryable": ["permanent", "cancelled", "x"]}})

    assert (await attempts.fail(conn, claim.fence, "no", class_=class_, category="x")).outcome == "failed"


@pytest.mark.parametrize("class_", [FailureClass.TRANSIENT, FailureClass.INFRA_CRASH, FailureClass.TIMEOUT])
async def test_the_other_classes_are_retried(conn: Connection, given: Given, class_: FailureClass) -> None:
    claim = await given.claimed(policy=RETRY)

    assert (await attempts.fail(conn, claim.fence, "no", class_=class_)).outcome == "retry_scheduled"


async def test_a_failed_attempt_is_kept_with_its_failure(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY)
    answer = await attempts.fail(conn, claim.fence, "no", category="oops", traceback="line 1\nline 2")

    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.failure is not None
    assert (attempt.lifecycle, attempt.failure.class_, attempt.failure.reason) == ("ended_failure", "transient", "no")
    assert (attempt.failure.category, attempt.failure.traceback) == ("oops", "line 1\nline 2")
    event = await given.event("attempt_failed")
    assert (event["class"], event["category"], event["reason"]) == ("transient", "oops", "no")
    assert datetime.fromisoformat(event["due_at"]) == answer.due_at
    assert (event["attempt"], event["epoch"], "traceback" in event) == (1, 1, False)


async def test_a_failure_that_cannot_be_stored_is_cleaned_and_truncated(conn: Connection, given: Given) -> None:
    """Recording a failure must never fail."""
    claim = await given.claimed()
    reason = "a\0b\ud800c" + "ä" * 1_048_576

    await attempts.fail(conn, claim.fence, reason, traceback="\0" * 1_048_576)

    failure = (await executions.describe(conn, claim.execution_id)).failure
    assert failure is not None
    assert failure.reason is not None
    assert failure.reason.startswith("a\ufffdb\ufffdcäää")
    assert 4_093 <= len(failure.reason.encode()) <= 4_096
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.failure is not None
    assert 16_300 <= len((attempt.failure.traceback or "").encode()) <= 16_384


@pytest.mark.parametrize("letter", ["x", "ä", "\ud800"])
async def test_a_long_traceback_keeps_its_beginning_and_its_end(conn: Connection, given: Given, letter: str) -> None:
    claim = await given.claimed()
    frames = [f'  File "/srv/shop.py", line {number}\n    {letter * 100}\n' for number in range(10_000)]

    await attempts.fail(conn, claim.fence, "deep", traceback=f"Traceback:\n{''.join(frames)}RecursionError: too deep\n")

    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert attempt.failure is not None
    kept = (attempt.failure.traceback or "").splitlines()
    assert kept[:2] == ["Traceback:", '  File "/srv/shop.py", line 0']
    assert kept[-1] == "RecursionError: too deep"
    assert [line for line in kept if line.endswith(" bytes left out")] != []
    assert 16_000 < len("\n".join(kept).encode()) <= 16_384


@pytest.mark.parametrize("class_", ["", "fatal", "TRANSIENT", "\0", "x" * 9_999])
async def test_an_unknown_class_is_refused(conn: Connection, given: Given, class_: Any) -> None:
    claim = await given.claimed(policy=RETRY)

    async with given.nothing_changes():
        with pytest.raises(InvalidBody) as refused:
            await attempts.fail(conn, claim.fence, "no", class_=class_)
    assert refused.value.fields == {"field": "class"}


@pytest.mark.parametrize("category", ["", "x" * 65])
async def test_an_invalid_category_is_refused(conn: Connection, given: Given, category: str) -> None:
    claim = await given.claimed(policy=RETRY)

    async with given.nothing_changes():
        with pytest.raises(InvalidBody) as refused:
            await attempts.fail(conn, claim.fence, "no", category=category)
    assert refused.value.fields == {"field": "category"}


@pytest.mark.parametrize("after", [timedelta(milliseconds=-1), timedelta(days=30, milliseconds=1), timedelta.max])
async def test_an_invalid_retry_after_is_refused(conn: Connection, given: Given, after: timedelta) -> None:
    claim = await given.claimed(policy=RETRY)

    async with given.nothing_changes():
        with pytest.raises(InvalidTime):
            await attempts.fail(conn, claim.fence, "no", retry_after=after)


async def test_a_datetime_as_retry_after_is_refused_rather_than_ignored(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY)

    async with given.nothing_changes():
        with pytest.raises(InvalidTime):
            await attempts.fail(conn, claim.fence, "no", retry_after=datetime.now(UTC))  # type: ignore[arg-type]


async def test_a_second_failure_is_refused(conn: Connection, given: Given) -> None:
    retried, final = await given.claimed(policy=RETRY), await given.claimed(lane="final")
    for claim in (retried, final):
        await attempts.fail(conn, claim.fence, "no")

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive) as waits:
            await attempts.fail(conn, retried.fence, "no")
        with pytest.raises(ExecutionNotActive) as ended:
            await attempts.fail(conn, final.fence, "no")
    assert (waits.value.fields["phase"], ended.value.fields["outcome"]) == ("runnable", "failed")


async def test_a_batch_returns_one_result_per_item_in_order(conn: Connection, given: Given) -> None:
    await executions.submit_many(conn, [submission(policy=RETRY if at % 2 else {}) for at in range(5)])
    final, retried, other, again, last = await given.claim(take=5)
    stale = FailureReport(fence=type(last.fence)(
        execution_id=last.execution_id, lease_id=final.fence.lease_id, epoch=1, attempt=1), reason="x")  # fmt: skip

    answers = await attempts.fail_many(
        conn,
        [
            FailureReport(fence=again.fence, reason="1"),
            FailureReport(fence=other.fence, reason="2", class_="nonsense"),  # type: ignore[arg-type]
            FailureReport(fence=final.fence, reason="3"),
            stale,
            FailureReport(fence=again.fence, reason="4"),
            FailureReport(fence=retried.fence, reason="5", retry_after="1h"),  # type: ignore[arg-type]
            FailureReport(fence=retried.fence, reason="6", retry_after=timedelta(seconds=7)),
        ],
    )

    assert [answer.outcome if isinstance(answer, Failed) else type(answer) for answer in answers] == [
        "retry_scheduled", InvalidBody, "failed", LeaseLost, ExecutionNotActive, InvalidTime, "retry_scheduled",
    ]  # fmt: skip
    reasons = await given.rows(f"select failure ->> 'reason' as reason from {ENDED_ATTEMPTS} order by 1")
    assert [row["reason"] for row in reasons] == ["1", "3", "6"]
