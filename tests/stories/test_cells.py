"""Cells: the database of another cell owns other partitions, and everything works as in cell 0."""

from uuid import UUID

import asyncpg
import pytest

from flowfabric import App, Context, cursors, ids
from flowfabric.cli import resolve
from flowfabric.config import Config
from flowfabric.engine import executions, schedules
from flowfabric.errors import InvalidCursor, SchemaAhead, WrongPartition
from flowfabric.ids import ExecutionId
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from tests.app.scene import TIMEOUT, working
from tests.given import submission

CELL = 127
OWN = range(256 * CELL, 256 * CELL + 256)
IN_FLOW_TABLES = """
select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = 'flowfabric'::regnamespace and c.relkind = 'r' and a.attname = 'partition'
  and c.relname not in ('budgets', 'usage_keys', 'reservations') and c.relname not like 'quota%'
"""


@pytest.fixture
async def elsewhere(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app on an empty database, in a process of cell 127."""
    monkeypatch.setattr(ids, "CELL", CELL)
    conn = await asyncpg.connect(empty_url)
    await migrate.migrate(conn, Config())
    await conn.close()
    return App(url=empty_url, budgets={"team": {"tokens": 1_000}}, quotas={"calls": {"max_concurrent": 5}})


async def strangers(conn: asyncpg.Connection) -> set[str]:
    """Tables with a row outside of the partitions of the cell."""
    tables = [row["name"] for row in await conn.fetch(IN_FLOW_TABLES)]
    assert {"executions", "tickets", "flows", "steps", "idempotency_keys", "waits"} <= {*tables}
    asked = "select exists (select from flowfabric.{} t where t.partition not between $1 and $2)"
    return {name for name in tables if await conn.fetchval(asked.format(name), OWN[0], OWN[-1])}


async def test_an_app_runs_everything_in_the_partitions_of_another_cell(elsewhere: App) -> None:
    app = elsewhere

    @app.task(budgets=["team"], quotas=["calls"])
    async def part(ctx: Context, number: int) -> int:
        await ctx.report_usage("team", tokens=number)
        return await ctx.step("double", lambda: number * 2)

    @app.task
    async def whole(ctx: Context, upstream: int = 0) -> int:
        children = [await ctx.submit(part, number) for number in range(3)]
        await ctx.sleep("1ms")
        return sum([await child.result() for child in children], upstream)

    async with working(app, sweeps=True):
        execution = await whole.with_options(key="once").submit()
        assert (await whole.with_options(key="once").submit()).execution_id == execution.execution_id
        assert await execution.result(timeout=TIMEOUT) == 6
        flow = app.flow("report")
        last = flow.add(whole, flow.add(part, 10))
        handle = await flow.submit()
        assert await handle[last].result(timeout=TIMEOUT) == 26
        await app.schedules.create("often", part, {"number": 1}, every="1h", by="ops")
        async with app.database.connection() as conn:
            fired = await schedules.fire_schedule(conn, "often", by="ops")
            assert await app.execution(fired.execution_id).result(timeout=TIMEOUT) == 2
            listed = await executions.list_executions(conn, limit=3, order="id")
            rest = await executions.list_executions(conn, order="id", cursor=listed.next_cursor)
        seen = {each.execution_id for each in [*listed.items, *rest.items]}
        assert len(seen) == 10
        assert {each.partition in OWN for each in seen} == {True}
        assert await resolve.execution_id(app, str(execution.execution_id)[:20]) == execution.execution_id
        after_each = [event.cursor async for event in execution.events()]

    conn = await asyncpg.connect(app.config.url)
    try:
        assert await strangers(conn) == set()
    finally:
        await conn.close()
    assert [type(cursors.decode_event_cursor(cursor)) for cursor in after_each[:1]] == [int]


async def test_plain_sql_submits_to_the_partitions_of_another_cell(elsewhere: App) -> None:
    @elsewhere.task
    async def double(number: int) -> int:
        return number * 2

    one = "select flowfabric.submit_one('double', '{\"number\": 4}', key => 'once')"
    async with working(elsewhere):
        first = await double.with_options(key="once").submit(4)
        async with elsewhere.database.connection() as conn:
            assert await conn.fetchval(one) == str(first.execution_id)
            other = elsewhere.execution(await conn.fetchval(one.replace("once", "twice")))
        assert await other.result(TIMEOUT) == 8
        assert other.execution_id.partition in OWN


async def test_ids_and_cursors_of_two_cells_are_not_mixed_up(
    elsewhere: App, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = UUID("550e8400-e29b-41d4-a716-446655440000")
    there, theirs = ids.mint_execution_id(), cursors.encode_event_cursor(7)
    assert ExecutionId.of(foreign).partition == 256 * CELL + 24

    async with elsewhere, elsewhere.database.connection() as other:
        assert (await executions.submit(other, submission(execution_id=str(foreign)))).execution_id.partition in OWN
        with pytest.raises(WrongPartition, match=f"cell 0, and this database is cell {CELL}"):
            await executions.submit(other, submission(execution_id="{fp:24}:" + str(foreign)))
        monkeypatch.undo()
        with pytest.raises(SchemaAhead, match=f"the database is cell {CELL}"):
            await migrate.check(other, Config())

    for text in (str(there), there.wire):
        with pytest.raises(WrongPartition, match=f"cell {CELL}, and this database is cell 0"):
            await executions.submit(conn, submission(execution_id=text))
    with pytest.raises(InvalidCursor, match=f"cell {CELL}"):
        cursors.decode_event_cursor(theirs)
