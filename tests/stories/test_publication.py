"""A publication of the whole schema: for logical replication, a change-data connector, or an upgrade by replication."""

from datetime import timedelta
from pathlib import Path

import asyncpg

from flowfabric import App, Context
from flowfabric.engine import events
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.schema import migrate
from flowfabric.sweeps import run_each, sweeps
from tests.worker.scene import working

PUBLISH = "create publication everything for tables in schema flowfabric"
SLOT = "select pg_create_logical_replication_slot('reader', 'pgoutput')"
READ = """select count(*) from pg_logical_slot_get_binary_changes('reader', null, null, 'proto_version', '1',
          'publication_names', 'everything') where get_byte(data, 0) = ascii($1)"""
LEFT = """select count(*) from (select unnest(executions) from flowfabric.removals union all
          select execution from flowfabric.child_ends union all select id from flowfabric.executions) x"""


async def family(app: App) -> None:
    """Run a parent that waits for its two children."""

    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def parent(ctx: Context) -> int:
        one, other = await ctx.submit(child, 3), await ctx.submit(child, 7)
        return await one.result() + await other.result()

    async with working(app, sweeps=True):
        execution = await parent.submit()
        assert await execution.result("30s") == 10


async def test_a_life_its_children_and_retention_work_while_the_schema_is_published(tmp_path: Path) -> None:
    with embedded.start(tmp_path, durable=False, settings={"wal_level": "logical"}) as server:
        app = App(url=server.url(), retention=timedelta(0))
        conn = await asyncpg.connect(server.url())
        await migrate.migrate(conn, app.config)
        await conn.execute(PUBLISH)
        await conn.execute(SLOT)
        await family(app)
        async with Database(app.config, server.url()) as database:
            runs = [run for _ in range(3) for run in await run_each(database, sweeps(app.config))]

        assert [run for run in runs if run.error] == []
        assert await conn.fetchval(LEFT) == 0
        await conn.execute("checkpoint")  # only the WAL that has reached the disk is decoded
        assert await conn.fetchval(READ, "D") > 5  # deletes, which need a replica identity
        assert len((await events.read_events(conn, events.OLDEST)).events) > 10
        await conn.close()
