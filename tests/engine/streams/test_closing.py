"""Closing: the one ending of an attempt closes its stream and says why."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, claims, executions, streams, waits, workers
from flowfabric.model import Claim, FailureClass, FramePage, Suspension, Tail, Wish
from tests.engine.streams.scene import appended
from tests.given import Given

RETRIED = {"retry": {"max_retries": 1}}
WISH = Wish(
    name="go",
    occurrence=1,
    what=Suspension(
        condition={"kind": "single", "waitpoint": "go", "name": "go"},
        waitpoints=["go"],
        timeout=timedelta(hours=1),
        timeout_behavior="cancel",
    ),
)


async def complete(given: Given, claim: Claim) -> None:
    await attempts.complete(given.conn, claim.fence)


async def fail(given: Given, claim: Claim) -> None:
    await attempts.fail(given.conn, claim.fence, "down", class_=FailureClass.TRANSIENT)


async def fail_for_good(given: Given, claim: Claim) -> None:
    await attempts.fail(given.conn, claim.fence, "wrong", class_=FailureClass.PERMANENT)


async def cancel(given: Given, claim: Claim) -> None:
    await executions.cancel(given.conn, claim.execution_id, by="ops")


async def lapse(given: Given, _: Claim) -> None:
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)


async def revoke(given: Given, claim: Claim) -> None:
    await claims.revoke(given.conn, claim.execution_id, by="ops")


async def mark_dead(given: Given, _: Claim) -> None:
    await workers.register_worker(given.conn, given.worker, instance=given.instance, lanes=["default"])
    await workers.mark_dead(given.conn, given.instance, by="ops", reason="gone")


async def time_out(given: Given, claim: Claim) -> None:
    await claims.renew(given.conn, claim.fence, lease=timedelta(hours=1))
    await given.time_passes(minutes=30)
    await attempts.time_out_attempts(given.conn)


async def expire(given: Given, claim: Claim) -> None:
    await given.time_passes(hours=2)
    await executions.expire_executions(given.conn)


async def time_out_a_wait(given: Given, claim: Claim) -> None:
    await waits.suspend(given.conn, claim.fence, [WISH])
    await given.time_passes(hours=1, seconds=1)
    await waits.time_out_waits(given.conn)


async def override(given: Given, claim: Claim) -> None:
    await executions.override(given.conn, claim.execution_id, "success", reason="known", by="ops")


ENDS = [
    (complete, {}, "attempt_success"),
    (override, {}, "attempt_success"),
    (fail, {"policy": RETRIED}, "attempt_failure"),
    (fail_for_good, {}, "attempt_failure"),
    (cancel, {}, "attempt_cancelled"),
    (lapse, {}, "reclaimed"),
    (lapse, {"policy": {"max_reclaim_count": 0}}, "lease_expired"),
    (revoke, {"policy": {"max_reclaim_count": 0}}, "reclaimed"),
    (mark_dead, {}, "reclaimed"),
    (time_out, {"policy": {"attempt_timeout_ms": 60_000, **RETRIED}}, "expired"),
    (time_out, {"policy": {"attempt_timeout_ms": 60_000}}, "expired"),
    (expire, {"deadline": timedelta(hours=1)}, "expired"),
    (time_out_a_wait, {}, "suspension_timeout"),
]


@pytest.mark.parametrize(("end", "options", "reason"), ENDS, ids=[f"{end.__name__} {why}" for end, _, why in ENDS])
async def test_an_end_closes_the_stream_with_its_reason(
    given: Given, end: Callable[[Given, Claim], Awaitable[None]], options: dict[str, Any], reason: str
) -> None:
    claim = await given.claimed(**options)
    await appended(given.conn, claim, b"1")
    await end(given, claim)

    page = await streams.read_frames(given.conn, claim.execution_id, attempt=1)
    assert (page.closed_reason, [it.payload for it in page.frames]) == (reason, [b"1"])
    assert page.closed_at is not None
    [empty] = await streams.tail_frames(given.conn, [Tail(execution_id=claim.execution_id, after=page.frames[0].id)])
    assert isinstance(empty, FramePage)
    assert ([*empty.frames], empty.closed_reason) == ([], reason)


async def test_a_closed_stream_keeps_its_reason(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await lapse(given, claim)
    await cancel(given, claim)

    page = await streams.read_frames(given.conn, claim.execution_id)
    assert (page.closed_reason, page.has_ended) == ("reclaimed", True)


async def test_a_stream_stays_open_while_its_attempt_waits(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await attempts.delay(given.conn, claim.fence)
    delayed = await streams.read_frames(given.conn, claim.execution_id)
    [resumed] = await given.claim()
    await waits.suspend(given.conn, resumed.fence, [WISH])
    suspended = await streams.read_frames(given.conn, claim.execution_id)

    assert [page.closed_reason for page in (delayed, suspended)] == [None, None]


async def test_a_replay_has_a_stream_of_its_own(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await complete(given, claim)
    await executions.replay(given.conn, claim.execution_id, by="ops")
    [again] = await given.claim()
    await appended(given.conn, again, b"2")
    await complete(given, again)

    first = await streams.read_frames(given.conn, claim.execution_id, attempt=1)
    second = await streams.read_frames(given.conn, claim.execution_id)
    assert (first.frames[0].payload, first.closed_reason) == (b"1", "attempt_success")
    assert (second.attempt, second.frames[0].payload, second.closed_reason) == (2, b"2", "attempt_success")


async def test_an_execution_without_output_has_no_stream(given: Given) -> None:
    claim = await given.claimed()
    await complete(given, claim)

    page = await streams.read_frames(given.conn, claim.execution_id)
    assert ([*page.frames], page.closed_reason, page.has_ended) == ([], None, True)
    assert await given.count("streams") == 0
