"""No merged call and no sweep waits for a user's transaction: not for a key, a lane, a budget, a quota or a ticket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric import App
from flowfabric.engine import attempts, budgets, children, claims, executions, lanes, quotas, schedules, waits, workers
from flowfabric.errors import RowLocked
from flowfabric.model import Claim, Completion, Suspension
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.sweeps import Sweep, run_once
from flowfabric.sweeps.registry import Pass
from tests.conftest import Connect
from tests.engine.budgets.scene import TEAM, figures, make, report_of
from tests.engine.schedules.scene import create
from tests.engine.test_children import asked, born
from tests.engine.waits.scene import waiting
from tests.given import Given, submission

HOUR = timedelta(hours=1)
ANSWER = Suspension(
    condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"], timeout=timedelta(minutes=5)
)

Act = Callable[[Connection], Awaitable[Any]]


@asynccontextmanager
async def open_transaction(connect: Connect, act: Act) -> AsyncIterator[asyncpg.Connection]:
    """A user's transaction that has done something and stays open for the length of the block; rolled back then."""
    conn = await connect()
    transaction = conn.transaction()
    await transaction.start()
    await act(conn)
    yield conn
    await transaction.rollback()


async def change_budget(conn: Connection) -> None:
    await budgets.change_budget(conn, TEAM, soft_limits={"tokens": 90}, by="ops")


async def running(given: Given, *, budget: str | None = TEAM, **options: Any) -> Claim:
    """A claimed execution, with an open reservation of that budget."""
    claim = await given.claimed(**options)
    if budget is not None:
        await budgets.reserve(given.conn, budget, {"tokens": 1}, fence=claim.fence, ttl=timedelta(days=1))
    return claim


async def keyed(given: Given) -> tuple[Act, Act]:
    async def submit(conn: Connection, **options: Any) -> Any:
        return await executions.submit_many(conn, [submission(key="order-17"), submission()], **options)

    return submit, lambda conn: submit(conn, wait=False)


async def new_lane(given: Given) -> tuple[Act, Act]:
    async def submit(conn: Connection, **options: Any) -> Any:
        return await executions.submit_many(conn, [submission(lane="new"), submission()], **options)

    return submit, lambda conn: submit(conn, wait=False)


async def usage(given: Given) -> tuple[Act, Act]:
    await make(given.conn)
    await make(given.conn, "other")
    reports = [report_of(1), report_of(1, "other")]
    return change_budget, lambda conn: budgets.report_usage_many(conn, reports, wait=False)


async def reservation(given: Given) -> tuple[Act, Act]:
    await make(given.conn)
    ends = [Completion(fence=(await running(given, budget=budget)).fence) for budget in (TEAM, None)]
    return change_budget, lambda conn: attempts.complete_many(conn, ends, wait=False)


async def signal(given: Given) -> tuple[Act, Act]:
    one, two = await waiting(given), await waiting(given)
    return (
        lambda conn: executions.set_tag(conn, one.execution_id, "colour", "red"),
        lambda conn: waits.deliver_signals(conn, [one.signal(), two.signal()], wait=False),
    )


async def child(given: Given) -> tuple[Act, Act]:
    parents = [await given.claimed() for _ in range(2)]
    return (
        lambda conn: executions.set_tag(conn, parents[0].execution_id, "colour", "red"),
        lambda conn: children.submit_children(conn, [asked(parent) for parent in parents], wait=False),
    )


@pytest.mark.parametrize("scene", [keyed, new_lane, usage, reservation, signal, child])
async def test_a_merged_call_fails_as_a_whole_instead_of_waiting_for_long(
    given: Given, connect: Connect, scene: Callable[[Given], Awaitable[tuple[Act, Act]]]
) -> None:
    """The caller then sends its items alone."""
    hold, merged = await scene(given)

    async with open_transaction(connect, hold), given.nothing_changes():
        with pytest.raises(RowLocked):
            async with asyncio.timeout(10):
                await merged(given.conn)
    assert len(await merged(given.conn)) == 2


async def lease(given: Given, running: list[Claim]) -> Pass:
    await given.time_passes(minutes=1)
    return claims.expire_leases


async def attempt_timeout(given: Given, running: list[Claim]) -> Pass:
    await given.time_passes(seconds=20)
    return attempts.time_out_attempts


async def deadline(given: Given, running: list[Claim]) -> Pass:
    await given.time_passes(hours=2)
    return executions.expire_executions


async def wait_timeout(given: Given, running: list[Claim]) -> Pass:
    for claim in running:
        await waits.suspend(given.conn, claim.fence, ANSWER)
    await given.time_passes(minutes=10)
    return waits.time_out_waits


@pytest.mark.parametrize("ending", [lease, attempt_timeout, deadline, wait_timeout])
async def test_a_sweep_gets_past_executions_whose_budget_a_user_has_locked(
    database: Database, given: Given, connect: Connect, ending: Callable[[Given, list[Claim]], Awaitable[Pass]]
) -> None:
    await make(given.conn)
    options: dict[str, Any] = {
        "policy": {"attempt_timeout_ms": 10_000, "max_reclaim_count": 0},
        "deadline": HOUR,
    }
    stuck = [await running(given, **options) for _ in range(3)]
    free = await running(given, budget=None, **options)
    sweep = Sweep("ends", HOUR, await ending(given, [*stuck, free]), limit=2)

    async with open_transaction(connect, change_budget):
        assert await run_once(database, sweep) == 1
        assert {await given.state(claim.execution_id) for claim in stuck} <= {"active", "suspended"}
        assert await given.state(free.execution_id) not in ("active", "suspended")
    assert await run_once(database, sweep) == 3
    assert await figures(given.conn) == (0, 0, 0)


async def test_orphaned_leases_come_back_although_a_user_has_locked_the_budget_of_one(
    given: Given, connect: Connect
) -> None:
    await make(given.conn)
    stuck, free = await running(given), await running(given, budget=None)
    await workers.register_worker(given.conn, "pool", instance=given.instance, lanes=["default"])
    remove = "select * from flowfabric._remove_orphans(array[$1])"

    async with open_transaction(connect, change_budget):
        await given.conn.execute("set lock_timeout = '100ms'")
        assert [row["moved"] for row in await given.rows(remove, given.instance)] == [0]
        assert (await given.state(stuck.execution_id), await given.state(free.execution_id)) == ("active", "waiting")
    assert [row["moved"] for row in await given.rows(remove, given.instance)] == [1]
    assert await given.state(stuck.execution_id) == "waiting"


async def test_orphaned_children_are_cancelled_although_a_user_has_locked_the_budget_of_one(
    given: Given, connect: Connect
) -> None:
    await make(given.conn)
    parent = await given.claimed()
    await born(given, parent, 2)
    first, second = await given.claim(lanes=["nursery"], take=2)
    await budgets.reserve(given.conn, TEAM, {"tokens": 1}, fence=first.fence)
    await executions.cancel(given.conn, parent.execution_id)

    async with open_transaction(connect, change_budget):
        await children.deliver_child_ends(given.conn)
        assert (await given.state(first.execution_id), await given.state(second.execution_id)) == (
            "active",
            "cancelled",
        )
    await given.time_passes(seconds=2)
    await children.deliver_child_ends(given.conn)
    assert await given.state(first.execution_id) == "cancelled"


async def test_schedules_fire_although_a_user_has_locked_the_budget_of_an_execution_that_one_replaces(
    given: Given, connect: Connect
) -> None:
    await make(given.conn)
    for name in ("replacing", "other"):
        await create(given.conn, name, overlap="replace", lane=name)
    await given.time_passes(hours=1)
    assert (await schedules.fire_schedules(given.conn)).moved == 2
    [claim] = await given.claim(lanes=["replacing"])
    await budgets.reserve(given.conn, TEAM, {"tokens": 1}, fence=claim.fence, ttl=timedelta(days=1))
    await given.time_passes(hours=1)

    async with open_transaction(connect, change_budget):
        assert (await schedules.fire_schedules(given.conn)).moved == 1
    await given.time_passes(seconds=2)
    assert (await schedules.fire_schedules(given.conn)).moved == 1
    assert await given.state(claim.execution_id) == "cancelled"


async def test_a_schedule_whose_new_lane_is_locked_does_not_keep_the_others_from_firing(
    database: Database, given: Given, connect: Connect
) -> None:
    for name in ("first", "second", "third"):
        await create(given.conn, name, lane=name)
    await given.time_passes(hours=1)

    async with open_transaction(connect, lambda conn: lanes.configure_lane(conn, "second")):
        sweep = Sweep("fire_schedules", HOUR, schedules.fire_schedules)
        assert await run_once(database, sweep) == 2
    assert await run_once(database, sweep) == 1


async def test_a_claim_that_does_not_wait_leaves_out_the_routes_of_a_locked_quota(
    given: Given, connect: Connect
) -> None:
    await quotas.create_quota(given.conn, "gpu", max_concurrent=5)
    limited = await given.submitted(quotas=["gpu"])
    free = await given.submitted()

    async with open_transaction(connect, lambda conn: quotas.change_quota(conn, "gpu", max_concurrent=6, by="ops")):
        assert [claim.execution_id for claim in await given.claim(take=2, wait=False)] == [free]
    assert [claim.execution_id for claim in await given.claim(take=2, wait=False)] == [limited]


async def test_a_heartbeat_does_not_wait_for_a_user_who_has_locked_the_entry_of_an_instance(
    given: Given, connect: Connect
) -> None:
    for instance in ("one", "two"):
        await workers.register_worker(given.conn, "w", instance=instance, lanes=["default"])

    async with open_transaction(connect, lambda conn: workers.mark_dead(conn, "one", by="ops")):
        beats = await workers.beat(given.conn, ["one", "two", "three"])
    assert [beat.outcome for beat in beats] == ["locked", "refreshed", "not_registered"]


async def test_an_app_opens_while_a_user_has_locked_a_budget_or_a_quota_that_it_declares(
    given: Given, connect: Connect, database_url: str
) -> None:
    declared = App(url=database_url, budgets={TEAM: {"tokens": 100}}, quotas={"gpu": {"max_concurrent": 5}})
    async with declared:
        pass

    async def change_both(conn: Connection) -> None:
        await change_budget(conn)
        await quotas.change_quota(conn, "gpu", max_concurrent=6, by="ops")

    async with open_transaction(connect, change_both), asyncio.timeout(8), declared:
        pass
