"""Migrations: applied once, atomically, by many processes at once, and under load."""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version

import asyncpg
import msgspec
import pytest

from flowfabric.config import Config
from flowfabric.engine import executions, lanes
from flowfabric.errors import DatabaseUnavailable, PartitionCountMismatch, PrivilegeMissing, SchemaAhead, SchemaBehind
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from tests.conftest import SOAK, Connect, Server
from tests.given import submission, until

ALL = [step.number for step in migrate.migrations()]
LAST = migrate.last_migration()
PROCESSES, UPGRADES = (10, 20) if SOAK else (4, 6)
CATALOG = """
    select 'column', table_name || '.' || column_name, data_type || is_nullable || coalesce(column_default, '')
    from information_schema.columns where table_schema = 'flowfabric'
    union all select 'index', indexname, indexdef from pg_indexes where schemaname = 'flowfabric'
    union all select 'function', oid::regprocedure::text, pg_get_functiondef(oid)
    from pg_proc where pronamespace = 'flowfabric'::regnamespace
    order by 1, 2, 3"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an empty database."""
    async with connected(empty_url) as conn:
        yield conn


@pytest.fixture
async def role(server: Server) -> AsyncIterator[str]:
    """A role without privileges; its objects are dropped with the database of the test."""
    name = f"role_{uuid.uuid4().hex}"
    await server.execute(f"create role {name}")
    yield name
    await server.execute(f"drop role {name}")


async def schema(server: Server, url: str) -> list[str]:
    """The definition of the schema as text."""
    if server.binaries is None:
        async with connected(url) as conn:
            return [str(tuple(row)) for row in await conn.fetch(CATALOG)]
    command = [str(server.binaries / "pg_dump"), "--schema-only", "--schema=flowfabric", url]
    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    return [line for line in said.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


@pytest.fixture(scope="module")
def fresh(server: Server) -> list[str]:
    """The schema of a database that was migrated in one go."""

    async def found() -> list[str]:
        async with server.database() as url:
            async with connected(url) as conn:
                await migrate.migrate(conn, Config())
            return await schema(server, url)

    return asyncio.run(found())


async def test_a_migration_is_applied_once(empty: asyncpg.Connection) -> None:
    assert [step.number for step in await migrate.migrate(empty, Config())] == ALL
    await migrate.check(empty, Config())

    assert await migrate.migrate(empty, Config()) == []
    assert [row["number"] for row in await empty.fetch("select number from flowfabric.migrations order by 1")] == ALL


async def test_several_processes_at_once_apply_it_once(empty_url: str) -> None:
    command = [sys.executable, "-m", "flowfabric.cli", "migrate", "--json"]
    environment = {**os.environ, "FLOWFABRIC_URL": empty_url}
    start = partial(asyncio.create_subprocess_exec, *command, env=environment, stdout=subprocess.PIPE)
    started = [await start() for _ in range(PROCESSES)]
    said = await asyncio.gather(*(process.communicate() for process in started))

    assert [process.returncode for process in started] == [0] * PROCESSES
    applied = [msgspec.json.decode(text)["applied"] for text, _ in said]
    assert sorted(map(len, applied)) == [0] * (PROCESSES - 1) + [len(ALL)]


async def test_ten_connections_at_once_apply_it_once(empty_url: str) -> None:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(empty_url)) for _ in range(10)]
        applied = await asyncio.gather(*(migrate.migrate(conn, Config()) for conn in opened))

    assert sorted(map(len, applied)) == [0] * 9 + [len(ALL)]


@pytest.mark.parametrize("first", [0, *ALL])
async def test_an_upgraded_database_is_the_same_as_a_fresh_one(
    server: Server, empty_url: str, fresh: list[str], first: int
) -> None:
    async with connected(empty_url) as conn:
        assert [step.number for step in await migrate.migrate(conn, Config(), upto=first)] == ALL[:first]
        assert [step.number for step in await migrate.migrate(conn, Config())] == ALL[first:]

    assert await schema(server, empty_url) == fresh


OTHER_LAYOUTS = {
    "edited since": "update flowfabric.migrations set digest = 'another'",
    "many migrations": """
        alter table flowfabric.migrations drop column digest;
        update flowfabric.migrations set name = '0001_executions.sql';
        insert into flowfabric.migrations (number, name) select n, n || '.sql' from generate_series(2, 13) n;
        drop function flowfabric.schema_layout""",
}


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
async def test_tables_from_before_the_first_release_are_refused_and_left_alone(
    empty: asyncpg.Connection, layout: str
) -> None:
    await migrate.migrate(empty, Config())
    await empty.execute(OTHER_LAYOUTS[layout] + "; update flowfabric.release set digest = 'another'")
    before = await empty.fetch("select * from flowfabric.migrations")

    with pytest.raises(SchemaBehind, match="ff migrate"):
        await migrate.check(empty, Config())
    with pytest.raises(SchemaBehind, match=r"before 0\.1\.0 .*new database.*drop schema flowfabric cascade"):
        await migrate.migrate(empty, Config())
    assert await empty.fetch("select * from flowfabric.migrations") == before


def test_comments_and_spaces_do_not_change_the_layout() -> None:
    plain = migrate.Migration(1, "a.sql", "create table t (a int);\n")
    same = migrate.Migration(1, "a.sql", "-- A table.\ncreate table t\n    (a int); -- with a column\n")
    other = migrate.Migration(1, "a.sql", "create table t (a text);\n")

    assert plain.digest == same.digest != other.digest


async def test_functions_of_another_release_are_replaced_or_dropped(
    server: Server, empty_url: str, fresh: list[str]
) -> None:
    async with connected(empty_url) as conn:
        await migrate.migrate(conn, Config())
        await conn.execute("""
            drop function flowfabric.pause_lane, flowfabric.resume_lane;
            create function flowfabric.pause_lane(lane int) returns int language sql as 'select 1';
            create function flowfabric.of_yesterday() returns int language sql as 'select 1';
            insert into flowfabric.functions values ('of_yesterday', '() returns int');
            update flowfabric.functions set signature = '(lane int) returns int' where name = 'pause_lane'""")
        await migrate.migrate(conn, Config())

    assert await schema(server, empty_url) == fresh


async def test_functions_are_replaced_under_load_without_an_error(database: Database, connect: Connect) -> None:
    conn, done = await connect(), asyncio.Event()

    async def work() -> int:
        submitted = 0
        while not done.is_set():
            await database.run(lambda conn: executions.submit(conn, submission()))
            await database.run(lanes.list_lanes)
            submitted += 1
        return submitted

    async def upgrade() -> None:
        for number in range(UPGRADES):
            if number % 2:  # as if every signature had changed: all are dropped
                await conn.execute("update flowfabric.functions set signature = 'of yesterday'")
            await migrate.migrate(conn, Config())
        done.set()

    *submitted, _ = await asyncio.gather(*(work() for _ in range(4)), upgrade())
    assert sum(filter(None, submitted)) == await conn.fetchval("select count(*) from flowfabric.executions") > 0


async def test_functions_run_without_jit_compilation_also_in_a_callers_session(empty: asyncpg.Connection) -> None:
    await migrate.migrate(empty, Config())

    compiled = await empty.fetch("""
        select p.proname from pg_proc p
        where p.pronamespace = 'flowfabric'::regnamespace and coalesce('jit=off' = any(p.proconfig), false) is false
          and p.proname not like '\\_%'""")
    assert [row["proname"] for row in compiled] == ["clock"]


async def test_a_migration_that_fails_leaves_nothing_half_done(empty: asyncpg.Connection) -> None:
    await empty.execute("create schema flowfabric; create table flowfabric.tickets (mine int)")

    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate.migrate(empty, Config())

    left = "select relname from pg_class where relnamespace = 'flowfabric'::regnamespace"
    assert [row["relname"] for row in await empty.fetch(left)] == ["tickets"]
    assert await empty.fetch("select from pg_proc where pronamespace = 'flowfabric'::regnamespace") == []


async def test_a_connection_lost_half_way_leaves_nothing_half_done(empty_url: str) -> None:
    async with connected(empty_url) as holder, connected(empty_url) as conn, connected(empty_url) as other:
        await holder.execute("select pg_advisory_lock(17990, 3)")  # the last lock it takes
        running = asyncio.create_task(migrate.migrate(conn, Config()))
        waiting = "select from pg_locks where not granted and pid = $1"
        await until(lambda: other.fetch(waiting, conn.get_server_pid()))
        await other.execute("select pg_terminate_backend($1)", conn.get_server_pid())
        with pytest.raises((DatabaseUnavailable, asyncpg.InterfaceError)):
            await running

        assert await other.fetchval("select to_regnamespace('flowfabric')") is None


async def test_a_database_that_is_behind_is_refused(empty: asyncpg.Connection) -> None:
    with pytest.raises(SchemaBehind, match="ff migrate"):
        await migrate.check(empty, Config())

    await migrate.migrate(empty, Config(), upto=0)
    with pytest.raises(SchemaBehind, match=rf"migration 0.* {LAST}.*ff migrate"):
        await migrate.check(empty, Config())


async def test_a_database_that_is_ahead_is_refused_and_left_alone(conn: Connection) -> None:
    await conn.execute(f"insert into flowfabric.migrations values ({LAST + 1}, 'of_tomorrow.sql')")
    await conn.execute("update flowfabric.release set digest = 'of tomorrow'")

    for refused in (migrate.check, migrate.migrate):
        with pytest.raises(SchemaAhead, match=rf"migration {LAST + 1}.* {LAST}.*upgrade flowfabric"):
            await refused(conn, Config())
    assert (await migrate.read_state(conn)).digest == "of tomorrow"


@pytest.mark.parametrize("release", [version("flowfabric"), "0.0.9", "0.0.9rc1"])
async def test_other_functions_of_this_or_an_earlier_release_are_replaced(conn: Connection, release: str) -> None:
    await conn.execute(f"update flowfabric.release set version = '{release}', digest = 'other'")

    with pytest.raises(SchemaBehind, match=rf"flowfabric {release}.*ff migrate"):
        await migrate.check(conn, Config())

    await migrate.migrate(conn, Config())
    await migrate.check(conn, Config())


async def test_functions_of_a_later_release_are_accepted_and_kept(conn: Connection) -> None:
    await conn.execute("update flowfabric.release set version = '99.0.0', digest = 'other'")

    await migrate.check(conn, Config())
    with pytest.raises(SchemaAhead, match=r"99\.0\.0.*upgrade flowfabric"):
        await migrate.migrate(conn, Config())
    assert (await migrate.read_state(conn)).version == "99.0.0"


@pytest.mark.parametrize("name", ["budget_partitions", "quota_partitions"])
async def test_other_partition_counts_are_refused_with_the_one_to_set(conn: Connection, name: str) -> None:
    other = Config.read({}, **{name: 7})

    for refused in (migrate.check, migrate.migrate):
        with pytest.raises(PartitionCountMismatch, match=rf"{name}.* 7 .*FLOWFABRIC_{name.upper()}=\d+"):
            await refused(conn, other)
    await migrate.check(conn, Config())


async def test_the_database_of_another_cell_is_refused(conn: Connection) -> None:
    assert (await migrate.read_state(conn)).cell == 0
    await conn.execute("update flowfabric.deployment set cell = 3")

    with pytest.raises(SchemaAhead, match="the database is cell 3, and this version of flowfabric knows only cell 0"):
        await migrate.check(conn, Config())
    with pytest.raises(SchemaAhead, match="upgrade flowfabric in this process"):
        await migrate.migrate(conn, Config())


async def test_a_role_without_the_privilege_to_create_a_schema_is_refused(empty: asyncpg.Connection, role: str) -> None:
    await empty.execute(f"set role {role}")

    with pytest.raises(PrivilegeMissing, match=r"permission denied for database"):
        await migrate.migrate(empty, Config())


async def test_a_role_that_owns_the_schema_can_migrate(empty: asyncpg.Connection, role: str) -> None:
    await empty.execute(f"create schema flowfabric authorization {role}; set role {role}")

    for expected in (ALL, []):
        assert [step.number for step in await migrate.migrate(empty, Config())] == expected
    await migrate.check(empty, Config())
    await empty.execute(f"reset role; drop owned by {role} cascade")
