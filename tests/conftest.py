"""What tests stand on: one embedded Postgres for the run, and a fresh copy of a migrated database for each test."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from flowfabric import embedded, migrate, testing
from flowfabric.config import Config
from flowfabric.db import Connection, Database
from tests.given import Given

TEMPLATE = "flowfabric_template"
SOAK = os.environ.get("FLOWFABRIC_SOAK") == "1"


class Server:
    """The Postgres of this test run: ours, or the one that FLOWFABRIC_TEST_URL names."""

    def __init__(self, url: str, binaries: Path | None) -> None:
        self._url = url
        self.binaries = binaries

    def url(self, database: str) -> str:
        head, _, tail = self._url.partition("?")
        return f"{head.rpartition('/')[0]}/{database}{'?' + tail if tail else ''}"

    async def execute(self, statement: str) -> None:
        conn = await asyncpg.connect(self._url)
        try:
            await conn.execute(statement)
        finally:
            await conn.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    given = os.environ.get("FLOWFABRIC_TEST_URL")
    if given:
        yield Server(given, None)
        return
    base = tmp_path_factory.getbasetemp()
    # The processes of one run share one server: the first starts it, the last stops it.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with embedded.start(shared / "postgres", durable=False) as running:
        yield Server(running.url("flowfabric"), running.binaries)


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """A migrated database with a clock that can be moved, made once per run."""
    asyncio.run(_make_template(server))
    return TEMPLATE


async def _make_template(server: Server) -> None:
    admin = await asyncpg.connect(server.url("postgres"))
    try:
        await admin.execute("select pg_advisory_lock(17990, 99)")
        if await admin.fetchval("select 1 from pg_database where datname = $1 and not datallowconn", TEMPLATE):
            return
        await admin.execute(f"drop database if exists {TEMPLATE} with (force)")
        await admin.execute(f"create database {TEMPLATE}")
        conn = await asyncpg.connect(server.url(TEMPLATE))
        await migrate.migrate(conn, Config())
        await testing.install_clock(conn)
        # What the migration itself wrote to the log is not what a test wants to see.
        await conn.execute("truncate flowfabric.events; select setval('flowfabric.event_ids', 1, false)")
        await conn.close()
        await admin.execute(f"alter database {TEMPLATE} with allow_connections false")
    finally:
        await admin.close()


@pytest.fixture
async def database_url(server: Server, template: str) -> AsyncIterator[str]:
    """A database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    await server.execute(f"create database {name} template {template}")
    yield server.url(name)
    await server.execute(f"drop database {name} with (force)")


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    """A database with nothing in it."""
    name = f"test_{uuid.uuid4().hex}"
    await server.execute(f"create database {name}")
    yield server.url(name)
    await server.execute(f"drop database {name} with (force)")


Connect = Callable[[], Awaitable[asyncpg.Connection]]


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """Opens another connection to this test's database; all are closed at the end."""
    opened: list[asyncpg.Connection] = []

    async def open_one() -> asyncpg.Connection:
        opened.append(await asyncpg.connect(database_url))
        return opened[-1]

    yield open_one
    for conn in opened:
        await conn.close(timeout=5)


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    opened: Connection = await connect()
    return opened


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(Config(), database_url) as opened:
        yield opened


@pytest.fixture
def given(conn: Connection) -> Given:
    return Given(conn)
