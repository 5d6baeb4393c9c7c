"""The bare loop: insert a thousand rows per statement into a narrow table with a primary key."""

from uuid import uuid4

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

COUNT = 100_000
AT_ONCE = 1_000


async def run(ground: Ground) -> int:
    batches = ground.scaled(COUNT // AT_ONCE)
    async with ground.raw() as conn:
        await conn.execute("create table narrow (id uuid primary key, payload bytea not null)")
        chunks = [[uuid4() for _ in range(AT_ONCE)] for _ in range(batches)]
        payloads = [b"{}"] * AT_ONCE
        with ground.timed():
            for ids in chunks:
                await conn.execute("insert into narrow select * from unnest($1::uuid[], $2::bytea[])", ids, payloads)
    return batches * AT_ONCE


scenario = Scenario(
    name="raw_bulk", about="plain inserts, 1,000 rows per statement", run=run, unit="rows/s", engine=RAW
)
