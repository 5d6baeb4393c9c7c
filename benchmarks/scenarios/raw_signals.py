"""The bare loop: mark 100 waiting rows ready at a time, with their answer, and take them."""

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario

COUNT = 4_000
AT_ONCE = 100

MAKE = """
create table narrow_waiting (id bigint primary key, state smallint not null default 0, answer bytea);
create index waiting_ready on narrow_waiting (id) where state = 1;
"""
READY = "update narrow_waiting set state = 1, answer = '{}' where id = any ($1::bigint[])"
TAKE = """
update narrow_waiting w set state = 2
where w.id in (select r.id from narrow_waiting r where r.state = 1 order by r.id limit 100 for update skip locked)
returning w.id, w.answer
"""


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT // AT_ONCE) * AT_ONCE
    async with ground.raw() as conn:
        await conn.execute(MAKE)
        await conn.execute("insert into narrow_waiting (id) select generate_series(1, $1::int)", count)
        with ground.timed():
            for start in range(1, count, AT_ONCE):
                await conn.execute(READY, [*range(start, start + AT_ONCE)])
                await conn.fetch(TAKE)
    return count


scenario = Scenario(
    name="raw_signals", about="rows marked ready and taken, 100 at a time", run=run, unit="rows/s", engine=RAW
)
