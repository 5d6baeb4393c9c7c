"""The environment of a scenario: a Postgres with full durability, and a fresh database for every measurement."""

import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import asyncpg

from benchmarks import processors
from flowfabric.config import Config
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.schema import migrate

TEMPLATE = "benchmark_template"
EMPTY = "template0"
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size")


class Ground:
    """One fresh, migrated database, the timer of the measurement, and the other figures it reports."""

    def __init__(self, config: Config, url: str, *, directory: Path, scale: float = 1.0, server: int = 0) -> None:
        self.config = config
        self.url = url
        self.scale = scale
        self.directory = directory
        self.server = server
        """The process id of Postgres."""
        self.seconds = 0.0
        self.processor_seconds = 0.0
        """Processor time of Postgres and of all processes that this one has started, in the timed blocks."""
        self.figures: dict[str, float] = {}

    def scaled(self, count: int, *, least: int = 1) -> int:
        """The count for this run, reduced by `--scale`."""
        return max(round(count * self.scale), least)

    def tell(self, **figures: float) -> None:
        """Record additional figures."""
        self.figures.update(figures)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time spent in this block."""
        used, start = processors.seconds(os.getpid(), self.server), time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start
        self.processor_seconds += processors.seconds(os.getpid(), self.server) - used

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        """The connections of the engine."""
        async with Database(self.config, self.url) as database:
            yield database

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[asyncpg.Connection]:
        """A bare connection, to measure Postgres without the engine."""
        conn = await asyncpg.connect(self.url)
        try:
            yield conn
        finally:
            await conn.close()


async def prepare(server: embedded.Server) -> None:
    """Create the template database that every measurement copies."""
    await _execute(server, f"create database {TEMPLATE}")
    conn = await asyncpg.connect(server.url(TEMPLATE))
    try:
        await migrate.migrate(conn, Config())
        await conn.execute("vacuum analyze")
    finally:
        await conn.close()


@asynccontextmanager
async def fresh(
    server: embedded.Server, name: str, *, data: Path, scale: float = 1.0, template: str = TEMPLATE
) -> AsyncIterator[Ground]:
    """A database for one measurement, and a directory on the same disk.

    A checkpoint comes first, so that no measurement pays for the writes of the one before.
    """
    await _execute(server, f"create database {name} template {template} strategy file_copy")
    await _execute(server, "checkpoint")
    try:
        with tempfile.TemporaryDirectory(dir=data) as directory:
            url = server.url(name)
            yield Ground(Config(), url, scale=scale, directory=Path(directory), server=await _process(url))
    finally:
        await _execute(server, f"drop database {name} with (force)")


@asynccontextmanager
async def own_server(ground: Ground) -> AsyncIterator[tuple[Path, Ground]]:
    """A server for a scenario that kills it: its data directory, on the same disk, and a fresh database."""
    data = ground.directory / "postgres"
    with embedded.start(data) as server:
        await prepare(server)
        async with fresh(server, "measured", data=ground.directory, scale=ground.scale) as own:
            yield data, own


async def circumstances(server: embedded.Server, load: float) -> Mapping[str, object]:
    """What one has to know to compare two results; `load` is the load of the machine before the run."""
    conn = await asyncpg.connect(server.url())
    try:
        settings = {name: await conn.fetchval("select current_setting($1)", name) for name in SETTINGS}
        postgres = await conn.fetchval("select current_setting('server_version')")
    finally:
        await conn.close()
    ours = {name: found for name in ("flowfabric", "asyncpg", "msgspec", "uvloop") if (found := _version(name))}
    return {
        "versions": {"postgres": postgres},
        "settings": settings,
        "ours": {**ours, "python": platform.python_version()},
        "own_settings": {"pool_size": Config().pool_size},
        "machine": {"cpus": os.cpu_count(), "load": load, "system": platform.system(), "processor": platform.machine()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def _process(url: str) -> int:
    """The process id of a server: the parent of each of its sessions."""
    conn = await asyncpg.connect(url)
    try:
        return processors.parent(conn.get_server_pid())
    finally:
        await conn.close()


async def _execute(server: embedded.Server, statement: str) -> None:
    conn = await asyncpg.connect(server.url("postgres"))
    try:
        await conn.execute(statement)
    finally:
        await conn.close()
