"""Retries: whether and when a failed attempt is retried."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, executions
from flowfabric.model import Claim, Failed, PublicState
from flowfabric.postgres.driver import Connection
from tests.given import Given

VECTORS = msgspec.json.decode(Path(__file__).parents[2].joinpath("vectors.json").read_bytes())["backoff"]
BACKOFF = "select flowfabric._backoff_ms(jsonb_build_object('backoff', $1::text::jsonb), $2) as ms"
DRAWS = f"{BACKOFF} from generate_series(1, 300)"


def fixed(milliseconds: int = 0, **retry: object) -> dict[str, object]:
    return {"retry": {"backoff": {"type": "fixed", "delay_ms": milliseconds}, **retry}}


async def fail(given: Given, claim: Claim, **options: Any) -> Failed:
    return await attempts.fail(given.conn, claim.fence, "no", **options)


async def retries_after(given: Given, claim: Claim, delay: timedelta, **options: Any) -> None:
    """Fail an attempt, and check that its retry is due exactly this long after the failure."""
    before = await testing.now(given.conn)
    due_at = (await fail(given, claim, **options)).due_at
    assert due_at is not None
    assert before <= due_at - delay <= await testing.now(given.conn)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(list(case["backoff"].values())))
async def test_backoffs_match_the_vectors(given: Given, case: dict[str, Any]) -> None:
    plain = msgspec.json.encode(case["backoff"]).decode()
    jittered = msgspec.json.encode({**case["backoff"], "jitter": True}).decode()
    for delay in case["delays"]:
        [exact] = await given.rows(BACKOFF, plain, delay["retries_made"])
        draws = {row["ms"] for row in await given.rows(DRAWS, jittered, delay["retries_made"])}

        assert exact["ms"] == delay["delay_ms"]
        assert min(draws) >= delay["with_jitter_from"]
        assert max(draws) <= delay["with_jitter_to"]
        assert len(draws) > 1 or delay["delay_ms"] <= 1


async def test_jitter_reaches_both_ends(given: Given) -> None:
    draws = {row["ms"] for row in await given.rows(DRAWS, '{"type": "fixed", "delay_ms": 5, "jitter": true}', 0)}

    assert draws == {3, 4, 5}


async def test_a_backoff_does_not_overflow(given: Given) -> None:
    steep = '{"type": "exponential", "initial_delay_ms": 2592000000, "max_delay_ms": 2592000000, "multiplier": 10}'
    fine = '{"type": "exponential", "initial_delay_ms": 1000, "max_delay_ms": 60000, "multiplier": 1.0000000000000001}'

    assert [row["ms"] for row in await given.rows(BACKOFF, steep, 1_000_000)] == [2_592_000_000]
    assert [row["ms"] for row in await given.rows(BACKOFF, fine, 1_000)] == [1_000]


async def test_a_failure_is_retried_as_often_as_allowed(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=fixed(60_000, max_retries=2))
    for number in (2, 3):
        before = await testing.now(conn)
        answer = await fail(given, claim)

        assert (answer.outcome, answer.next_attempt) == ("retry_scheduled", number)
        assert answer.due_at is not None
        assert before + timedelta(minutes=1) <= answer.due_at <= await testing.now(conn) + timedelta(minutes=1)
        described = await executions.describe(conn, claim.execution_id)
        assert (described.state.public_state, described.due_at) == (PublicState.DELAYED, answer.due_at)
        assert await given.claim() == []
        await given.time_passes(minutes=1)
        [claim] = await given.claim()
        assert (claim.attempt.number, claim.attempt.type, claim.resumed) == (number, "retry", False)

    assert await fail(given, claim) == Failed(outcome="failed")
    counts = (await executions.describe(conn, claim.execution_id)).counts
    assert (counts.attempts, counts.retries) == (3, 2)
    assert (await given.events(claim.execution_id)).count("attempt_failed") == 2


async def test_backoffs_grow_up_to_their_maximum(given: Given) -> None:
    backoff = {"type": "exponential", "initial_delay_ms": 1_000, "max_delay_ms": 3_000, "multiplier": 2}
    claim = await given.claimed(policy={"retry": {"max_retries": 4, "backoff": backoff}})

    for seconds in (1, 2, 3, 3):
        await retries_after(given, claim, timedelta(seconds=seconds))
        await given.time_passes(seconds=3)
        [claim] = await given.claim()


async def test_an_empty_retry_object_means_three_retries(given: Given) -> None:
    claim = await given.claimed(policy={"retry": {}})
    outcomes = []
    for _ in range(3):
        outcomes.append((await fail(given, claim)).outcome)
        await given.time_passes(minutes=1)
        [claim] = await given.claim()

    assert outcomes == ["retry_scheduled"] * 3
    assert (await fail(given, claim)).outcome == "failed"


@pytest.mark.parametrize(
    ("category", "outcome"), [("rate_limit", "retry_scheduled"), ("other", "failed"), (None, "failed")]
)
async def test_a_category_is_retried_if_the_policy_lists_it(given: Given, category: str | None, outcome: str) -> None:
    claim = await given.claimed(policy=fixed(retryable=["rate_limit"]))

    assert (await fail(given, claim, category=category)).outcome == outcome


async def test_an_empty_list_retries_nothing(given: Given) -> None:
    claim = await given.claimed(policy=fixed(retryable=[]))

    assert (await fail(given, claim)).outcome == "failed"


async def test_max_retries_of_zero_means_no_retry(given: Given) -> None:
    claim = await given.claimed(policy=fixed(max_retries=0))

    assert (await fail(given, claim)).outcome == "failed"


async def test_a_failure_report_may_set_the_time_of_the_retry(given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"backoff": {"type": "fixed", "delay_ms": 60_000, "jitter": True}}})

    await retries_after(given, claim, timedelta(seconds=7), retry_after=timedelta(milliseconds=7_000))


async def test_a_retry_that_would_start_after_the_deadline_is_not_scheduled(conn: Connection, given: Given) -> None:
    """Class, category, number of retries and deadline must all allow a retry."""
    claim = await given.claimed(policy=fixed(60_000), deadline=timedelta(seconds=59))

    assert await fail(given, claim) == Failed(outcome="failed")
    assert (await executions.describe(conn, claim.execution_id)).state.public_state is PublicState.FAILED


async def test_a_retry_that_starts_before_the_deadline_is_scheduled(given: Given) -> None:
    claim = await given.claimed(policy=fixed(60_000), deadline=timedelta(seconds=90))

    assert (await fail(given, claim)).outcome == "retry_scheduled"
    deadline_at = (await given.ticket(claim.execution_id))["deadline_at"]
    assert deadline_at == claim.deadline_at


async def test_the_stored_policy_decides_and_the_execution_stays_delayed(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=fixed(60_000))
    answer = await fail(given, claim)
    ticket = await given.ticket(claim.execution_id)

    assert (ticket["phase"], ticket["eligibility"]) == ("runnable", "not_eligible_until_time")
    assert (ticket["reason"], ticket["attempt_state"]) == ("waiting_for_retry_backoff", "pending_retry_attempt")
    assert (ticket["due_at"], ticket["retries"], ticket["deadline_at"]) == (answer.due_at, 1, None)
    assert (await executions.promote_due(conn)).moved == 0
    await given.time_passes(minutes=1)
    swept = await executions.promote_due(conn)
    assert (swept.moved, swept.lanes) == (1, ["default"])
