"""A sweep reads only due schedules, however many exist."""

from flowfabric.postgres.driver import Connection
from tests.engine.schedules.scene import create, fired, sweep
from tests.given import Given

OTHERS = """
insert into flowfabric.schedules
select (jsonb_populate_record(s, jsonb_build_object(
    'name', 's' || n, 'next_tick_at', t.at, 'due_at', case when n % 2 = 0 then t.at end))).*
from flowfabric.schedules s cross join generate_series(1, 4000) n
cross join lateral (select s.due_at + n * interval '1 day') t (at)
"""
READ = """
select sum(pg_stat_get_xact_tuples_returned(x.id) + pg_stat_get_xact_tuples_fetched(x.id))::int as rows,
       sum(pg_stat_get_xact_numscans(x.id)) filter (where x.id = c.oid)::int as whole
from pg_class c cross join lateral (
    select c.oid as id union all select i.indexrelid from pg_index i where i.indrelid = c.oid) x
where c.oid = 'flowfabric.schedules'::regclass
"""


async def test_a_sweep_reads_only_due_schedules(conn: Connection, given: Given) -> None:
    await create(conn)
    await conn.execute(OTHERS)
    await given.time_passes(hours=1)

    async with conn.transaction():
        [before] = await given.rows(READ)
        assert (await sweep(conn)).moved == 1
        [after] = await given.rows(READ)
    assert (after["whole"] - before["whole"], len(await fired(given))) == (0, 1)
    assert after["rows"] - before["rows"] < 40
