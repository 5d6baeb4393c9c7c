"""When an end affects several members of a flow, the budgets of all of them are locked together, in key order."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, budgets, children, claims, executions, flows, waits
from flowfabric.model import Claim, EdgePolicy, Suspension
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.budgets.scene import TEAM, figures, make, spend
from tests.engine.executions.stored import blocked
from tests.engine.flows.scene import graph
from tests.given import Given
from tests.sql.test_budget_races import Race, crossing, in_key_order

SOON, LATER = timedelta(minutes=30), timedelta(hours=1)
Prepare = Callable[[Given, Claim], Awaitable[Any]]
Sweep = Callable[[Connection], Awaitable[Any]]
Spend = Callable[[Connection, str, Claim], Awaitable[Any]]


async def nothing(given: Given, claim: Claim) -> None:
    await given.time_passes(minutes=40)


async def wait(given: Given, claim: Claim) -> None:
    wish = Suspension(condition={"kind": "operator_only"}, waitpoints=[], timeout=SOON)
    await waits.suspend(given.conn, claim.fence, wish)
    await given.time_passes(minutes=40)


async def orphan(given: Given, claim: Claim) -> None:
    parent = await given.claimed(lane="parents")
    await given.conn.execute(
        "update flowfabric.executions set parent_partition = $1, parent = $2, on_parent_end = 'cancel' where id = $3",
        parent.execution_id.partition,
        parent.execution_id.uuid,
        claim.execution_id.uuid,
    )
    await given.conn.execute(
        "update flowfabric.executions set has_children = true where id = $1", parent.execution_id.uuid
    )
    await executions.cancel(given.conn, parent.execution_id)


SWEEPS: dict[str, tuple[dict[str, Any], Prepare, Sweep]] = {
    "deadline": ({"deadline": SOON}, nothing, executions.expire_executions),
    "attempt": ({"policy": {"attempt_timeout_ms": 1_000}}, nothing, attempts.time_out_attempts),
    "lease": ({"policy": {"max_reclaim_count": 0}}, nothing, claims.expire_leases),
    "wait": ({}, wait, waits.time_out_waits),
    "orphan": ({}, orphan, children.deliver_child_ends),
}


@pytest.mark.parametrize("name", SWEEPS)
async def test_a_sweep_that_ends_a_member_locks_the_budgets_of_all_affected_members_in_key_order(
    given: Given, connect: Connect, name: str
) -> None:
    options, prepare, sweep = SWEEPS[name]
    flow = await graph(given.conn, "b", "c")
    await flow.add("a", **options)
    await flows.set_edge_group(given.conn, flow.flow_id, flow["b"], EdgePolicy("quorum", 2))
    await flow.link("a", "b")
    await flow.link("c", "b")
    first, last = await in_key_order(given.conn, 2)
    sibling, claim = await flow.claim("c", lease=LATER), await flow.claim("a")
    for fence, budget in ((sibling.fence, first), (claim.fence, last)):
        await budgets.reserve(given.conn, budget, {"tokens": 5}, fence=fence, ttl=LATER)
    await prepare(given, claim)

    await crossing(Race(given, await connect(), await connect()), first, last, sweep)
    assert await flow.state("c") == "cancelled"
    assert await flow.state("b") == "skipped"
    assert [await figures(given.conn, budget) for budget in (first, last)] == [(1, 0, 0)] * 2


SPENDING: dict[str, Spend] = {
    "report": lambda conn, budget, claim: spend(conn, 1, budget, fence=claim.fence),
    "reserve": lambda conn, budget, claim: budgets.reserve(conn, budget, {"tokens": 1}, fence=claim.fence),
}


@pytest.mark.parametrize("name", SPENDING)
async def test_spending_of_a_member_locks_the_budgets_of_its_siblings_together_with_the_named_one(
    given: Given, connect: Connect, name: str
) -> None:
    flow = await graph(given.conn, "a", "b", "c")
    await flows.set_edge_group(given.conn, flow.flow_id, flow["b"], EdgePolicy("quorum", 2))
    await flow.link("a", "b")
    await flow.link("c", "b")
    first, last = await in_key_order(given.conn, 2, on_hard_limit="fail")
    sibling, claim = await flow.claim("c", lease=LATER), await flow.claim("a", lease=LATER)
    await budgets.reserve(given.conn, last, {"tokens": 5}, fence=sibling.fence, ttl=LATER)

    done = await crossing(
        Race(given, await connect(), await connect()), first, last, lambda conn: SPENDING[name](conn, first, claim)
    )

    assert done.outcome in ("ok", "reserved")


async def test_an_end_holds_no_budget_while_it_waits_for_a_downstream_member(given: Given, connect: Connect) -> None:
    """Tickets before budgets: a report with an old fence may have locked that member, and wait for the budget."""
    await make(given.conn)
    flow = await graph(given.conn, b="a")
    claim = await flow.claim("a")
    await budgets.reserve(given.conn, TEAM, {"tokens": 1}, fence=claim.fence)
    one, two = await connect(), await connect()
    async with one.transaction():
        await executions.change_priority(one, flow["b"], 5, by="ops")
        ending = asyncio.ensure_future(attempts.complete(two, claim.fence))
        await blocked(given, two, ending)
        await one.execute("set local lock_timeout = '100ms'")
        await budgets.reserve(one, TEAM, {"tokens": 1})
    await ending

    assert await flow.state("b") == "waiting"
