"""The size of an execution on disk: while it waits, and after its end, with its record, attempt and events."""

from benchmarks import tasks
from benchmarks.ground import Ground
from benchmarks.scenario import RAW, Scenario
from benchmarks.workers import drained, opened, working
from flowfabric.engine import lanes
from flowfabric.postgres.driver import Connection

COUNT = 20_000


async def size(conn: Connection) -> int:
    """The size of the database in bytes, after a vacuum."""
    await conn.execute("vacuum")
    [row] = await conn.fetch("select pg_database_size(current_database()) as bytes")
    return int(row["bytes"])


async def run(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with opened(ground) as app, app.database.connection() as conn:
        empty = await size(conn)
        await lanes.configure_lane(conn, "default")
        await tasks.nothing.submit_many([(number,) for number in range(count)])
        waiting = await size(conn)
        async with working(ground, 1):
            await drained(conn)
        ended = await size(conn)
    ground.tell(bytes=(ended - empty) / count, waiting_bytes=(waiting - empty) / count)
    return count


async def run_raw(ground: Ground) -> int:
    count = ground.scaled(COUNT)
    async with ground.raw() as conn:
        empty = await size(conn)
        await conn.execute(
            "create table narrow (id uuid primary key, payload bytea, result bytea, ended_at timestamptz)"
        )
        await conn.execute(
            "insert into narrow select gen_random_uuid(), '{}', '{}', now() from generate_series(1, $1::int)", count
        )
        ground.tell(bytes=(await size(conn) - empty) / count)
    return count


raw = Scenario(
    name="raw_size", about="a plain row with payload and result", run=run_raw,
    unit="bytes", figure="bytes", less_is_better=True, engine=RAW,
)  # fmt: skip
scenario = Scenario(
    name="size",
    about="bytes on disk for each ended execution",
    run=run,
    unit="bytes",
    figure="bytes",
    less_is_better=True,
    against={raw.name: None},
    for_peers=COUNT,
)
