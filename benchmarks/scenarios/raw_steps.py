"""The bare loop: take rows of a narrow table, insert ten rows for each with a commit each, and delete them."""

import asyncio

from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario
from benchmarks.scenarios.raw_drain import FILL, MAKE, TAKE

COUNT = 1_000
STEPS = 10
CONNECTIONS = 4


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)

    async def work() -> None:
        async with ground.raw() as conn:
            while taken := await conn.fetch(TAKE.replace("limit 100", "limit 10")):
                ids = [row["id"] for row in taken]
                for step in range(STEPS):
                    await conn.execute(
                        "insert into narrow_steps select id, $1, '{}' from unnest($2::bigint[]) id", step, ids
                    )
                await conn.execute("delete from narrow where id = any ($1::bigint[])", ids)

    async with ground.raw() as conn:
        await conn.execute(MAKE)
        await conn.execute("create table narrow_steps (id bigint, step int, result bytea, primary key (id, step))")
        await conn.execute(FILL, count)
    with ground.timed():
        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return count


scenario = Scenario(
    name="raw_steps",
    about="ten inserts for each row of a plain queue, 10 rows at a time, four connections",
    run=run,
    unit="rows/s",
    engine=RAW,
)
