"""Lease history: every lease that was acquired, and how it ended."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from flowfabric.engine import attempts, budgets, claims, events, executions, flows, waits, workers
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, EdgePolicy, Event, FailureClass, Member, Suspension, UsageReport
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

MINUTE = timedelta(minutes=1)
RETRY = {"retry": {"max_retries": 1}}
WAIT = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])

End = Callable[[Given, Claim], Awaitable[object]]


async def history(conn: Connection, execution_id: ExecutionId | None = None) -> list[Event]:
    view = msgspec.structs.replace(events.lease_history(), execution_id=execution_id)
    return list((await events.read_events(conn, events.OLDEST, view)).events)


async def fail(given: Given, claim: Claim) -> None:
    await attempts.fail(given.conn, claim.fence, "it broke", class_=FailureClass.PERMANENT)


async def pass_deadline(given: Given, claim: Claim) -> None:
    await given.time_passes(minutes=2)
    await claims.renew(given.conn, claim.fence)
    await executions.expire_executions(given.conn)


async def time_out(given: Given, claim: Claim) -> None:
    await given.time_passes(minutes=2)
    await attempts.time_out_attempts(given.conn)


async def expire(given: Given, claim: Claim) -> None:
    await given.time_passes(hours=1)
    await claims.expire_leases(given.conn)


async def breach(given: Given, claim: Claim) -> None:
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="suspend")
    await budgets.report_usage(given.conn, UsageReport(budget="team", amounts={"tokens": 2}, fence=claim.fence))


async def breach_and_cancel(given: Given, claim: Claim) -> None:
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="cancel")
    await budgets.report_usage(given.conn, UsageReport(budget="team", amounts={"tokens": 2}, fence=claim.fence))


async def mark_dead(given: Given, claim: Claim) -> None:
    await workers.register_worker(given.conn, given.worker, instance=given.instance, lanes=["default"])
    await workers.mark_dead(given.conn, given.instance, by="ops")


ENDS: Mapping[str, tuple[dict[str, Any], End, str]] = {
    "complete": ({}, lambda given, claim: attempts.complete(given.conn, claim.fence), "execution_completed"),
    "fail": ({}, fail, "execution_failed"),
    "retry": ({"policy": RETRY}, lambda given, claim: attempts.fail(given.conn, claim.fence, "no"), "attempt_failed"),
    "delay": ({}, lambda given, claim: attempts.delay(given.conn, claim.fence, MINUTE), "execution_delayed"),
    "suspend": ({}, lambda given, claim: waits.suspend(given.conn, claim.fence, WAIT), "execution_suspended"),
    "cancel": ({}, lambda given, claim: executions.cancel(given.conn, claim.execution_id), "execution_cancelled"),
    "deadline": ({"deadline": MINUTE}, pass_deadline, "execution_expired"),
    "timeout": ({"policy": {"attempt_timeout_ms": 60_000}}, time_out, "execution_failed"),
    "timeout with a retry": ({"policy": {"attempt_timeout_ms": 60_000, **RETRY}}, time_out, "attempt_failed"),
    "budget suspends": ({}, breach, "execution_suspended"),
    "budget cancels": ({}, breach_and_cancel, "execution_cancelled"),
    "expire": ({}, expire, "lease_expired"),
    "last reclaim": ({"policy": {"max_reclaim_count": 0}}, expire, "lease_expired"),
    "revoke": ({}, lambda given, claim: claims.revoke(given.conn, claim.execution_id, by="ops"), "lease_revoked"),
    "mark dead": ({}, mark_dead, "lease_revoked"),
}


@pytest.mark.parametrize("way", ENDS)
async def test_every_lease_shows_how_it_ended(given: Given, way: str) -> None:
    options, end, kind = ENDS[way]
    claim = await given.claimed(**options, lease=timedelta(minutes=10))
    await end(given, claim)

    acquired, ended = await history(given.conn)
    assert (acquired.kind, ended.kind) == ("lease_acquired", kind)
    assert acquired.detail["epoch"] == ended.detail["epoch"] == claim.fence.epoch
    assert ended.execution_id == claim.execution_id


@pytest.mark.parametrize("way", ["cancel", "deadline", "timeout", "budget cancels", "fail", "revoke", "expire"])
async def test_the_end_of_a_lease_that_was_taken_away_names_its_holder(given: Given, way: str) -> None:
    options, end, kind = ENDS[way]
    claim = await given.claimed(**options, lease=timedelta(minutes=10))
    await end(given, claim)

    ended = (await history(given.conn))[-1]
    named = (ended.kind, ended.detail["lease_id"], ended.detail["worker"], ended.detail["instance"])
    assert named == (kind, str(claim.fence.lease_id), given.worker, given.instance)


async def test_an_execution_with_waits_shows_its_lease_too(given: Given) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(given.conn, claim.fence, "answer")
    await executions.cancel(given.conn, claim.execution_id)

    ended = (await history(given.conn))[-1]
    assert (ended.kind, ended.detail["lease_id"]) == ("execution_cancelled", str(claim.fence.lease_id))


async def test_ends_of_executions_that_nobody_leased_are_not_in_it(given: Given) -> None:
    await given.cancelled()
    claim = await given.claimed(deadline=timedelta(hours=1))
    await waits.suspend(given.conn, claim.fence, WAIT)
    await given.time_passes(hours=2)
    await executions.expire_executions(given.conn)

    assert [event.kind for event in await history(given.conn)] == ["lease_acquired", "execution_suspended"]


async def test_a_cancelled_flow_shows_which_leases_it_ended(given: Given) -> None:
    members = [Member(name=name, submission=submission()) for name in ("running", "waiting")]
    flow = await flows.submit_flow(given.conn, "pair", members)
    [claim] = await given.claim()
    await flows.cancel_flow(given.conn, flow.flow_id, by="ops")

    acquired, ended = await history(given.conn)
    assert (ended.kind, ended.by) == ("execution_cancelled", "ops")
    assert acquired.execution_id == ended.execution_id == claim.execution_id


async def test_a_sibling_that_is_no_longer_needed_shows_how_its_lease_ended(given: Given) -> None:
    flow_id = (await flows.create_flow(given.conn, "race")).flow_id
    one, two, after = [await given.submitted(flow=flow_id) for _ in range(3)]
    await flows.set_edge_group(given.conn, flow_id, after, EdgePolicy(kind="any_of"))
    for upstream in (one, two):
        await flows.add_edge(given.conn, flow_id, upstream, after)
    first, second = await given.claim(take=2)
    await attempts.complete(given.conn, first.fence)

    ended = (await history(given.conn, second.execution_id))[-1]
    assert (ended.kind, ended.detail["lease_id"]) == ("execution_cancelled", str(second.fence.lease_id))
