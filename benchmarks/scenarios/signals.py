"""Signals that resume real waiting handlers: how many per second, and how soon one resumes."""

import asyncio
import random
import time

import msgspec

from benchmarks import tasks
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import Scenario
from benchmarks.scenarios.latency import GAP
from benchmarks.stamps import Stamps
from benchmarks.workers import drained, opened, stamped, until, until_none, working
from flowfabric.app import App
from flowfabric.ids import ExecutionId
from flowfabric.model import CreatedWaitpoint, SignalToSend
from flowfabric.postgres.driver import Connection

COUNT = 2_000
SINGLE = 200

NOT_SUSPENDED = "select from flowfabric.tickets where phase <> 'suspended' limit 1"
TOKENS = """
select e.id, e.partition, e.payload, s.result from flowfabric.executions e
join flowfabric.steps s on s.execution = e.id and s.partition = e.partition
"""


class Number(msgspec.Struct):
    """The payload of a waiter."""

    number: int


async def suspended(app: App, conn: Connection, count: int) -> list[SignalToSend]:
    """Create this many waiting executions and return the signal that resumes each, by number."""
    await tasks.waiter.submit_many([(number,) for number in range(count)])
    await until_none(conn, NOT_SUSPENDED)
    signals: dict[int, SignalToSend] = {}
    for row in await conn.fetch(TOKENS):
        point = msgspec.json.decode(row["result"], type=CreatedWaitpoint)
        number = msgspec.json.decode(row["payload"], type=Number).number
        execution_id = ExecutionId(row["partition"], row["id"])
        signals[number] = SignalToSend(
            execution_id=execution_id, waitpoint_id=point.waitpoint_id, token=point.token, name="go"
        )
    return [signals[number] for number in range(count)]


async def many(ground: Ground) -> int:
    """Send signals as fast as possible, until all executions have ended."""
    count = ground.scaled(COUNT)
    stamped(ground, count)
    async with opened(ground) as app, working(ground, 1), app.database.connection() as conn:
        signals = await suspended(app, conn, count)
        with ground.timed():
            await asyncio.gather(*map(app.signal, signals))
            await drained(conn)
    return count


async def single(ground: Ground) -> int:
    """Send one signal at a time and measure until the handler resumes."""
    count = ground.scaled(SINGLE)
    stamps = stamped(ground, count)
    async with opened(ground) as app, working(ground, 1), app.database.connection() as conn:
        signals = await suspended(app, conn, count)
        delays = [await delay(app, stamps, number, signals[number]) for number in range(count)]
    ground.tell(**percentiles("handler", delays))
    return count


async def delay(app: App, stamps: Stamps, number: int, signal: SignalToSend) -> float:
    await asyncio.sleep(random.uniform(*GAP))
    sent_at = time.monotonic()
    await app.signal(signal)
    await until(lambda: stamps.at(number) > 0)  # the stamp has the exact time; a busy loop would occupy a core
    return stamps.at(number) - sent_at


rate = Scenario(
    name="signals",
    about="signalled all at once, resumed and completed by one worker process",
    run=many,
    unit="resumed/s",
    against={"raw_signals": None},
    for_peers=COUNT,
)
latency = Scenario(
    name="signal_latency",
    about="one signal at a time, until the handler resumes",
    run=single,
    unit="ms to handler, p50",
    figure="handler_p50_ms",
    less_is_better=True,
    against={"raw_latency": None},
    for_peers=SINGLE,
)
