"""Listing attempts: the ended ones and the current one."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import ExecutionNotFound, InvalidCursor, InvalidLimit
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import FailureClass
from flowfabric.postgres.driver import Connection
from tests.given import Given

RETRY = {"retry": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def tried(given: Given, times: int) -> ExecutionId:
    """An execution with a number of failed attempts and a current one."""
    claim = await given.claimed(policy=RETRY)
    for _ in range(times):
        await attempts.fail(given.conn, claim.fence, "no")
        [claim] = await given.claim()
    return claim.execution_id


async def test_an_execution_that_was_never_claimed_has_no_attempts(conn: Connection, given: Given) -> None:
    assert (await attempts.list_attempts(conn, await given.submitted())).items == []


async def test_the_current_attempt_is_listed_as_started(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items

    assert (attempt.number, attempt.type, attempt.lifecycle) == (1, "initial", "started")
    assert (attempt.worker, attempt.instance) == (given.worker, given.instance)
    assert (attempt.first_epoch, attempt.last_epoch) == (1, 1)
    assert (attempt.started_at, attempt.ended_at) == (claim.attempt.started_at, None)


async def test_a_resumed_attempt_has_several_epochs_and_its_last_worker(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.delay(conn, claim.fence)
    [again] = await given.claim(worker="other", instance="other-1")
    await attempts.complete(conn, again.fence)

    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items

    assert (attempt.first_epoch, attempt.last_epoch, attempt.instance) == (1, 2, "other-1")
    assert (attempt.started_at, attempt.lifecycle) == (claim.attempt.started_at, "ended_success")
    assert attempt.ended_at is not None
    assert attempt.ended_at > attempt.started_at


async def test_the_last_attempt_stays_listed_when_a_replay_adds_another(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.fail(conn, claim.fence, "no", class_=FailureClass.PERMANENT, traceback="line 7")
    before = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert await given.count("attempts") == 0

    await executions.replay(conn, claim.execution_id, by="ops")
    assert (await attempts.list_attempts(conn, claim.execution_id)).items == before
    [again] = await given.claim()
    await attempts.complete(conn, again.fence)

    first, second = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert [first] == before
    assert (first.lifecycle, first.failure and first.failure.traceback) == ("ended_failure", "line 7")
    assert (second.number, second.type, second.lifecycle, second.failure) == (2, "replay", "ended_success", None)


async def test_an_end_between_two_attempts_adds_no_attempt(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY)
    await attempts.fail(conn, claim.fence, "no")
    before = (await attempts.list_attempts(conn, claim.execution_id)).items

    await executions.cancel(conn, claim.execution_id, by="ops")
    assert (await attempts.list_attempts(conn, claim.execution_id)).items == before
    await executions.replay(conn, claim.execution_id, by="ops")
    await executions.cancel(conn, claim.execution_id, by="ops")
    assert (await attempts.list_attempts(conn, claim.execution_id)).items == before


async def test_every_lifecycle_of_an_ended_attempt_is_listed(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY | {"attempt_timeout_ms": 60_000}, lease=timedelta(minutes=5))
    await attempts.fail(conn, claim.fence, "no")
    await given.claim()
    await given.time_passes(seconds=30)
    await claims.expire_leases(conn)
    await given.claim(lease=timedelta(minutes=5))
    await given.time_passes(minutes=1)
    await attempts.time_out_attempts(conn)
    await given.time_passes(seconds=1)
    await given.claim()
    await executions.cancel(conn, claim.execution_id, by="ops")

    listed = (await attempts.list_attempts(conn, claim.execution_id)).items

    assert [(attempt.number, attempt.type, attempt.lifecycle) for attempt in listed] == [
        (1, "initial", "ended_failure"),
        (2, "retry", "interrupted_reclaimed"),
        (3, "reclaim", "ended_failure"),
        (4, "retry", "ended_cancelled"),
    ]
    assert all(attempt.ended_at for attempt in listed)


async def test_a_cancelled_wait_ends_its_attempt_and_a_backoff_has_none(conn: Connection, given: Given) -> None:
    waits, backs_off = await given.claimed(), await given.claimed(policy=RETRY)
    await attempts.delay(conn, waits.fence, timedelta(hours=1))
    await attempts.fail(conn, backs_off.fence, "no")
    for claim in (waits, backs_off):
        await executions.cancel(conn, claim.execution_id, by="ops")

    [one] = (await attempts.list_attempts(conn, waits.execution_id)).items
    [other] = (await attempts.list_attempts(conn, backs_off.execution_id)).items
    assert (one.lifecycle, other.lifecycle) == ("ended_cancelled", "ended_failure")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 50])
async def test_pages_skip_and_repeat_nothing(conn: Connection, given: Given, limit: int) -> None:
    execution_id = await tried(given, 4)
    numbers: list[int] = []
    cursor: str | None = None
    for _ in range(9):
        page = await attempts.list_attempts(conn, execution_id, limit=limit, cursor=cursor)
        numbers += [attempt.number for attempt in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert (numbers, cursor) == ([1, 2, 3, 4, 5], None)


async def test_limits_are_reduced_or_refused(conn: Connection, given: Given) -> None:
    execution_id = await tried(given, 1)

    assert len((await attempts.list_attempts(conn, execution_id, limit=1 << 40)).items) == 2
    empty = await attempts.list_attempts(conn, execution_id, limit=0)
    assert (empty.items, empty.next_cursor) == ([], None)
    with pytest.raises(InvalidLimit):
        await attempts.list_attempts(conn, execution_id, limit=-1)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", "9" * 30, "\0"])
async def test_an_invalid_cursor_is_refused(conn: Connection, given: Given, cursor: str) -> None:
    execution_id = await given.submitted()

    with pytest.raises(InvalidCursor):
        await attempts.list_attempts(conn, execution_id, cursor=cursor)


async def test_an_execution_that_does_not_exist_is_not_found(conn: Connection) -> None:
    with pytest.raises(ExecutionNotFound):
        await attempts.list_attempts(conn, mint_execution_id())
