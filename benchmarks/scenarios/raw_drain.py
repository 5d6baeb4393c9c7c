"""The bare loop: take 100 rows of a narrow table at a time with `skip locked`, and delete them."""

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

COUNT = 20_000

MAKE = """
create table narrow (id bigint primary key, taken boolean not null default false, payload bytea not null);
create index narrow_ready on narrow (id) where not taken;
"""
FILL = "insert into narrow (id, payload) select i, '{}' from generate_series(1, $1::int) i"
TAKE = """
update narrow n set taken = true
where n.id in (select r.id from narrow r where not r.taken order by r.id limit 100 for update skip locked)
returning n.id, n.payload
"""


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with ground.raw() as conn:
        await conn.execute(MAKE)
        await conn.execute(FILL, count)
        with ground.timed():
            while taken := await conn.fetch(TAKE):
                await conn.execute("delete from narrow where id = any ($1::bigint[])", [row["id"] for row in taken])
    return count


scenario = Scenario(
    name="raw_drain", about="a plain table as a queue, 100 rows at a time", run=run, unit="rows/s", engine=RAW
)
