"""The bare loop: one connection inserts a row and notifies; another takes the row and replies."""

import asyncio
import time

import asyncpg

from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

COUNT = 300

MAKE = "create table narrow (id bigint primary key, taken boolean not null default false, result bytea)"
TAKE = """
update narrow n set taken = true
where n.id in (select r.id from narrow r where not r.taken order by r.id limit 1 for update skip locked) returning n.id
"""


class Side:
    """A connection that listens on its channel."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.heard: asyncio.Queue[float] = asyncio.Queue()

    async def listen(self, channel: str) -> None:
        await self.conn.add_listener(channel, lambda *_: self.heard.put_nowait(time.monotonic()))

    async def serve(self, starts: list[float]) -> None:
        while True:
            await self.heard.get()
            id_ = await self.conn.fetchval(TAKE)
            starts.append(time.monotonic())
            await self.conn.execute("update narrow set result = '{}' where id = $1", id_)
            await self.conn.execute("notify ended")


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT, least=2)
    starts: list[float] = []
    submitted, results = [], []
    async with ground.raw() as one, ground.raw() as other:
        asking, serving = Side(one), Side(other)
        await one.execute(MAKE)
        await asking.listen("ended")
        await serving.listen("submitted")
        work = asyncio.create_task(serving.serve(starts))
        for number in range(count):
            submitted.append(time.monotonic())
            await one.execute("insert into narrow (id) values ($1)", number)
            await one.execute("notify submitted")
            await asking.heard.get()
            await one.fetchval("select result from narrow where id = $1", number)
            results.append(time.monotonic() - submitted[-1])
        work.cancel()
    ground.tell(**percentiles("start", [start - at for start, at in zip(starts, submitted, strict=True)]))
    ground.tell(**percentiles("result", results))
    return count


scenario = Scenario(
    name="raw_latency",
    about="a row and a notification, taken and replied to by another connection, one at a time",
    run=run,
    unit="ms to start, p50",
    figure="start_p50_ms",
    less_is_better=True,
    engine=RAW,
)
