"""Delay: release the lease and continue the same attempt later."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from flowfabric import testing
from flowfabric.engine import attempts, executions
from flowfabric.errors import ExecutionNotActive, InvalidTime, LeaseLost
from flowfabric.model import Delay, Delayed, PublicState
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.given import Given, submission

HOUR = timedelta(hours=1)


async def test_a_delayed_attempt_continues_when_it_is_due(conn: Connection, given: Given) -> None:
    first = await given.claimed()
    now = await testing.now(conn)

    delayed = await attempts.delay(conn, first.fence, HOUR)

    assert now + HOUR <= delayed.due_at <= await testing.now(conn) + HOUR
    described = await executions.describe(conn, first.execution_id)
    assert (described.state.public_state, described.due_at) == (PublicState.DELAYED, delayed.due_at)
    assert described.lease is None
    await given.time_passes(minutes=59)
    assert await given.claim() == []
    await given.time_passes(minutes=1)
    [second] = await given.claim(instance="pool-2")
    assert (second.attempt, second.resumed, second.fence.epoch) == (first.attempt, True, 2)
    assert (await given.event("lease_acquired"))["resumed"] is True


async def test_a_delay_stores_its_due_time(conn: Connection, given: Given) -> None:
    """The due time and the deadline are separate fields."""
    claim = await given.claimed(deadline=timedelta(days=1))
    delayed = await attempts.delay(conn, claim.fence, HOUR)
    ticket = await given.ticket(claim.execution_id)

    assert (ticket["phase"], ticket["eligibility"]) == ("runnable", "not_eligible_until_time")
    assert (ticket["reason"], ticket["attempt_state"]) == ("waiting_for_delay", "attempt_interrupted")
    assert (ticket["due_at"], ticket["deadline_at"]) == (delayed.due_at, claim.deadline_at)
    event = await given.event("execution_delayed")
    assert (datetime.fromisoformat(event["due_at"]), event["attempt"], event["epoch"]) == (delayed.due_at, 1, 1)
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert (attempt.lifecycle, attempt.ended_at) == ("suspended", None)


async def test_a_time_may_be_in_any_time_zone(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    moment = (await testing.now(conn) + HOUR).astimezone(timezone(timedelta(hours=-7)))

    assert (await attempts.delay(conn, claim.fence, moment)).due_at == moment


@pytest.mark.parametrize(
    "until", [None, timedelta(0), datetime(2001, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]
)
async def test_a_time_in_the_past_means_immediately(conn: Connection, given: Given, until: Any) -> None:
    claim = await given.claimed()
    delayed = await attempts.delay(conn, claim.fence, until)
    ticket = await given.ticket(claim.execution_id)

    assert delayed.due_at >= claim.attempt.started_at
    assert (ticket["eligibility"], ticket["reason"], ticket["due_at"]) == ("eligible_now", "waiting_for_worker", None)
    assert [again.execution_id for again in await given.claim()] == [claim.execution_id]


@pytest.mark.parametrize(
    "until",
    [
        timedelta(milliseconds=-1),
        timedelta(days=3_651),
        timedelta.max,
        datetime(2090, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1),  # noqa: DTZ001 - a time without a time zone is refused
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        "1h",
    ],
    ids=str,
)
async def test_an_invalid_time_is_refused_and_the_lease_is_kept(conn: Connection, given: Given, until: Any) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidTime):
            await attempts.delay(conn, claim.fence, until)


async def test_a_second_delay_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.delay(conn, claim.fence, HOUR)

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive) as refused:
            await attempts.delay(conn, claim.fence, HOUR)
    assert refused.value.fields["eligibility"] == "not_eligible_until_time"


async def test_a_batch_returns_one_result_per_item_in_order(conn: Connection, given: Given) -> None:
    await executions.submit_many(conn, [submission() for _ in range(3)])
    one, two, three = await given.claim(take=3)
    stale = type(two.fence)(execution_id=two.execution_id, lease_id=one.fence.lease_id, epoch=1, attempt=1)

    answers = await attempts.delay_many(
        conn,
        [
            Delay(fence=three.fence, until=HOUR),
            Delay(fence=stale),
            Delay(fence=one.fence, until="soon"),  # type: ignore[arg-type]
            Delay(fence=three.fence, until=HOUR),
            Delay(fence=one.fence),
            Delay(fence=two.fence, until=-HOUR),
        ],
    )

    assert [type(answer) for answer in answers] == [
        Delayed, LeaseLost, InvalidTime, ExecutionNotActive, Delayed, InvalidTime,
    ]  # fmt: skip
    assert (await given.events()).count("execution_delayed") == 2


async def test_a_delay_that_waited_for_a_lock_still_succeeds(given: Given, connect: Connect) -> None:
    claim = await given.claimed()
    one, two = await connect(), await connect()
    async with one.transaction():
        await executions.change_priority(one, claim.execution_id, 5, by="ops")
        delay = asyncio.create_task(attempts.delay(two, claim.fence, HOUR))
        await blocked(given, two, delay)

    assert (await delay).due_at == (await given.ticket(claim.execution_id))["due_at"]
