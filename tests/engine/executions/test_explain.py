"""Explain: one sentence that says what an execution waits for and what releases it."""

import re
from datetime import datetime, timedelta

import pytest

from flowfabric.engine import executions, holds, lanes
from flowfabric.ids import ExecutionId
from flowfabric.model import Explanation
from flowfabric.postgres.driver import Connection
from tests.engine.standins import claimed, ended, registered, stored
from tests.given import Given

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def shown(at: datetime | None) -> str:
    assert at is not None
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


async def explained(conn: Connection, execution_id: ExecutionId) -> Explanation:
    """Return the explanation, and check that describe and the list return the same one."""
    explanation = await executions.explain(conn, execution_id)
    [listed] = [e for e in (await executions.list_executions(conn)).items if e.execution_id == execution_id]
    assert (await executions.describe(conn, execution_id)).explanation == explanation == listed.explanation
    return explanation


async def test_a_claimable_execution_waits_for_a_worker(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="reports")

    found = await explained(conn, execution_id)
    assert found.sentence == "waits for a worker of lane reports; 0 ahead of it"
    assert (found.waits_for, found.released_by, found.releases_at) == ("worker", "claim", None)
    assert found.since == (await executions.describe(conn, execution_id)).created_at


async def test_older_and_more_urgent_executions_of_the_lane_are_ahead(conn: Connection, given: Given) -> None:
    first = await given.submitted(lane="a")
    await given.submitted(lane="a", namespace="team")
    await given.submitted(lane="b", priority=9)
    await given.submitted(lane="a", delay=timedelta(hours=1), priority=9)
    await given.held(lane="a", priority=9)
    last = await given.submitted(lane="a")
    await given.submitted(lane="a", priority=5)

    assert (await explained(conn, last)).sentence.endswith("; 3 ahead of it")
    assert (await explained(conn, first)).sentence.endswith("; 1 ahead of it")
    await executions.change_priority(conn, last, 6, by="ops")
    assert (await explained(conn, last)).sentence.endswith("; 0 ahead of it")


@pytest.mark.parametrize("routes", [1, 300])
async def test_no_more_than_a_thousand_are_counted(conn: Connection, given: Given, routes: int) -> None:
    last = await given.submitted(lane="a")
    await given.rows(
        """
        insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, eligibility, reason)
        select 0, gen_random_uuid(), i / 2 % $1, 'a', i % 2, timestamptz '2020-01-01' + i * interval '1 s',
               'eligible_now', 'waiting_for_worker'
        from generate_series(1, 3000) i
        """,
        routes,
    )

    assert (await executions.explain(conn, last)).sentence == "waits for a worker of lane a; 1,000 ahead of it"


async def test_a_paused_lane_is_explained_with_the_operator_and_the_reason(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="reports")
    await given.time_passes(hours=1)
    await lanes.pause_lane(conn, "reports", by="ada", reason="the printer burns")

    found = await explained(conn, execution_id)
    assert found.sentence == (
        f"lane reports has been paused since {shown(found.since)} by ada: the printer burns; resume_lane releases it"
    )
    assert (found.waits_for, found.released_by) == ("lane", "resume_lane")


async def test_a_missing_capability_is_explained_with_the_nearest_worker(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="reports", needs={"gpu", "llm", "tools"})
    sentence = (await explained(conn, execution_id)).sentence
    assert sentence == "no live worker of lane reports has {gpu, llm, tools}; start a worker that has them"

    await registered(given, "far", "gpu", lane="reports")
    await registered(given, "near", "gpu", "tools", lane="reports")
    await registered(given, "elsewhere", "gpu", "llm", "tools", lane="other")
    found = await explained(conn, execution_id)
    assert found.sentence == (
        "no live worker of lane reports has {gpu, llm, tools}; nearest worker near lacks {llm}; "
        "start a worker that has them"
    )
    assert (found.waits_for, found.released_by) == ("capable_worker", "register_worker")


async def test_a_delay_is_explained_by_its_end(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(hours=1))

    found = await explained(conn, execution_id)
    assert found.sentence == f"delayed until {shown(found.releases_at)}"
    assert (found.waits_for, found.released_by) == ("time", "time")
    assert found.releases_at == (await executions.describe(conn, execution_id)).due_at

    await given.time_passes(hours=1)
    assert (await explained(conn, execution_id)).sentence == "waits for a worker of lane default; 0 ahead of it"


async def test_a_retry_is_explained_by_the_last_failure(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(policy={"retry": {"max_retries": 5}})
    await claimed(given, execution_id)
    await given.rows(
        """
        insert into flowfabric.attempts (
            partition, execution, number, type, lifecycle, first_epoch, last_epoch, started_at, ended_at, failure)
        values ($1, $2, 1, 'initial', 'ended_failure', 1, 1, now(), now(), '{"reason": "no net"}')
        """,
        execution_id.partition,
        execution_id.uuid,
    )
    await stored(
        given,
        execution_id,
        "phase = 'runnable', eligibility = 'not_eligible_until_time', reason = 'waiting_for_retry_backoff', "
        "retries = 1, attempt_state = 'pending_retry_attempt', due_at = flowfabric.clock() + interval '1 min'",
    )

    found = await explained(conn, execution_id)
    assert found.sentence == f"retry 1 of 5 at {shown(found.releases_at)} after: no net"
    assert (found.waits_for, found.released_by) == ("time", "time")


async def test_a_resume_delay_is_explained_by_its_end(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(minutes=1))
    await stored(given, execution_id, "reason = 'waiting_for_resume_delay'")

    found = await explained(conn, execution_id)
    assert found.sentence == f"resumes at {shown(found.releases_at)}"


async def test_a_hold_is_explained_with_the_operator_and_the_reason(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await given.time_passes(minutes=5)
    await holds.hold(conn, execution_id, by="ada", reason="to look at it")

    found = await explained(conn, execution_id)
    assert found.sentence == f"held by ada since {shown(found.since)}: to look at it; unhold releases it"
    assert (found.waits_for, found.released_by) == ("operator", "unhold")


async def test_a_hold_without_a_reason_is_explained_without_one(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ada")

    assert re.fullmatch(
        f"held by ada since {MOMENT}; unhold releases it", (await explained(conn, execution_id)).sentence
    )


async def test_a_running_execution_is_explained_by_its_worker(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await claimed(given, execution_id, worker="pool", seconds=30)

    found = await explained(conn, execution_id)
    assert found.sentence == f"attempt 1 runs on pool (instance pool-1), lease until {shown(found.releases_at)}"
    assert (found.waits_for, found.released_by) == ("worker_outcome", "complete")

    await given.time_passes(seconds=30)
    late = await explained(conn, execution_id)
    assert late.sentence == (
        f"attempt 1 ran on pool (instance pool-1); its lease expired at {shown(found.releases_at)} "
        "and the next sweep reclaims it"
    )
    assert (late.waits_for, late.since, late.released_by) == ("expire_leases", found.releases_at, "expire_leases")


@pytest.mark.parametrize(
    ("outcome", "failure", "sentence"),
    [
        ("success", None, f"completed at {MOMENT}"),
        (
            "failed",
            '{"class": "permanent", "reason": "no such city"}',
            f"failed at {MOMENT} after 1 attempt: no such city",
        ),
        ("failed", '{"class": "permanent"}', f"failed at {MOMENT} after 1 attempt"),
        ("expired", '{"class": "timeout", "reason": "attempt_timeout"}', f"expired at {MOMENT}: attempt_timeout"),
        ("cancelled", '{"class": "cancelled", "reason": "too late"}', f"cancelled at {MOMENT}: too late"),
        ("skipped", '{"class": "cancelled", "reason": "upstream failed"}', f"skipped at {MOMENT}: upstream failed"),
    ],
)
async def test_an_end_is_explained_by_its_time_and_reason(
    conn: Connection, given: Given, outcome: str, failure: str | None, sentence: str
) -> None:
    execution_id = await given.submitted()
    await claimed(given, execution_id)
    await ended(given, execution_id, outcome, failure=failure)

    found = await explained(conn, execution_id)
    assert re.fullmatch(sentence, found.sentence)
    assert (found.waits_for, found.released_by) == ("nothing", None if outcome == "success" else "replay")
    assert shown(found.since) in found.sentence


async def test_several_attempts_are_counted(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await claimed(given, execution_id)
    await stored(given, execution_id, "attempt = 4")
    await ended(given, execution_id, "failed", failure='{"class": "transient", "reason": "no net"}')

    assert (await explained(conn, execution_id)).sentence.endswith(" after 4 attempts: no net")
