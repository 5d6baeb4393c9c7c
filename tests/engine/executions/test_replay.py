"""Replay: run an ended execution again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, lanes
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotTerminal,
    InvalidBody,
    InvalidTime,
    LaneDraining,
    MaxReplaysExhausted,
)
from flowfabric.ids import mint_execution_id
from flowfabric.model import Moved, PublicState
from flowfabric.postgres.driver import Connection
from tests.given import Given

RETRY = {"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def test_a_replayed_execution_runs_as_the_next_attempt(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy=RETRY, priority=7, tags={"a.b": "c"}, payload=b"\0")
    await attempts.fail(conn, claim.fence, "no")
    [claim] = await given.claim()
    await attempts.fail(conn, claim.fence, "no")

    assert await executions.replay(conn, claim.execution_id, by="ops") == Moved(
        public_state=PublicState.WAITING, lanes=["default"]
    )

    described = await executions.describe(conn, claim.execution_id, payload=True, result=True)
    assert described.state.public_state is PublicState.WAITING
    assert (described.state.attempt_state, described.priority) == ("pending_replay_attempt", 7)
    counts = described.counts
    assert (counts.attempts, counts.retries, counts.reclaims, counts.replays) == (2, 0, 0, 1)
    assert (described.failure, described.ended_at, described.payload) == (None, None, b"\0")
    [again] = await given.claim()
    assert (again.attempt.number, again.attempt.type, again.fence.epoch) == (3, "replay", 3)
    assert (await attempts.fail(conn, again.fence, "no")).outcome == "retry_scheduled"


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "expired"])
async def test_an_execution_can_be_replayed_after_any_outcome(conn: Connection, given: Given, ending: str) -> None:
    if ending == "expired":
        execution_id = await given.submitted(deadline=timedelta(minutes=1))
        await given.time_passes(minutes=1)
        await executions.expire_executions(conn)
    else:
        execution_id = await getattr(given, ending)()

    await executions.replay(conn, execution_id, by="ops")

    [claim] = await given.claim()
    assert (claim.execution_id, claim.attempt.type) == (execution_id, "replay")
    assert await given.event("execution_replayed") == {
        "previous_outcome": "success" if ending == "completed" else ending,
        "replays": 1,
    }
    [row] = await given.rows("select by from flowfabric.events where kind = 'execution_replayed'")
    assert row["by"] == "ops"


async def test_a_replay_of_an_execution_that_never_started_has_attempt_1(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled()
    await executions.replay(conn, execution_id, by="ops")
    [claim] = await given.claim()

    assert (claim.attempt.number, claim.fence.epoch) == (1, 1)
    assert (await executions.describe(conn, execution_id)).started_at == claim.attempt.started_at


async def test_a_replay_replaces_the_result(conn: Connection, given: Given) -> None:
    execution_id = await given.completed(b"first")
    await executions.replay(conn, execution_id, by="ops")

    assert (await executions.get_result(conn, execution_id)).outcome is None
    assert (await executions.get_result(conn, execution_id)).result is None
    [claim] = await given.claim()
    await attempts.complete(conn, claim.fence, b"second", encoding="raw")
    kept = await executions.get_result(conn, execution_id)
    assert (kept.result, kept.encoding) == (b"second", "raw")
    assert len((await attempts.list_attempts(conn, execution_id)).items) == 2


async def test_reclaims_start_at_zero_again(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy={"max_reclaim_count": 1})
    for _ in range(2):
        await given.time_passes(minutes=1)
        await claims.expire_leases(conn)
        await given.claim()
    await executions.replay(conn, claim.execution_id, by="ops")
    await given.claim()
    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)

    [again] = await given.claim()
    assert (again.attempt.number, again.attempt.type, again.fence.epoch) == (4, "reclaim", 4)


async def test_the_old_deadline_is_dropped_and_a_new_one_can_be_given(conn: Connection, given: Given) -> None:
    execution_id = await given.completed(deadline=timedelta(hours=1))
    await executions.replay(conn, execution_id, by="ops")
    assert (await given.ticket(execution_id))["deadline_at"] is None
    await executions.cancel(conn, execution_id, by="ops")

    moment = await testing.now(conn) + timedelta(minutes=5)
    await executions.replay(conn, execution_id, by="ops", deadline=moment)
    assert (await given.ticket(execution_id))["deadline_at"] == moment
    await executions.cancel(conn, execution_id, by="ops")

    await executions.replay(conn, execution_id, by="ops", deadline=timedelta(minutes=5))
    await given.time_passes(minutes=5)
    assert (await executions.expire_executions(conn)).ended == [execution_id]


async def test_an_execution_can_be_replayed_as_often_as_its_policy_allows(conn: Connection, given: Given) -> None:
    execution_id = await given.failed(policy={"max_replay_count": 2})
    for _ in range(2):
        await executions.replay(conn, execution_id, by="ops")
        await executions.cancel(conn, execution_id, by="ops")

    async with given.nothing_changes():
        with pytest.raises(MaxReplaysExhausted):
            await executions.replay(conn, execution_id, by="ops")


async def test_an_unfinished_execution_cannot_be_replayed(conn: Connection, given: Given) -> None:
    ids = [
        (await given.claimed()).execution_id,
        await given.submitted(),
        await given.submitted(delay=timedelta(hours=1)),
        await given.held(),
    ]

    async with given.nothing_changes():
        for execution_id in ids:
            with pytest.raises(ExecutionNotTerminal):
                await executions.replay(conn, execution_id, by="ops")
        with pytest.raises(ExecutionNotFound):
            await executions.replay(conn, mint_execution_id(), by="ops")


async def test_a_repeated_replay_is_refused(conn: Connection, given: Given) -> None:
    execution_id = await given.completed()
    await executions.replay(conn, execution_id, by="ops")

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotTerminal):
            await executions.replay(conn, execution_id, by="ops")


async def test_a_draining_lane_refuses_a_replay_and_a_paused_one_accepts_it(conn: Connection, given: Given) -> None:
    execution_id = await given.completed()
    await lanes.drain_lane(conn, "default", by="ops")

    async with given.nothing_changes():
        with pytest.raises(LaneDraining):
            await executions.replay(conn, execution_id, by="ops")
    await lanes.pause_lane(conn, "default", by="ops")
    await executions.replay(conn, execution_id, by="ops")
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "blocked_by_lane_state"


@pytest.mark.parametrize(
    "deadline",
    [timedelta(0), timedelta(days=3_651), datetime(2001, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC), "1h"],
)
async def test_an_invalid_deadline_is_refused(conn: Connection, given: Given, deadline: Any) -> None:
    execution_id = await given.completed()

    async with given.nothing_changes():
        with pytest.raises(InvalidTime):
            await executions.replay(conn, execution_id, by="ops", deadline=deadline)


async def test_a_name_too_long_is_refused(conn: Connection, given: Given) -> None:
    execution_id = await given.completed()

    async with given.nothing_changes():
        with pytest.raises(InvalidBody):
            await executions.replay(conn, execution_id, by="x" * 257)


async def test_a_replayed_execution_keeps_its_age(conn: Connection, given: Given) -> None:
    execution_id = await given.completed()
    younger = await given.submitted()
    await executions.replay(conn, execution_id, by="ops")

    assert [claim.execution_id for claim in await given.claim(take=2)] == [execution_id, younger]
