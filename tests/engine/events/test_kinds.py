"""Every kind of event, provoked once: it names its subject, whichever function wrote it."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
    attempts,
    budgets,
    claims,
    events,
    executions,
    flows,
    holds,
    lanes,
    quotas,
    schedules,
    signing_keys,
    waits,
    workers,
)
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Claim, EdgePolicy, EventFilter, EventKind, Suspension, Timing, UsageReport
from flowfabric.postgres.driver import Connection
from tests import sources
from tests.given import Given, submission

HOUR = timedelta(hours=1)
TAGS = {"billing.customer": "acme"}
OPTIONS: dict[str, Any] = {"namespace": "acme", "lane": "reports", "tags": TAGS}
ANSWER = {"kind": "single", "waitpoint": "answer"}

Provoke = Callable[[Given], Awaitable[object]]


async def claimed(given: Given, **options: Any) -> Claim:
    return await given.claimed(**OPTIONS, **options)


async def suspended(given: Given, **options: object) -> ExecutionId:
    claim = await claimed(given)
    wish = Suspension(condition=ANSWER, waitpoints=["answer"], **options)  # type: ignore[arg-type]
    await waits.suspend(given.conn, claim.fence, wish)
    return claim.execution_id


async def expire(given: Given) -> None:
    await given.submitted(**OPTIONS, deadline=HOUR)
    await given.time_passes(hours=2)
    await executions.expire_executions(given.conn)


async def delay(given: Given) -> None:
    await attempts.delay(given.conn, (await claimed(given)).fence, HOUR)


async def override(given: Given) -> None:
    await executions.override(given.conn, await given.submitted(**OPTIONS), "failed", reason="withdrawn", by="ops")


async def replay(given: Given) -> None:
    await executions.replay(given.conn, await given.cancelled(**OPTIONS), by="ops")


async def unhold(given: Given) -> None:
    await holds.unhold(given.conn, await given.held(**OPTIONS), by="ops")


async def change_priority(given: Given) -> None:
    await executions.change_priority(given.conn, await given.submitted(**OPTIONS), 7, by="ops")


async def set_tag(given: Given) -> None:
    await executions.set_tag(given.conn, await given.submitted(**OPTIONS), "billing.plan", "gold", by="ops")


async def renew(given: Given) -> None:
    await lanes.configure_lane(given.conn, "reports", keep_renewals=True)
    await claims.renew(given.conn, (await claimed(given)).fence)


async def expire_lease(given: Given) -> None:
    await claimed(given)
    await given.time_passes(hours=1)
    await claims.expire_leases(given.conn)


async def revoke(given: Given) -> None:
    await claims.revoke(given.conn, (await claimed(given)).execution_id, by="ops")


async def fail(given: Given) -> None:
    claim = await claimed(given, policy={"retry": {"max_retries": 1}})
    await attempts.fail(given.conn, claim.fence, "it broke")


async def grant(given: Given) -> None:
    await given.submitted(**OPTIONS)
    await claims.issue_grant(given.conn, "pool", instance="pool-1", lanes=["reports"])


async def expire_grant(given: Given) -> None:
    await grant(given)
    await given.time_passes(hours=1)
    await claims.expire_grants(given.conn)


async def resume(given: Given) -> None:
    await waits.resume(given.conn, await suspended(given), by="ops")


async def escalate(given: Given) -> None:
    await suspended(given, timeout=HOUR, timeout_behavior="escalate")
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)


async def create_waitpoint(given: Given) -> None:
    await waits.create_waitpoint(given.conn, (await claimed(given)).fence, "answer")


async def approve(given: Given) -> None:
    await waits.deliver_approval(given.conn, await suspended(given), "answer", "approve", by="ops")


async def drain(given: Given) -> None:
    await lanes.configure_lane(given.conn, "reports")
    await lanes.drain_lane(given.conn, "reports", by="ops")


async def pause(given: Given) -> None:
    await lanes.configure_lane(given.conn, "reports")
    await lanes.pause_lane(given.conn, "reports", by="ops")


async def reopen(given: Given) -> None:
    await pause(given)
    await lanes.resume_lane(given.conn, "reports", by="ops")


async def register(given: Given) -> None:
    await workers.register_worker(given.conn, "pool", instance="reports", lanes=["default"])


async def mark_dead(given: Given) -> None:
    await register(given)
    await workers.mark_dead(given.conn, "reports", by="ops")


async def expire_worker(given: Given) -> None:
    await register(given)
    await given.time_passes(hours=1)
    await workers.expire_workers(given.conn)


async def seed(given: Given) -> None:
    await given.conn.execute("delete from flowfabric.keys")
    await signing_keys.seed_key(given.conn, "reports", "ab" * 32)


async def rotate(given: Given) -> None:
    await signing_keys.rotate_key(given.conn, "reports", "ab" * 32, by="ops")


async def schedule(given: Given, **options: Any) -> None:
    timing = Timing(every=HOUR)
    await schedules.create_schedule(given.conn, "reports", submission(**options), timing, by="ops")


async def change_schedule(given: Given) -> None:
    await schedule(given)
    await schedules.change_schedule(given.conn, "reports", timing=Timing(every=2 * HOUR), by="ops")


async def pause_schedule(given: Given) -> None:
    await schedule(given)
    await schedules.pause_schedule(given.conn, "reports", by="ops")


async def resume_schedule(given: Given) -> None:
    await pause_schedule(given)
    await schedules.resume_schedule(given.conn, "reports", by="ops")


async def delete_schedule(given: Given) -> None:
    await schedule(given)
    await schedules.delete_schedule(given.conn, "reports", by="ops")


async def fire_schedule(given: Given) -> None:
    await schedule(given)
    await schedules.fire_schedule(given.conn, "reports", by="ops")


async def miss_tick(given: Given) -> None:
    timing = Timing(every=HOUR, catch_up="none")
    await schedules.create_schedule(given.conn, "reports", submission(), timing)
    await given.time_passes(hours=1, minutes=30)
    await schedules.fire_schedules(given.conn)


async def refuse_tick(given: Given) -> None:
    await schedule(given, lane="reports")
    await drain(given)
    await given.time_passes(hours=1)
    await schedules.fire_schedules(given.conn)


async def quota(given: Given) -> None:
    await quotas.create_quota(given.conn, "reports", max_concurrent=1, by="ops")


async def change_quota(given: Given) -> None:
    await quota(given)
    await quotas.change_quota(given.conn, "reports", max_concurrent=2, by="ops")


async def budget(given: Given, **options: Any) -> None:
    limits = {"hard_limits": {"tokens": 10}, "soft_limits": {"tokens": 5}}
    await budgets.create_budget(given.conn, "reports", **{**limits, **options}, by="ops")


async def change_budget(given: Given) -> None:
    await budget(given)
    await budgets.change_budget(given.conn, "reports", mode="observe", by="ops")


async def reset_budget(given: Given) -> None:
    await budget(given)
    await budgets.reset_budget(given.conn, "reports", by="ops")


async def spend(given: Given, tokens: int, claim: Claim | None = None) -> None:
    await budget(given)
    report = UsageReport(budget="reports", amounts={"tokens": tokens}, fence=claim.fence if claim else None)
    await budgets.report_usage(given.conn, report)


async def release_usage(given: Given) -> None:
    claim = await claimed(given)
    await spend(given, 1, claim)
    await budgets.release_usage(given.conn, "reports", claim.execution_id, by="ops")


async def reserve(given: Given) -> UUID:
    await budget(given)
    reserved = await budgets.reserve(given.conn, "reports", {"tokens": 1})
    assert reserved.reservation_id is not None
    return reserved.reservation_id


async def settle(given: Given) -> None:
    await budgets.settle(given.conn, await reserve(given), {"tokens": 1})


async def release(given: Given) -> None:
    await budgets.release(given.conn, await reserve(given))


async def expire_reservation(given: Given) -> None:
    await reserve(given)
    await given.time_passes(hours=2)
    await budgets.expire_reservations(given.conn)


async def member(given: Given, flow_id: FlowId) -> ExecutionId:
    return await given.submitted(**OPTIONS, flow=flow_id)


async def edge(given: Given, flow_id: FlowId) -> ExecutionId:
    upstream, downstream = await member(given, flow_id), await member(given, flow_id)
    await flows.add_edge(given.conn, flow_id, upstream, downstream)
    return downstream


async def group(given: Given, flow_id: FlowId) -> ExecutionId:
    alone = await member(given, flow_id)
    await flows.set_edge_group(given.conn, flow_id, alone, EdgePolicy(kind="any_of"))
    return alone


async def satisfy(given: Given, flow_id: FlowId) -> ExecutionId:
    downstream = await edge(given, flow_id)
    [claim] = await given.claim(lanes=["reports"])
    await attempts.complete(given.conn, claim.fence)
    return downstream


async def skip(given: Given, flow_id: FlowId) -> ExecutionId:
    downstream = await edge(given, flow_id)
    [claim] = await given.claim(lanes=["reports"])
    await executions.cancel(given.conn, claim.execution_id, by="ops")
    return downstream


async def cancel_flow(given: Given, flow_id: FlowId) -> None:
    await flows.cancel_flow(given.conn, flow_id, by="ops")


async def nothing(given: Given, flow_id: FlowId) -> None:
    """Do nothing: the flow itself is enough."""


ABOUT_A_MEMBER: Mapping[str, Callable[[Given, FlowId], Awaitable[ExecutionId]]] = {
    "flow_member_added": member,
    "edge_added": edge,
    "edge_group_set": group,
    "edge_group_satisfied": satisfy,
    "edge_group_impossible": skip,
    "execution_skipped": skip,
}
ABOUT_A_FLOW: Mapping[str, Callable[[Given, FlowId], Awaitable[None]]] = {
    "flow_created": nothing,
    "flow_cancelled": cancel_flow,
}
ABOUT_AN_EXECUTION: Mapping[str, Provoke] = {
    "execution_submitted": lambda given: given.submitted(**OPTIONS),
    "execution_completed": lambda given: given.completed(**OPTIONS),
    "execution_failed": lambda given: given.failed(**OPTIONS),
    "execution_cancelled": lambda given: given.cancelled(**OPTIONS),
    "execution_expired": expire,
    "execution_delayed": delay,
    "execution_overridden": override,
    "execution_replayed": replay,
    "execution_held": lambda given: given.held(**OPTIONS),
    "execution_unheld": unhold,
    "priority_changed": change_priority,
    "tag_set": set_tag,
    "lease_acquired": claimed,
    "lease_renewed": renew,
    "lease_expired": expire_lease,
    "lease_revoked": revoke,
    "attempt_failed": fail,
    "grant_issued": grant,
    "grant_expired": expire_grant,
    "execution_suspended": suspended,
    "execution_resumed": resume,
    "suspension_escalated": escalate,
    "waitpoint_created": create_waitpoint,
    "waitpoint_closed": resume,
    "signal_delivered": approve,
}
# Lane, worker, key or schedule: each is called "reports" here.
ABOUT_SOMETHING_ELSE: Mapping[str, Provoke] = {
    "lane_registered": lambda given: lanes.configure_lane(given.conn, "reports"),
    "lane_paused": pause,
    "lane_drain_started": drain,
    "lane_resumed": reopen,
    "worker_registered": register,
    "worker_marked_dead": mark_dead,
    "worker_expired": expire_worker,
    "key_seeded": seed,
    "key_rotated": rotate,
    "quota_created": quota,
    "quota_changed": change_quota,
    "budget_created": budget,
    "budget_changed": change_budget,
    "budget_reset": reset_budget,
    "budget_soft_breached": lambda given: spend(given, 6),
    "budget_hard_breached": lambda given: spend(given, 11),
    "usage_released": release_usage,
    "reservation_made": reserve,
    "reservation_settled": settle,
    "reservation_released": release,
    "reservation_expired": expire_reservation,
    "schedule_created": schedule,
    "schedule_changed": change_schedule,
    "schedule_paused": pause_schedule,
    "schedule_resumed": resume_schedule,
    "schedule_deleted": delete_schedule,
    "schedule_fired": fire_schedule,
    "schedule_skipped": miss_tick,
    "schedule_refused": refuse_tick,
}
RETIRED: set[str] = set()  # no function writes these any more; an old log may still contain them
ENDS = {"completed": "success", "failed": "failed", "cancelled": "cancelled", "expired": "expired"}


def test_every_kind_that_a_function_names_is_in_these_tables() -> None:
    emitted = set().union(*(function.says("emits") for function in sources.sql_functions()))

    about_flows = ABOUT_A_MEMBER.keys() | ABOUT_A_FLOW.keys()
    assert emitted == ABOUT_AN_EXECUTION.keys() | ABOUT_SOMETHING_ELSE.keys() | about_flows


def test_every_kind_that_a_function_names_can_be_filtered_by() -> None:
    emitted = set().union(*(function.says("emits") for function in sources.sql_functions()))

    assert emitted <= set(EventKind)
    assert set(EventKind) - emitted == RETIRED


@pytest.mark.parametrize("kind", ABOUT_A_MEMBER)
async def test_an_event_about_a_flow_member_has_the_fields_of_an_execution_event(
    conn: Connection, given: Given, kind: str
) -> None:
    flow_id = (await flows.create_flow(conn, "reports")).flow_id
    execution_id = await ABOUT_A_MEMBER[kind](given, flow_id)

    event = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind]))).events[-1]
    assert (event.execution_id, event.flow_id) == (execution_id, flow_id)
    assert (event.namespace, event.lane, event.tags) == ("acme", "reports", TAGS)


@pytest.mark.parametrize("kind", ABOUT_A_FLOW)
async def test_an_event_about_a_flow_names_it_and_has_its_tags(conn: Connection, given: Given, kind: str) -> None:
    flow_id = (await flows.create_flow(conn, "reports", tags=TAGS)).flow_id
    await ABOUT_A_FLOW[kind](given, flow_id)

    [event] = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind], flow_id=flow_id))).events
    assert (event.flow_id, event.subject, event.execution_id, event.tags) == (flow_id, "reports", None, TAGS)
    assert event.by == ("ops" if kind == "flow_cancelled" else None)


@pytest.mark.parametrize("kind", ABOUT_AN_EXECUTION)
async def test_an_event_about_an_execution_has_its_namespace_lane_and_tags(
    conn: Connection, given: Given, kind: str
) -> None:
    await ABOUT_AN_EXECUTION[kind](given)
    [row] = await given.rows("select partition, id from flowfabric.executions")

    [event] = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind]))).events
    assert event.execution_id == ExecutionId(row["partition"], row["id"])
    assert (event.namespace, event.lane, event.subject) == ("acme", "reports", None)
    assert event.tags.items() >= TAGS.items()
    narrow = EventFilter(
        kinds=[kind], namespace="acme", lane="reports", tag=("billing.customer", "acme"), partitions=[row["partition"]]
    )
    assert (await events.read_events(conn, events.OLDEST, narrow)).events == [event]


@pytest.mark.parametrize("kind", sorted(ABOUT_AN_EXECUTION.keys() - {"execution_submitted"}))
async def test_an_event_about_a_member_of_a_flow_names_the_flow(conn: Connection, given: Given, kind: str) -> None:
    flow = uuid4()
    await conn.execute(f"alter table flowfabric.executions alter flow set default '{flow}'")
    await ABOUT_AN_EXECUTION[kind](given)

    [event] = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind]))).events
    assert event.flow_id is not None
    assert event.flow_id.uuid == flow
    assert (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind], flow_id=event.flow_id))).events


@pytest.mark.parametrize("kind", ABOUT_SOMETHING_ELSE)
async def test_an_event_about_another_subject_names_it(conn: Connection, given: Given, kind: str) -> None:
    await ABOUT_SOMETHING_ELSE[kind](given)

    [event] = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind]))).events
    assert (event.subject, event.execution_id, event.tags) == ("reports", None, {})
    assert event.namespace == (None if kind.startswith(("lane_", "worker_", "key_")) else "default")
    assert event.lane == ("reports" if kind.startswith("lane_") else None)


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_event_has_outcome_attempt_and_epoch(conn: Connection, given: Given, end: str) -> None:
    await ABOUT_AN_EXECUTION[f"execution_{end}"](given)

    [event] = (await events.read_events(conn, events.OLDEST, events.completions())).events
    assert event.kind == f"execution_{end}"
    assert event.detail["outcome"] == ENDS[end]
    assert (event.detail["attempt"], event.detail["epoch"]) == ((1, 1) if end in ("completed", "failed") else (0, 0))


@pytest.mark.parametrize(
    "kind",
    [
        "execution_cancelled",
        "execution_overridden",
        "execution_replayed",
        "execution_held",
        "execution_unheld",
        "priority_changed",
        "tag_set",
        "lease_revoked",
        "lane_paused",
        "lane_drain_started",
        "lane_resumed",
        "worker_marked_dead",
        "quota_changed",
        "key_rotated",
        "budget_created",
        "budget_changed",
        "budget_reset",
        "usage_released",
        "schedule_created",
        "schedule_changed",
        "schedule_paused",
        "schedule_resumed",
        "schedule_deleted",
        "schedule_fired",
    ],
)
async def test_an_act_of_an_operator_names_the_operator(conn: Connection, given: Given, kind: str) -> None:
    await {**ABOUT_AN_EXECUTION, **ABOUT_SOMETHING_ELSE}[kind](given)

    [event] = (await events.read_events(conn, events.OLDEST, EventFilter(kinds=[kind], acts=True))).events
    assert event.by == "ops"
