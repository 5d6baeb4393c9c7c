"""Following the event log: the delay after a commit, and the rate with many writers."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from flowfabric.app.subscriptions import EventLog
from flowfabric.engine import executions
from flowfabric.model import Options, Submission
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

DELIVERIES = 200
PAUSE = 0.05  # idle seconds before each event
COUNT = 200_000 if os.environ.get("FLOWFABRIC_SOAK") == "1" else 50_000
WRITERS = 32
AT_ONCE = 25
SUBMISSION = Submission(options=Options(task="benchmark"), payload=b"{}")
APPEND = """
select flowfabric._append_each('execution_held', array_fill(1::int2, array[cardinality($1::uuid[])]), $1,
                               array_fill(1, array[cardinality($1)]))
"""


@asynccontextmanager
async def following(database: Database) -> AsyncIterator[tuple[Notifier, EventLog]]:
    async with Notifier(database) as hints, EventLog(database, hints) as log:
        yield hints, log


@asynccontextmanager
async def unrelated(ground: Ground, is_open: bool) -> AsyncIterator[None]:
    """A transaction that writes to an unrelated table and stays open."""
    async with ground.raw() as conn:
        await conn.execute("create table unrelated (number int)")
        if is_open:
            await conn.execute("begin; insert into unrelated values (1)")
        yield


@asynccontextmanager
async def caller(ground: Ground, submissions: int) -> AsyncIterator[None]:
    """A caller's transaction that has submitted so many executions and stays open."""
    async with ground.raw() as conn:
        await executions.submit(conn, SUBMISSION)  # creates the lane and the route, for which others would wait
        async with conn.transaction():
            await executions.submit_many(conn, [SUBMISSION] * submissions)
            yield


def delivering(beside_open: bool, submissions: int = 0) -> Callable[[Ground], Awaitable[int]]:
    """Append one event after the other to an otherwise idle log."""

    async def run(ground: Ground) -> int:
        async with (
            unrelated(ground, beside_open),
            caller(ground, submissions),
            ground.database() as database,
            database.connection() as conn,
            following(database) as (hints, log),
        ):
            await executions.submit(conn, SUBMISSION)
            subscription = await log.subscribe()
            delays = []
            for _ in range(ground.scaled(DELIVERIES)):
                arrival = asyncio.create_task(anext(subscription))
                await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
                await executions.submit(conn, SUBMISSION)
                committed = time.perf_counter()
                hints.send(lanes=["default"])
                await arrival
                delays.append(time.perf_counter() - committed)
        ground.tell(**percentiles("delivery", delays))
        return len(delays)

    return run


def following_many(beside_open: bool) -> Callable[[Ground], Awaitable[int]]:
    """Follow all events of many writers, from the first commit to the last arrival."""

    async def write(ground: Ground, count: int) -> None:
        async with ground.raw() as conn:
            for _ in range(count // AT_ONCE):
                await conn.execute(APPEND, [uuid4() for _ in range(AT_ONCE)])

    async def run(ground: Ground) -> int:
        per_writer = max(ground.scaled(COUNT) // WRITERS // AT_ONCE, 1) * AT_ONCE
        async with (
            unrelated(ground, beside_open),
            ground.database() as database,
            following(database) as (_, log),
        ):
            subscription = await log.subscribe()
            with ground.timed():
                writers = [asyncio.create_task(write(ground, per_writer)) for _ in range(WRITERS)]
                for _ in range(per_writer * WRITERS):
                    await anext(subscription)
            await asyncio.gather(*writers)
        return per_writer * WRITERS

    return run


delivery = Scenario(
    name="events_delivery",
    about="commit to delivery when idle, with notifications",
    run=delivering(False),
    unit="ms, p99",
    figure="delivery_p99_ms",
    less_is_better=True,
    goal=50,
)
delivery_beside_open = Scenario(
    name="events_delivery_open",
    about="the same beside an open transaction that writes elsewhere",
    run=delivering(True),
    unit="ms, p99",
    figure="delivery_p99_ms",
    less_is_better=True,
    goal=50,
    against={delivery.name: None},
)
delivery_beside_caller = Scenario(
    name="events_delivery_caller",
    about="the same beside a caller's open transaction with 1,000 submissions",
    run=delivering(False, 1_000),
    unit="ms, p99",
    figure="delivery_p99_ms",
    less_is_better=True,
    goal=50,
    against={delivery.name: None},
)
follow = Scenario(
    name="events_follow", about=f"{COUNT:,} events of 32 writers", run=following_many(False), unit="events/s"
)
follow_beside_open = Scenario(
    name="events_follow_open",
    about="the same beside an open transaction that writes elsewhere",
    run=following_many(True),
    unit="events/s",
    against={follow.name: None},
)
