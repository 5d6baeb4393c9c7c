"""Describing an execution: its state is computed when it is read."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from flowfabric import testing
from flowfabric.engine import attempts, executions, holds, lanes
from flowfabric.errors import ExecutionNotFound
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Counts, Options, Outcome, PublicState, Result, State, Submission
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.standins import claimed, ended, registered, stored
from tests.given import Given

WAITING = State(
    lifecycle_phase="runnable",
    ownership_state="unowned",
    eligibility_state="eligible_now",
    blocking_reason="waiting_for_worker",
    terminal_outcome="none",
    attempt_state="pending_first_attempt",
    public_state=PublicState.WAITING,
)


async def state_of(conn: Connection, execution_id: ExecutionId) -> State:
    return (await executions.describe(conn, execution_id)).state


def vector(state: State, *names: str) -> list[str]:
    return [getattr(state, name) for name in names]


async def test_a_description_returns_the_options_of_the_submission(conn: Connection, given: Given) -> None:
    policy = {"max_reclaim_count": 3}
    options = Options(
        task="report",
        namespace="team",
        lane="reports",
        needs={"llm", "gpu"},
        policy=policy,
        encoding="text",
        creator="me",
    )
    deadline = timedelta(hours=2)
    asked = Submission(options=options, payload=b"tides", priority=7, tags={"a.b": "c"}, deadline=deadline)
    execution_id = (await executions.submit(conn, asked)).execution_id
    await registered(given, "pool", "gpu", "llm", lane="reports")

    found = await executions.describe(conn, execution_id, payload=True)

    assert (found.execution_id, found.task, found.namespace, found.lane) == (
        execution_id,
        "report",
        "team",
        "reports",
    )
    assert (found.needs, found.budgets, found.quotas) == (["gpu", "llm"], [], [])
    assert (found.creator, found.priority, found.policy, found.tags) == ("me", 7, policy, {"a.b": "c"})
    assert (found.payload, found.encoding, found.result, found.result_encoding) == (b"tides", "text", None, "json")
    assert (found.state, found.counts) == (WAITING, Counts())
    assert found.deadline_at is not None
    assert abs(found.deadline_at - found.created_at - deadline) < timedelta(seconds=1)
    assert [
        found.flow_id,
        found.attempt,
        found.lease,
        found.started_at,
        found.due_at,
        found.ended_at,
        found.failure,
    ] == [None] * 7


async def test_payload_and_result_are_returned_only_if_requested(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(payload=b"\0in")
    await ended(given, execution_id, "success", result=b"\0out")

    async def shown(*, payload: bool, result: bool) -> tuple[bytes | None, bytes | None]:
        found = await executions.describe(conn, execution_id, payload=payload, result=result)
        return found.payload, found.result

    assert await shown(payload=False, result=False) == (None, None)
    assert await shown(payload=True, result=False) == (b"\0in", None)
    assert await shown(payload=False, result=True) == (None, b"\0out")


async def test_tags_are_sorted_by_their_key(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"zz.a": "1", "a.longer": "2", "b.b": "3", "a.b_c": "4"})

    assert [*(await executions.describe(conn, execution_id)).tags] == ["a.b_c", "a.longer", "b.b", "zz.a"]


async def test_a_due_execution_is_waiting_before_any_sweep(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(hours=1))

    found = await executions.describe(conn, execution_id)
    assert vector(found.state, "public_state", "eligibility_state", "blocking_reason") == [
        "delayed",
        "not_eligible_until_time",
        "waiting_for_delay",
    ]
    assert found.due_at is not None
    assert abs(found.due_at - found.created_at - timedelta(hours=1)) < timedelta(seconds=1)

    await given.time_passes(hours=1)
    assert await state_of(conn, execution_id) == WAITING


async def test_a_held_execution_waits_for_an_operator(conn: Connection, given: Given) -> None:
    state = await state_of(conn, await given.held())

    assert vector(state, "public_state", "eligibility_state", "blocking_reason", "lifecycle_phase") == [
        "waiting",
        "blocked_by_operator",
        "paused_by_operator",
        "runnable",
    ]


async def test_an_active_execution_shows_its_worker_and_lease(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    fence = await claimed(given, execution_id)

    found = await executions.describe(conn, execution_id)
    assert found.state == State(
        lifecycle_phase="active",
        ownership_state="leased",
        eligibility_state="not_applicable",
        blocking_reason="none",
        terminal_outcome="none",
        attempt_state="running_attempt",
        public_state=PublicState.ACTIVE,
    )
    assert found.attempt is not None
    assert (found.attempt.number, found.attempt.type, found.attempt.started_at) == (1, "initial", found.started_at)
    assert found.lease is not None
    assert (found.lease.lease_id, found.lease.epoch) == (fence.lease_id, 1)
    assert (found.lease.worker, found.lease.instance) == ("pool", "pool-1")
    assert found.counts == Counts(attempts=1)


async def test_an_execution_with_an_expired_lease_is_active_and_reclaimable(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await claimed(given, execution_id, seconds=30)

    await given.time_passes(seconds=30)
    state = await state_of(conn, execution_id)

    assert vector(state, "public_state", "ownership_state") == ["active", "lease_expired_reclaimable"]


@pytest.mark.parametrize(
    ("lease_end", "shown"), [("expired", "lease_expired_reclaimable"), ("revoked", "lease_revoked")]
)
async def test_a_reclaimed_execution_shows_how_its_lease_ended(
    conn: Connection, given: Given, lease_end: str, shown: str
) -> None:
    execution_id = await given.submitted()
    await claimed(given, execution_id)
    await stored(
        given,
        execution_id,
        "phase = 'runnable', reason = 'waiting_for_worker', attempt_state = 'pending_reclaim_attempt', "
        f"lease_end = '{lease_end}'",
    )

    found = await executions.describe(conn, execution_id)
    assert vector(found.state, "public_state", "ownership_state", "attempt_state") == [
        "waiting",
        shown,
        "pending_reclaim_attempt",
    ]
    assert (found.lease, found.attempt) == (None, None)


@pytest.mark.parametrize(
    ("outcome", "public_state"),
    [(outcome, "completed" if outcome == "success" else str(outcome)) for outcome in Outcome],
)
async def test_an_ended_execution_shows_how_it_ended(
    conn: Connection, given: Given, outcome: Outcome, public_state: str
) -> None:
    execution_id = await given.submitted(priority=3)
    await claimed(given, execution_id)
    await ended(given, execution_id, outcome)

    found = await executions.describe(conn, execution_id)
    assert found.state == State(
        lifecycle_phase="terminal",
        ownership_state="unowned",
        eligibility_state="not_applicable",
        blocking_reason="none",
        terminal_outcome=outcome,
        attempt_state="attempt_terminal",
        public_state=PublicState(public_state),
    )
    assert (found.lease, found.attempt, found.counts.attempts, found.priority) == (None, None, 1, 3)
    assert found.ended_at is not None


async def test_an_execution_that_never_started_has_no_attempt(conn: Connection, given: Given) -> None:
    found = await executions.describe(conn, await given.cancelled())

    assert vector(found.state, "attempt_state", "terminal_outcome") == ["none", "cancelled"]
    assert found.failure is not None
    assert (found.failure.class_, found.failure.reason, found.started_at) == ("cancelled", "not wanted", None)


async def test_results_are_read_many_at_once_and_a_missing_one_harms_no_other(conn: Connection, given: Given) -> None:
    done, waiting, missing = await given.completed(), await given.submitted(), mint_execution_id()

    ended, unfinished, refusal, again = await executions.get_result_many(conn, [done, waiting, missing, done])

    assert isinstance(ended, Result)
    assert (ended.outcome, unfinished, again) == (Outcome.SUCCESS, Result(outcome=None), ended)
    assert isinstance(refusal, ExecutionNotFound)
    assert await executions.get_result_many(conn, []) == []


async def test_results_that_do_not_fit_into_one_answer_are_read_in_several(conn: Connection, given: Given) -> None:
    ids = []
    for number in range(20):
        claim = await given.claimed()
        await attempts.complete(conn, claim.fence, bytes([number]) * 1_048_576, encoding="raw")
        ids.append(claim.execution_id)

    results = await executions.get_result_many(conn, ids)

    assert [isinstance(each, Result) and (each.result or b"")[:1] for each in results] == [
        bytes([n]) for n in range(20)
    ]


@pytest.mark.parametrize("read", [executions.describe, executions.explain, executions.get_result])
async def test_reading_an_execution_that_does_not_exist_is_refused(
    conn: Connection, given: Given, read: object
) -> None:
    there = await given.submitted()
    assert callable(read)

    for missing in [mint_execution_id(), ExecutionId(255 - there.partition, there.uuid)]:
        with pytest.raises(ExecutionNotFound) as refused:
            await read(conn, missing)
        assert str(missing) in refused.value.message


async def test_a_result_has_no_outcome_until_the_end(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    assert await executions.get_result(conn, execution_id) == Result(outcome=None)

    await ended(given, execution_id, "success", result=b"\0\xff")
    assert await executions.get_result(conn, execution_id) == Result(outcome=Outcome.SUCCESS, result=b"\0\xff")


async def test_the_result_of_an_unsuccessful_execution_is_its_failure(conn: Connection, given: Given) -> None:
    found = await executions.get_result(conn, await given.cancelled())

    assert (found.outcome, found.result) == (Outcome.CANCELLED, None)
    assert found.failure is not None
    assert found.failure.reason == "not wanted"


async def test_a_description_reads_one_snapshot(conn: Connection, given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    execution_id = await given.submitted(tags={"a.b": "old"})

    async with one.transaction():
        await one.execute("lock table flowfabric.routes in access exclusive mode")
        reading = asyncio.create_task(executions.describe(other, execution_id))
        await blocked(given, other, reading)  # it has read the ticket and not yet the tags
        await executions.set_tag(one, execution_id, "a.b", "new")
        await executions.cancel(one, execution_id)
    found = await reading

    assert (found.state, found.tags, found.ended_at, found.failure) == (WAITING, {"a.b": "old"}, None, None)
    after = await executions.describe(conn, execution_id)
    assert (after.state.public_state, after.tags) == ("cancelled", {"a.b": "new"})


async def test_no_column_stores_a_public_state_or_an_unknown_word(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    columns = await given.rows(
        "select table_name, column_name, data_type from information_schema.columns where table_schema = 'flowfabric'"
    )
    kinds = {(c["table_name"], c["column_name"]): c["data_type"] for c in columns}

    assert [place for place in kinds if "public_state" in place] == []
    for column in ("phase", "eligibility", "reason", "attempt_state"):
        assert kinds["tickets", column] == "USER-DEFINED"
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await stored(given, execution_id, f"{column} = 'blocked_by_budget'")
    assert await state_of(conn, execution_id) == WAITING


async def test_a_paused_lane_blocks_only_its_waiting_executions(conn: Connection, given: Given) -> None:
    waits, held = await given.submitted(lane="a"), await given.held(lane="a")
    delayed, runs = await given.submitted(lane="a", delay=timedelta(hours=1)), await given.submitted(lane="a")
    elsewhere = await given.submitted(lane="b")
    await claimed(given, runs)
    await lanes.pause_lane(conn, "a", by="ops")

    state = await state_of(conn, waits)
    assert vector(state, "public_state", "eligibility_state", "blocking_reason") == [
        "waiting",
        "blocked_by_lane_state",
        "paused_by_policy",
    ]
    assert [(await state_of(conn, e)).eligibility_state for e in (held, delayed, runs, elsewhere)] == [
        "blocked_by_operator",
        "not_eligible_until_time",
        "not_applicable",
        "eligible_now",
    ]

    await given.time_passes(hours=1)
    assert (await state_of(conn, delayed)).eligibility_state == "blocked_by_lane_state"
    await lanes.resume_lane(conn, "a", by="ops")
    assert await state_of(conn, waits) == await state_of(conn, delayed) == WAITING


async def test_a_draining_lane_does_not_block_its_executions(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="a")
    await lanes.drain_lane(conn, "a", by="ops")

    assert await state_of(conn, execution_id) == WAITING


async def test_an_execution_is_blocked_until_one_worker_has_all_its_needs(conn: Connection, given: Given) -> None:
    """The union of all workers' capabilities does not count: one worker needs them all."""
    execution_id = await given.submitted(needs={"gpu", "llm"})
    blocked = ["waiting", "blocked_by_route", "waiting_for_capable_worker"]

    async def shown() -> list[str]:
        return vector(await state_of(conn, execution_id), "public_state", "eligibility_state", "blocking_reason")

    assert await shown() == blocked
    await registered(given, "half", "gpu")
    await registered(given, "other half", "llm")
    assert await shown() == blocked

    await registered(given, "whole", "gpu", "llm", "more", seconds=60)
    assert await state_of(conn, execution_id) == WAITING
    await given.time_passes(seconds=60)
    assert await shown() == blocked


async def test_only_workers_of_its_lane_and_namespace_unblock_an_execution(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(needs={"gpu"}, lane="a", namespace="team")
    await registered(given, "elsewhere", "gpu", lane="b")
    await registered(given, "for others", "gpu", lane="a", namespace="other")
    assert (await state_of(conn, execution_id)).eligibility_state == "blocked_by_route"

    await registered(given, "for all", "gpu", lane="a")
    assert (await state_of(conn, execution_id)).eligibility_state == "eligible_now"


async def test_an_execution_without_needs_waits_for_any_worker_even_if_there_is_none(
    conn: Connection, given: Given
) -> None:
    assert await state_of(conn, await given.submitted()) == WAITING


async def test_a_paused_lane_takes_precedence_over_a_missing_worker(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(needs={"gpu"}, lane="a")
    await lanes.pause_lane(conn, "a", by="ops")

    assert (await state_of(conn, execution_id)).eligibility_state == "blocked_by_lane_state"


async def test_reading_changes_nothing(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(seconds=1))
    await given.time_passes(seconds=1)
    before = await given.rows("select * from flowfabric.tickets"), await given.events()

    await executions.describe(conn, execution_id)
    await executions.explain(conn, execution_id)
    await executions.get_result(conn, execution_id)
    await executions.list_executions(conn)

    assert (await given.rows("select * from flowfabric.tickets"), await given.events()) == before


async def test_times_come_from_the_database_clock(conn: Connection, given: Given) -> None:
    await given.time_passes(days=400)
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ops")

    found = await executions.describe(conn, execution_id)
    assert abs(found.created_at - await testing.now(conn)) < timedelta(minutes=1)
    assert found.explanation.since is not None
    assert abs(found.explanation.since - await testing.now(conn)) < timedelta(minutes=1)
