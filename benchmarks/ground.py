"""What a scenario stands on: a Postgres of its own with full durability, and a fresh database for every measurement."""

import platform
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count

import asyncpg

from flowfabric import embedded, migrate
from flowfabric.config import Config
from flowfabric.db import Database

TEMPLATE = "benchmark_template"
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size")


class Ground:
    """One fresh, migrated database, and the watch that measures what is done on it."""

    def __init__(self, config: Config, url: str) -> None:
        self.config = config
        self.url = url
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Only what happens in here is measured."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        """The engine's own connections."""
        async with Database(self.config, self.url) as database:
            yield database

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[asyncpg.Connection]:
        """A bare connection, for what Postgres does without us."""
        conn = await asyncpg.connect(self.url)
        try:
            yield conn
        finally:
            await conn.close()


async def prepare(server: embedded.Server) -> None:
    """Make the database that every measurement starts from a copy of."""
    await _execute(server, f"create database {TEMPLATE}")
    conn = await asyncpg.connect(server.url(TEMPLATE))
    try:
        await migrate.migrate(conn, Config())
        await conn.execute("vacuum analyze")
    finally:
        await conn.close()


@asynccontextmanager
async def fresh(server: embedded.Server, name: str) -> AsyncIterator[Ground]:
    """A database for one measurement. A checkpoint first, so that none pays for what the one before has written."""
    await _execute(server, f"create database {name} template {TEMPLATE} strategy file_copy")
    await _execute(server, "checkpoint")
    try:
        yield Ground(Config(), server.url(name))
    finally:
        await _execute(server, f"drop database {name} with (force)")


async def circumstances(server: embedded.Server) -> Mapping[str, object]:
    """What somebody who compares two results has to know."""
    conn = await asyncpg.connect(server.url())
    try:
        settings = {name: await conn.fetchval("select current_setting($1)", name) for name in SETTINGS}
        postgres = await conn.fetchval("select current_setting('server_version')")
    finally:
        await conn.close()
    versions = {name: found for name in ("flowfabric", "asyncpg", "msgspec", "uvloop") if (found := _version(name))}
    return {
        "versions": {**versions, "postgres": postgres, "python": platform.python_version()},
        "settings": {**settings, "pool_size": Config().pool_size},
        "machine": {"cpus": cpu_count(), "system": platform.system(), "processor": platform.machine()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def _execute(server: embedded.Server, statement: str) -> None:
    conn = await asyncpg.connect(server.url("postgres"))
    try:
        await conn.execute(statement)
    finally:
        await conn.close()
