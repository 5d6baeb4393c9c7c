"""Every sweep makes progress past rows that other transactions have locked, and handles those later."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.engine import budgets, claims, executions, quotas, waits, workers
from flowfabric.engine.executions import submit_many
from flowfabric.postgres.database import Database
from flowfabric.sweeps import Sweep, run_once, sweeps
from tests.conftest import SOAK, Connect
from tests.engine.budgets.scene import make, spend
from tests.engine.flows.scene import Graph, graph
from tests.engine.schedules.scene import create
from tests.engine.streams.scene import appended
from tests.engine.test_children import born
from tests.engine.test_orphans import is_gone, start
from tests.engine.waits.scene import waiting
from tests.given import Given, submission

MANY = 200 if SOAK else 30
SEEDS = range(20 if SOAK else 1)
LIMIT = 7  # rows in one pass, so that a run has many passes
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# The rows that a transaction of a user can lock by calling operations; of an unfinished execution that is the ticket.
ROWS = {
    "tickets": "true",
    "executions": "outcome is not null",
    "flows": "true",
    "budgets": "true",
    "quota_stripes": "true",
    "schedules": "true",
    "workers": "true",
    "idempotency_keys": "true",
}
# What one locked row can keep back: an orphan counts as a child that was looked at, as the end of its family, and as an
# end of its own; with a flow, its three members wait, and its own removal.
COUNTED = {"deliver_child_ends": 3, "expire_executions": 3, "remove_ended": 4}
# They have no rows: they create and drop tables, and keys are locked as a whole.
WITHOUT_ROWS = {"extend_events", "trim_events", "retire_signing_keys"}


async def in_flows(given: Given, **options: Any) -> list[Graph]:
    """Flows in which b waits for a or c, and the first to complete cancels the other."""
    made = [await graph(given.conn) for _ in range(MANY // 6)]
    for flow in made:
        for name in "abc":
            await flow.add(name, **options)
        await flow.group("b", kind="any_of", on_satisfied="cancel_remaining")
        await flow.link("a", "b")
        await flow.link("c", "b")
    return made


async def promote_due(given: Given, connect: Connect) -> None:
    await submit_many(given.conn, [submission(delay=HOUR)] * MANY)
    await given.time_passes(hours=2)


async def expire_leases(given: Given, connect: Connect) -> None:
    """Half of them end, because they have been reclaimed as often as they may."""
    spent = submission(policy={"max_reclaim_count": 0})
    await submit_many(given.conn, [submission(), spent] * (MANY // 2))
    await given.claim(take=MANY)
    for flow in await in_flows(given, policy={"max_reclaim_count": 0}):
        await flow.claim("a")
    await given.time_passes(hours=2)


async def return_orphans(given: Given, connect: Connect) -> None:
    for number in range(min(MANY, 60)):  # each process has one connection; two thirds of them live on
        await start(conn := await connect(), f"w-{number}")
        await given.submitted()
        await given.claim(worker="w", instance=f"w-{number}")
        if number % 3 == 0:
            await is_gone(conn, given)
    for _ in range(8):
        await workers.return_orphans(given.conn, limit=0)
        await given.time_passes(seconds=0.25)


async def expire_grants(given: Given, connect: Connect) -> None:
    await submit_many(given.conn, [submission()] * MANY)
    await claims.issue_grant(given.conn, "w", instance="w-1", lanes=["default"], take=MANY)
    await given.time_passes(minutes=1)


async def time_out_waits(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await waiting(given, timeout=HOUR, timeout_behavior=("fail", "auto_resume", "escalate")[number % 3])
    await given.time_passes(hours=2)


async def close_waitpoints(given: Given, connect: Connect) -> None:
    for _ in range(MANY):
        await waits.create_waitpoint(given.conn, (await given.claimed()).fence, "w", expires_in=HOUR)
    await given.time_passes(hours=2)


async def time_out_attempts(given: Given, connect: Connect) -> None:
    await submit_many(given.conn, [submission(policy={"attempt_timeout_ms": 1_000})] * MANY)
    await given.claim(take=MANY)
    for flow in await in_flows(given, policy={"attempt_timeout_ms": 1_000}):
        await flow.claim("a")
    await given.time_passes(seconds=5)


async def expire_executions(given: Given, connect: Connect) -> None:
    await submit_many(given.conn, [submission(deadline=HOUR)] * MANY)
    await in_flows(given, deadline=HOUR)
    await given.time_passes(hours=2)


async def resume_budget_waits(given: Given, connect: Connect) -> None:
    await make(given.conn, on_hard_limit="suspend")
    await spend(given.conn, 100)
    for _ in range(MANY):
        await spend(given.conn, 1, fence=(await given.claimed()).fence)
    # Not by a call, which would resume some of them.
    await given.rows("update flowfabric.budgets set used = '{}', full_until = null")


async def reset_budgets(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await make(given.conn, f"team-{number}", reset_interval=HOUR)
    await given.time_passes(hours=2)


async def expire_reservations(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await make(given.conn, f"team-{number}")
        await budgets.reserve(given.conn, f"team-{number}", {"tokens": 1}, ttl=timedelta(minutes=1))
    await given.time_passes(hours=2)


async def trim_windows(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await quotas.create_quota(given.conn, f"quota-{number}", max_requests_per_window=5)
        await given.submitted(quotas=[f"quota-{number}"])
    await given.claim(take=MANY)
    await given.time_passes(hours=2)


async def expire_workers(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await workers.register_worker(given.conn, "w", instance=f"w-{number}", lanes=["default"])
    await given.time_passes(hours=2)


async def remove_idempotency_keys(given: Given, connect: Connect) -> None:
    keyed = [submission(key=f"key-{number}") for number in range(MANY)]
    for made in await submit_many(given.conn, keyed):
        await executions.cancel(given.conn, made.execution_id)  # type: ignore[union-attr]
    await given.time_passes(days=60)


async def remove_ended(given: Given, connect: Connect) -> None:
    for made in await submit_many(given.conn, [submission()] * MANY):
        await executions.cancel(given.conn, made.execution_id)  # type: ignore[union-attr]
    for flow in await in_flows(given):
        await flow.complete("a")
        await flow.complete("b")
    await given.time_passes(days=60)


async def fire_schedules(given: Given, connect: Connect) -> None:
    for number in range(MANY):
        await create(given.conn, f"schedule-{number}", overlap="replace", every=DAY)
    await given.time_passes(hours=25)


async def deliver_child_ends(given: Given, connect: Connect) -> None:
    """Half of the parents have ended, and their children must be cancelled; the others must be notified."""
    for number in range(MANY // 2):
        parent = await given.claimed()
        [child] = await born(given, parent)
        await executions.cancel(given.conn, parent.execution_id if number % 2 else child)


async def trim_frames(given: Given, connect: Connect) -> None:
    for _ in range(MANY):
        await appended(given.conn, await given.claimed(), b"1", mode="best_effort", ttl=timedelta(minutes=1))
    await given.time_passes(hours=2)


SCENES: dict[str, Callable[[Given, Connect], Awaitable[None]]] = {
    scene.__name__: scene
    for scene in (
        *(promote_due, expire_leases, return_orphans, expire_grants, time_out_waits, close_waitpoints),
        *(time_out_attempts, expire_executions, resume_budget_waits, reset_budgets, expire_reservations),
        *(
            trim_frames,
            trim_windows,
            expire_workers,
            remove_idempotency_keys,
            remove_ended,
            fire_schedules,
            deliver_child_ends,
        ),
    )
}


async def lock_a_tenth(conn: asyncpg.Connection, seed: int) -> int:
    """Lock about a tenth of the rows of each table until the transaction ends, and return how many those are."""
    await conn.execute(f"select setseed({random.Random(seed).random()})")
    locked = 0
    for table, which in ROWS.items():
        found = await conn.fetch(
            f"select from flowfabric.{table} where ctid = any (array("
            f"select ctid from flowfabric.{table} where {which} and random() < 0.1)) for update"
        )
        locked += len(found)
    return locked


def test_every_sweep_has_a_scene() -> None:
    assert SCENES.keys() | WITHOUT_ROWS == {sweep.name for sweep in sweeps(Config())}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SCENES)
async def test_a_sweep_gets_past_a_tenth_of_the_rows_that_are_locked(
    database: Database, given: Given, connect: Connect, name: str, seed: int
) -> None:
    await SCENES[name](given, connect)
    [listed] = [sweep for sweep in sweeps(Config()) if sweep.name == name]
    sweep = Sweep(name, listed.every, listed.run, limit=LIMIT)
    user = await connect()

    async with user.transaction():
        locked = await lock_a_tenth(user, seed)
        async with asyncio.timeout(60):
            first = await run_once(database, sweep)
    await given.time_passes(minutes=2)  # some sweeps look again at what was locked a little later
    second = await run_once(database, sweep)

    assert first > 0
    assert second <= locked * COUNTED.get(name, 1)
    await run_once(database, sweep)  # an orphan that ends is one more end of a child
    assert await run_once(database, sweep) == 0
