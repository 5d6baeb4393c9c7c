"""Complete: the result is stored once, byte for byte; a repeated call gets the outcome."""

from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import ExecutionNotActive, FlowFabricError, InvalidBody, InvalidText, LeaseLost, PayloadTooLarge
from flowfabric.model import Completed, Completion, Outcome, PublicState
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission


@pytest.mark.parametrize("result", [None, b"", b"\0", b"{}", bytes(range(256)) * 4_096])
async def test_a_result_is_kept_byte_for_byte(conn: Connection, given: Given, result: bytes | None) -> None:
    claim = await given.claimed()

    await attempts.complete(conn, claim.fence, result)

    kept = await executions.get_result(conn, claim.execution_id)
    assert (kept.outcome, kept.result, kept.encoding) == (Outcome.SUCCESS, result, "json")


async def test_the_encoding_of_a_result_is_kept(conn: Connection, given: Given) -> None:
    claim = await given.claimed(encoding="raw")

    await attempts.complete(conn, claim.fence, b"\0", encoding="msgpack")

    assert (await executions.get_result(conn, claim.execution_id)).encoding == "msgpack"
    described = await executions.describe(conn, claim.execution_id)
    assert (described.encoding, described.result_encoding) == ("raw", "msgpack")


async def test_completing_writes_record_attempt_and_event(conn: Connection, given: Given) -> None:
    claim = await given.claimed(priority=5, tags={"a.b": "c"})
    now = await testing.now(conn)

    await attempts.complete(conn, claim.fence)

    described = await executions.describe(conn, claim.execution_id)
    assert (described.state.public_state, described.priority) == (PublicState.COMPLETED, 5)
    assert described.state.attempt_state == "attempt_terminal"
    assert (described.lease, described.attempt) == (None, None)
    assert described.ended_at is not None
    assert described.ended_at >= now
    [attempt] = (await attempts.list_attempts(conn, claim.execution_id)).items
    assert (attempt.lifecycle, attempt.failure) == ("ended_success", None)
    assert await given.events(claim.execution_id) == ["execution_submitted", "lease_acquired", "execution_completed"]
    assert await given.event("execution_completed") == {"outcome": "success", "attempt": 1, "epoch": 1}
    assert await given.count("tickets") == 0


async def test_a_lost_reply_can_be_recognised_and_there_is_one_event(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.complete(conn, claim.fence, b"first")

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive) as refused:
            await attempts.complete(conn, claim.fence, b"second")

    fields = refused.value.fields
    assert fields == {"phase": "terminal", "outcome": "success", "epoch": 1, "attempt": 1}
    assert (fields["epoch"], fields["attempt"]) == (claim.fence.epoch, claim.fence.attempt)
    assert (await executions.get_result(conn, claim.execution_id)).result == b"first"
    assert (await given.events()).count("execution_completed") == 1


async def test_a_late_failure_does_not_restart_a_completed_execution(conn: Connection, given: Given) -> None:
    """The ticket is gone, so a late report changes nothing."""
    claim = await given.claimed(policy={"retry": {"max_retries": 5}})
    await attempts.complete(conn, claim.fence)

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive):
            await attempts.fail(conn, claim.fence, "late")


async def test_a_result_over_the_limit_is_refused_and_the_lease_is_kept(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        for size in (1_048_577, 9 << 20):
            with pytest.raises(PayloadTooLarge) as refused:
                await attempts.complete(conn, claim.fence, b"x" * size)
            assert refused.value.fields == {"limit": 1_048_576}
    await attempts.complete(conn, claim.fence, b"x" * 1_048_576)
    assert len((await executions.get_result(conn, claim.execution_id)).result or b"") == 1_048_576


async def test_the_limit_of_results_can_be_set(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    [refused] = await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"1234")], result_limit=3)
    [done] = await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"123")], result_limit=3)

    assert (type(refused), type(done)) == (PayloadTooLarge, Completed)


@pytest.mark.parametrize("encoding", ["", "x" * 65])
async def test_an_invalid_encoding_is_refused_and_the_lease_is_kept(
    conn: Connection, given: Given, encoding: str
) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidBody) as refused:
            await attempts.complete(conn, claim.fence, encoding=encoding)
    assert refused.value.fields == {"field": "encoding"}


async def test_a_batch_returns_one_result_per_item_in_order(conn: Connection, given: Given) -> None:
    await executions.submit_many(conn, [submission() for _ in range(5)])
    one, two, three, four, five = await given.claim(take=5)
    stale = msgspec.structs.replace(three.fence, epoch=9)
    batch = [one.fence, two.fence, stale, one.fence, four.fence, five.fence]

    answers = await attempts.complete_many(
        conn, [Completion(fence=fence, result=b"%d" % at) for at, fence in enumerate(batch)]
    )

    assert [type(answer) for answer in answers] == [
        Completed, Completed, LeaseLost, ExecutionNotActive, Completed, Completed,
    ]  # fmt: skip
    assert isinstance(answers[3], FlowFabricError)
    assert answers[3].fields["outcome"] == "success"
    assert (await executions.get_result(conn, one.execution_id)).result == b"0"
    assert (await executions.get_result(conn, five.execution_id)).result == b"5"
    assert (await executions.describe(conn, three.execution_id)).state.public_state is PublicState.ACTIVE
    assert (await given.events()).count("execution_completed") == 4


async def test_an_invalid_item_does_not_affect_the_others(conn: Connection, given: Given) -> None:
    """An invalid item does not fail its batch."""
    await executions.submit_many(conn, [submission() for _ in range(4)])
    one, two, three, four = await given.claim(take=4)

    answers = await attempts.complete_many(
        conn,
        [
            Completion(fence=one.fence, encoding="\0"),
            Completion(fence=two.fence, result="text"),  # type: ignore[arg-type]
            Completion(fence=three.fence, result=b"x" * 1_048_577),
            Completion(fence=four.fence, result=b"good"),
        ],
    )

    assert [type(answer) for answer in answers] == [InvalidText, InvalidBody, PayloadTooLarge, Completed]
    assert await given.count("tickets") == 3


async def test_a_batch_larger_than_a_statement_is_completed(conn: Connection, given: Given) -> None:
    await executions.submit_many(conn, [submission() for _ in range(1_020)])
    claimed = [*await given.claim(take=1_000), *await given.claim(take=1_000)]
    batch = [Completion(fence=claim.fence, result=b"x" * (at % 2 << 16)) for at, claim in enumerate(claimed)]

    answers = await attempts.complete_many(conn, batch)

    assert answers == [Completed()] * 1_020
    assert (await given.events()).count("execution_completed") == 1_020


async def test_an_unclaimed_execution_cannot_be_completed(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    waiting = await given.submitted()
    fence = msgspec.structs.replace(claim.fence, execution_id=waiting, lease_id=uuid4())

    async with given.nothing_changes():
        with pytest.raises(LeaseLost):
            await attempts.complete(conn, fence)


async def test_counts_are_kept_after_the_end(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 0}}})
    await attempts.fail(conn, claim.fence, "no")
    await given.claim()
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)
    [claim] = await given.claim(lease=timedelta(minutes=1))
    await attempts.complete(conn, claim.fence)

    counts = (await executions.describe(conn, claim.execution_id)).counts
    assert (counts.attempts, counts.retries, counts.reclaims, counts.replays) == (3, 1, 1, 0)
