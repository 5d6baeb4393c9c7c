"""The bare loop: insert and commit one row after the other."""

from uuid import uuid4

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

COUNT = 1_000


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with ground.raw() as conn:
        await conn.execute("create table narrow (id uuid primary key, payload bytea not null)")
        ids = [uuid4() for _ in range(count)]
        with ground.timed():
            for id_ in ids:
                await conn.execute("insert into narrow (id, payload) values ($1, $2)", id_, b"{}")
    return count


scenario = Scenario(name="raw_one_by_one", about="plain inserts, a commit each", run=run, unit="rows/s", engine=RAW)
