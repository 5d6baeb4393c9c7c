"""Sweeps and other ends without a report of a worker also settle the downstream members."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from flowfabric.engine import attempts, budgets, children, claims, executions, waits, workers
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildToSubmit, Suspension, UsageReport
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import Graph, graph
from tests.given import Given, submission

Ends = tuple[Graph, Sequence[ExecutionId]]
HOUR = timedelta(hours=1)
SPENT = {"max_reclaim_count": 0}
ANSWER = {"kind": "single", "waitpoint": "answer"}


async def behind(conn: Connection, **options: object) -> Graph:
    """A member a with these options, and b that waits for it."""
    flow = await graph(conn)
    await flow.add("a", **options)
    await flow.add("b")
    await flow.link("a", "b")
    return flow


async def deadline(given: Given) -> Ends:
    flow = await behind(given.conn, deadline=HOUR)
    await given.time_passes(hours=2)
    return flow, (await executions.expire_executions(given.conn)).ended


async def late_claim(given: Given) -> Ends:
    flow = await behind(given.conn, deadline=HOUR)
    await given.time_passes(hours=2)
    assert await claims.claim(given.conn, "pool", instance="pool-1", lanes=["a"]) == []
    assert await flow.state("a") == "waiting"  # the sweep ends it
    return flow, (await executions.expire_executions(given.conn)).ended


async def attempt_timeout(given: Given) -> Ends:
    flow = await behind(given.conn, policy={"attempt_timeout_ms": 1_000})
    await flow.claim("a")
    await given.time_passes(seconds=2)
    return flow, (await attempts.time_out_attempts(given.conn)).ended


async def lease_expiry(given: Given) -> Ends:
    flow = await behind(given.conn, policy=SPENT)
    await flow.claim("a")
    await given.time_passes(hours=1)
    return flow, (await claims.expire_leases(given.conn)).ended


async def lost_worker(given: Given) -> Ends:
    flow = await behind(given.conn, policy=SPENT)
    await workers.register_worker(given.conn, "pool", instance="pool-1", lanes=["a"])
    await flow.claim("a")
    await given.rows("update flowfabric.workers set lock_key = 1, lock_missing_since = '-infinity'")
    await workers.return_orphans(given.conn)
    await given.time_passes(hours=1)
    return flow, (await claims.expire_leases(given.conn)).ended


async def wait_timeout(given: Given) -> Ends:
    flow = await behind(given.conn)
    wish = Suspension(condition=ANSWER, waitpoints=["answer"], timeout=HOUR)
    await waits.suspend(given.conn, (await flow.claim("a")).fence, wish)
    await given.time_passes(hours=2)
    return flow, (await waits.time_out_waits(given.conn)).ended


async def breach(given: Given) -> Ends:
    flow = await behind(given.conn)
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="fail")
    report = UsageReport(budget="team", amounts={"tokens": 2}, fence=(await flow.claim("a")).fence)
    return flow, (await budgets.report_usage(given.conn, report)).ended


async def reservation(given: Given) -> Ends:
    flow = await behind(given.conn)
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="cancel")
    return flow, (await budgets.reserve(given.conn, "team", {"tokens": 2}, fence=(await flow.claim("a")).fence)).ended


async def settlement(given: Given) -> Ends:
    flow = await behind(given.conn)
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="fail")
    fence = (await flow.claim("a")).fence
    made = await budgets.reserve(given.conn, "team", {"tokens": 1}, fence=fence)
    assert made.reservation_id is not None
    settled = await budgets.settle(given.conn, made.reservation_id, {"tokens": 2}, fence=fence)
    return flow, settled.ended


async def orphan(given: Given) -> Ends:
    parent = await given.claimed(lane="parent")
    flow = await graph(given.conn, "b")
    child = mint_execution_id(beside=flow.flow_id)
    place = ChildToSubmit(
        fence=parent.fence,
        name="child",
        occurrence=1,
        execution_id=child,
        submission=submission(flow=flow.flow_id),
        on_parent_end="cancel",
    )
    await children.submit_children(given.conn, [place])
    flow.members["a"] = child
    await flow.link("a", "b")
    await executions.cancel(given.conn, parent.execution_id)
    return flow, (await children.deliver_child_ends(given.conn)).ended


WAYS: dict[str, Callable[[Given], Awaitable[Ends]]] = {
    way.__name__: way
    for way in (
        deadline,
        late_claim,
        attempt_timeout,
        lease_expiry,
        lost_worker,
        wait_timeout,
        breach,
        reservation,
        settlement,
        orphan,
    )
}

REPORTS = ("breach", "reservation", "settlement")
"""They are about one execution, so what they return are the others that ended."""


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_ends_a_member_skips_those_behind_it(given: Given, way: str) -> None:
    """Edges settle in the transaction of the end, so that a crash cannot lose the cascade."""
    flow, ended = await WAYS[way](given)

    assert await flow.state("a") in ("expired", "failed", "cancelled")
    assert await flow.state("b") == "skipped"
    assert await given.count("tickets") == 0
    assert set(ended) - {flow["a"]} == {flow["b"]}
    assert way in REPORTS or flow["a"] in ended


async def test_a_blocked_member_past_its_deadline_expires(given: Given, conn: Connection) -> None:
    flow = await graph(conn, "a")
    await flow.add("b", deadline=HOUR)
    await flow.link("a", "b")
    await given.time_passes(hours=2)
    await executions.expire_executions(conn)

    assert await flow.states() == {"a": "waiting", "b": "expired"}
    await flow.complete("a")
    assert await flow.state("b") == "expired"
