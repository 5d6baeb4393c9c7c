"""An overview reads a bounded number of rows, whatever the backlog and the history."""

import asyncpg

from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.engine import workers
from flowfabric.engine.overview import overview
from flowfabric.model import RegisteredTask
from tests.conftest import Connect
from tests.given import Given

WAITING = 50_000
EVENTS = 30_000
READ = """
select c.relname as name, sum(pg_stat_get_xact_tuples_returned(x.id))::int as rows
from pg_class c cross join lateral (
    select c.oid as id union all select i.indexrelid from pg_index i where i.indrelid = c.oid) x
where c.oid in ('flowfabric.tickets'::regclass, 'flowfabric.executions'::regclass, 'flowfabric.events_0'::regclass)
group by c.relname
"""
FILL = f"""
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, eligibility, reason)
select (n % 256)::smallint, gen_random_uuid(), r.id, r.lane, 0, now() - n * interval '1 ms', 'eligible_now',
       'waiting_for_worker'
from generate_series(1, {WAITING}) n cross join flowfabric.routes r;
insert into flowfabric.events (at, kind)
select now() - ({EVENTS} - n) * interval '1 ms', 'execution_submitted' from generate_series(1, {EVENTS}) n;
"""

RECORDS = """
insert into flowfabric.executions (partition, id, route, task, created_at)
select t.partition, t.id, t.route, 'other', t.created_at from flowfabric.tickets t on conflict do nothing;
"""


async def _read(conn: asyncpg.Connection) -> dict[str, int]:
    return {row["name"]: row["rows"] for row in await conn.fetch(READ)}


async def test_an_overview_and_a_diagnosis_read_a_bounded_number_of_rows(connect: Connect, given: Given) -> None:
    conn = await connect()
    await given.submitted()
    await conn.execute(FILL)
    async with conn.transaction():
        before = await _read(conn)
        [lane] = (await overview(conn)).lanes
        frame = await _read(conn)
        await diagnose(conn, Config())
        diagnosis = await _read(conn)

    assert lane.waiting_count == 10_001
    read = {name: frame[name] - before[name] for name in before}
    assert read["tickets"] < 15_000
    assert read["events_0"] <= 5_000
    assert read["executions"] == 0
    assert diagnosis["tickets"] - frame["tickets"] < 5_000
    assert diagnosis["events_0"] == frame["events_0"]


async def test_a_task_that_no_worker_has_is_looked_for_among_the_oldest_executions_only(
    connect: Connect, given: Given
) -> None:
    conn = await connect()
    await given.submitted(task="reprot")
    await conn.execute(FILL)
    await conn.execute(RECORDS)
    tasks = [RegisteredTask(name="report")]
    await workers.register_worker(conn, "w", instance="w-1", lanes=["default"], tasks=tasks)
    async with conn.transaction():
        before = await _read(conn)
        stuck = [each for each in (await overview(conn)).stuck if each.reason == "no_task"]
        frame = await _read(conn)
        await diagnose(conn, Config())
        diagnosis = await _read(conn)

    assert [each.subject for each in stuck] == ["other"]
    assert frame["executions"] - before["executions"] <= 400
    assert diagnosis["executions"] - frame["executions"] <= 400
    assert frame["tickets"] - before["tickets"] < 15_000
