"""The Postgres of a test run: one server, a migrated template database, and a copy of it for each test."""

import hashlib
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from flowfabric.config import Config
from flowfabric.errors import DatabaseUnavailable
from flowfabric.postgres import call, embedded
from flowfabric.postgres.database import MIGRATING, Database
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from flowfabric.testing import clock

VARIABLE = "FLOWFABRIC_TEST_URL"
TEMPLATE = "flowfabric_template_"
LOCK = {"key1": 17990, "key2": 99}
PLACE = re.compile(r"(?P<server>^\w+://[^/?]*)(?:/[^?]*)?")

# A process that waits for the end of its standard input, which comes with the end of the test run, even a killed one.
# Unless the test run wrote to it, the run was killed: then this process joins the server and leaves it again, and the
# last process to leave stops the server.
CARETAKER = """
import sys
if not sys.stdin.read():
    from pathlib import Path
    from flowfabric.postgres import embedded
    data = Path(sys.argv[1])
    if data.exists():
        embedded.start(data, durable=False).stop()
"""


class Server:
    """A Postgres for tests: embedded, or the one that FLOWFABRIC_TEST_URL names."""

    def __init__(self, url: str, binaries: Path | None = None) -> None:
        self._url = url
        self.binaries = binaries

    def url(self, database: str) -> str:
        """Return the URL of a database of this server."""
        return PLACE.sub(rf"\g<server>/{database}", self._url, count=1)

    async def execute(self, statement: str) -> None:
        """Run a statement outside the databases of tests, such as `create database`."""
        async with self._administered() as conn:
            await call.script(conn, statement)

    async def make_template(self, tables: str = "") -> str:
        """Create a template database, migrated, with a movable clock and these tables; return its name.

        Created once, by one process. The name has a digest of the contents, so another version gets its own template.
        """
        name = TEMPLATE + _digest(tables)
        async with self._administered() as conn:
            await call.builtin(conn, "pg_advisory_lock", **LOCK)
            there = f"select 1 from pg_database where datname = '{name}' and not datallowconn"  # noqa: S608 - our own
            if await conn.fetch(there):
                return name
            await call.script(conn, f"drop database if exists {name} with (force)")
            await call.script(conn, f"create database {name}")
            await self._fill(name, tables)
            await call.script(conn, f"alter database {name} with allow_connections false")
        return name

    @asynccontextmanager
    async def _administered(self) -> AsyncIterator[Connection]:
        try:
            async with _connected(self.url("postgres")) as conn:
                yield conn
        except DatabaseUnavailable as unavailable:
            if VARIABLE in os.environ:
                unavailable.add_note(f"The tests use the Postgres that {VARIABLE} names.")
            raise

    async def _fill(self, name: str, tables: str) -> None:
        async with _connected(self.url(name)) as conn:
            await migrate.migrate(conn, Config())
            await clock.install_clock(conn)
            await call.script(conn, clock.text("fresh.sql"))
            if tables:
                await call.script(conn, tables)

    @asynccontextmanager
    async def database(self, template: str | None = None) -> AsyncIterator[str]:
        """Create a database, empty or from a template, and yield its URL; dropped at the end, even if it is in use."""
        name = await self.create(template)
        try:
            yield self.url(name)
        finally:
            await self.drop(name)

    async def create(self, template: str | None = None) -> str:
        """Create a database, empty or from a template, and return its name."""
        name = f"test_{uuid.uuid4().hex}"
        await self.execute(f"create database {name}" + (f" template {template}" if template else ""))
        return name

    async def drop(self, name: str) -> None:
        """Drop a database, even if it is in use."""
        await self.execute(f"drop database if exists {name} with (force)")


@contextmanager
def running(data: Path) -> Iterator[Server]:
    """Yield the server that FLOWFABRIC_TEST_URL names, or an embedded one, shared by all processes with the same data.

    The embedded server stops when the last of these processes leaves or is killed.
    """
    given = os.environ.get(VARIABLE)
    if given:
        yield Server(given)
        return
    with _stopped_if_killed(data), _start(data) as postgres:
        yield Server(postgres.url(), postgres.binaries)


def _start(data: Path) -> embedded.Server:
    try:
        return embedded.start(data, durable=False)
    except embedded.EmbeddedUnavailable as unavailable:
        unavailable.add_note(f"To run the tests on another Postgres, set {VARIABLE} to its URL.")
        raise


@contextmanager
def _stopped_if_killed(data: Path) -> Iterator[None]:
    """Have a second process stop the server if this one is killed."""
    command = [sys.executable, "-S", "-c", CARETAKER, str(data)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as caretaker:
        try:
            yield
        finally:
            caretaker.communicate(b"all is well")


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    async with Database(Config(), url).own_connection(MIGRATING) as conn:
        yield conn


def _digest(tables: str) -> str:
    made_of = [migrate.digest(), *(step.text for step in migrate.migrations()), clock.text("clock.sql"), tables]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:12]
