"""Reading executions that a quota blocks: describe, explain and list."""

from datetime import timedelta
from typing import Any, Literal

import pytest

from flowfabric import calls
from flowfabric.engine import attempts, budgets, claims, executions, holds, lanes, quotas, waits
from flowfabric.ids import ExecutionId, parse_execution_id
from flowfabric.model import Explanation, PublicState, UsageReport
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

LIMITED = [PublicState.RATE_LIMITED]
HOUR = timedelta(hours=1)
ORDERS: list[Literal["newest", "id"]] = ["newest", "id"]


async def explained(conn: Connection, execution_id: ExecutionId) -> Explanation:
    shown = await executions.describe(conn, execution_id)
    assert shown.explanation == await executions.explain(conn, execution_id)
    return shown.explanation


async def listed(conn: Connection, *states: PublicState, **filters: str) -> set[ExecutionId]:
    page = await executions.list_executions(conn, states=list(states), **filters)  # type: ignore[arg-type]
    assert all(shown.state.public_state in states for shown in page.items)
    return {parse_execution_id(str(shown.execution_id)) for shown in page.items}


async def test_explain_says_when_a_full_window_has_room(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=1, window_seconds=60)
    claim = await given.claimed(quotas=["model"])
    execution_id = await given.submitted(quotas=["model"])

    state = (await executions.describe(conn, execution_id)).state
    told = await explained(conn, execution_id)

    assert (state.eligibility_state, state.blocking_reason) == ("blocked_by_quota", "waiting_for_quota")
    assert state.public_state == PublicState.RATE_LIMITED
    opens_at = claim.attempt.started_at + timedelta(seconds=60)
    assert told.sentence == f"quota model admits 1 per 60 s; it has room again at {opens_at:%Y-%m-%d %H:%M:%S} UTC"
    assert (told.waits_for, told.released_by, told.releases_at) == ("quota", "time", opens_at)
    await given.time_passes(seconds=60)
    assert (await executions.describe(conn, execution_id)).state.public_state == PublicState.WAITING


async def test_explain_says_how_many_executions_hold_the_slots(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=1, max_requests_per_window=1)
    claim = await given.claimed(quotas=["model"])
    execution_id = await given.submitted(quotas=["model"])

    told = await explained(conn, execution_id)
    assert told.sentence == "quota model has 1 of 1 running; it has room again when one of them ends"
    assert (told.waits_for, told.released_by, told.releases_at) == ("quota", "complete", None)
    await attempts.complete(conn, claim.fence)
    assert (await explained(conn, execution_id)).sentence.startswith("quota model admits 1 per 60 s")


async def test_after_a_lowered_limit_room_is_when_enough_entries_have_left_the_window(
    conn: Connection, given: Given
) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=5, window_seconds=60)
    for _ in range(3):
        last = await given.claimed(quotas=["model"])
        await given.time_passes(seconds=10)
    await quotas.change_quota(conn, "model", by="ops", max_requests_per_window=1)

    opens_at = (await quotas.describe_quota(conn, "model")).next_room_at

    assert opens_at == last.attempt.started_at + timedelta(seconds=60)


async def test_a_state_filter_lists_exactly_the_executions_in_that_state(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "full", max_concurrent=1)
    await quotas.create_quota(conn, "open", max_concurrent=9)
    running = (await given.claimed(quotas=["full"])).execution_id
    limited = {await given.submitted(quotas=["full"]), await given.submitted(quotas=["open", "full"])}
    due = await given.submitted(quotas=["full"], delay=timedelta(seconds=1))
    later = await given.submitted(quotas=["full"], delay=timedelta(hours=1))
    held = await given.submitted(quotas=["full"])
    await holds.hold(conn, held, by="ops")
    plain = {await given.submitted(), await given.submitted(quotas=["open"]), held}
    await given.time_passes(seconds=2)

    assert await listed(conn, PublicState.RATE_LIMITED) == {*limited, due}
    assert await listed(conn, PublicState.WAITING) == plain
    assert await listed(conn, PublicState.DELAYED) == {later}
    assert await listed(conn, PublicState.RATE_LIMITED, PublicState.WAITING) == {*limited, due, *plain}
    assert await listed(conn, PublicState.RATE_LIMITED, namespace="other") == set()
    assert await listed(conn, PublicState.RATE_LIMITED, PublicState.ACTIVE, lane="default") == {*limited, due, running}
    assert await listed(conn, PublicState.RATE_LIMITED, PublicState.COMPLETED) == {*limited, due}


async def test_a_paused_lane_is_reported_before_a_full_quota(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "full", max_concurrent=1)
    await given.claimed(quotas=["full"])
    execution_id = await given.submitted(quotas=["full"])
    needy = await given.submitted(quotas=["full"], needs=["gpu"])

    assert await listed(conn, PublicState.RATE_LIMITED) == {execution_id}
    assert await listed(conn, PublicState.WAITING) == {needy}
    await lanes.pause_lane(conn, "default", by="ops")
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "blocked_by_lane_state"
    assert await listed(conn, PublicState.RATE_LIMITED) == set()
    assert await listed(conn, PublicState.WAITING) == {execution_id, needy}


async def test_a_granted_execution_is_waiting_until_the_grant_expires(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=1)
    execution_id = await given.submitted(quotas=["model"])
    other = await given.submitted(quotas=["model"])
    [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"])
    assert grant.execution_id == execution_id

    assert await listed(conn, PublicState.WAITING) == {execution_id}
    assert await listed(conn, PublicState.RATE_LIMITED) == {other}
    await given.time_passes(seconds=11)
    assert await listed(conn, PublicState.WAITING) == {execution_id, other}


async def test_explain_says_what_opens_an_exhausted_budget(conn: Connection, given: Given) -> None:
    made = await given.rows("select flowfabric.clock() as at")
    for name, interval in (("monthly", timedelta(days=30)), ("once", None)):
        await budgets.create_budget(conn, name, hard_limits={"tokens": 10}, reset_interval=interval)
        await budgets.report_usage(conn, UsageReport(budget=name, amounts={"tokens": 8}))
        await budgets.reserve(conn, name, {"tokens": 2})
    monthly, once = [await given.submitted(budgets=[name]) for name in ("monthly", "once")]

    told = await explained(conn, monthly)
    assert told.sentence.startswith("budget monthly has used 8 of 10 tokens and reserved 2; it resets at ")
    assert (told.waits_for, told.released_by) == ("budget", "time")
    assert told.releases_at is not None
    assert told.releases_at - made[0]["at"] == pytest.approx(timedelta(days=30), abs=timedelta(minutes=1))
    told = await explained(conn, once)
    assert told.sentence == "budget once has used 8 of 10 tokens and reserved 2; raise or reset it"
    assert (told.waits_for, told.released_by, told.releases_at) == ("budget", "change_budget", None)
    assert (await executions.describe(conn, once)).state.blocking_reason == "waiting_for_budget"
    assert await listed(conn, PublicState.RATE_LIMITED) == {monthly, once}


async def test_rate_limited_executions_are_listed_page_by_page(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "full", max_concurrent=1)
    await given.claimed(quotas=["full"])
    limited = {str(await given.submitted(quotas=["full"], tags={"a.b": "c"})) for _ in range(5)}

    for order in ORDERS:
        first = await executions.list_executions(conn, states=LIMITED, tag=("a.b", "c"), order=order, limit=3)
        rest = await executions.list_executions(
            conn, states=LIMITED, tag=("a.b", "c"), order=order, limit=3, cursor=first.next_cursor
        )
        assert (len(first.items), len(rest.items), rest.next_cursor) == (3, 2, None)
        assert {str(shown.execution_id) for shown in [*first.items, *rest.items]} == limited


async def test_submit_replay_and_resume_report_rate_limited_for_a_closed_route(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "full", max_concurrent=1)
    await budgets.create_budget(conn, "spent", hard_limits={"tokens": 1}, on_hard_limit="suspend")
    ended = await given.completed(quotas=["full"])
    claim = await given.claimed(quotas=["full"], budgets=["spent"])
    options: list[dict[str, Any]] = [
        {"quotas": ["full"]},
        {"budgets": ["spent"]},
        {},
        {"quotas": ["full"], "delay": HOUR},
    ]
    options += [{"quotas": ["full"], "lane": "paused"}]
    await given.submitted(lane="paused")
    await lanes.pause_lane(conn, "paused", by="ops")

    async def states() -> list[PublicState]:
        answers = [
            calls.only([each]) for each in await executions.submit_many(conn, [submission(**t) for t in options])
        ]
        shown = [(await executions.describe(conn, each.execution_id)).state.public_state for each in answers]
        assert shown == [each.public_state for each in answers]
        return shown

    limited, waiting, delayed = PublicState.RATE_LIMITED, PublicState.WAITING, PublicState.DELAYED
    assert await states() == [limited, waiting, waiting, delayed, waiting]
    assert (await executions.replay(conn, ended, by="ops")).public_state == limited
    await budgets.report_usage(conn, UsageReport(budget="spent", amounts={"tokens": 1}))
    await budgets.report_usage(conn, UsageReport(budget="spent", amounts={"tokens": 1}, fence=claim.fence))
    assert await states() == [waiting, limited, waiting, delayed, waiting]
    assert (await waits.resume(conn, claim.execution_id, by="ops")).public_state == limited
