"""Behind a transaction-mode pooler: each transaction may run in another session, so no state is kept in one."""

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.engine import executions, lanes
from flowfabric.errors import DatabaseUnavailable, LaneNotFound
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.schema import migrate
from tests.conftest import Server
from tests.given import Given, submission

POOLER = Config(pooler=True)
READY = b"Z\0\0\0\5I"
# The messages that end the answer to a query, a sync, a flush after describe.
ENDINGS = {b"Q": b"Z", b"S": b"Z", b"H": b"TnE"}
PGBOUNCER = """
[databases]
* = host=127.0.0.1 port={behind.port} user={behind.username} password={behind.password}
[pgbouncer]
auth_type = any
pool_mode = transaction
default_pool_size = 2
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
"""
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Rotating:
    """The worst kind of pooler: the sessions take turns, so consecutive transactions run in different ones."""

    def __init__(self, path: str, sessions: int) -> None:
        self.path = path
        self.left = sessions
        self.free: asyncio.Queue[Pipe] = asyncio.Queue()

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            [length] = struct.unpack("!I", head := await client.readexactly(4))
            startup = head + await client.readexactly(length - 4)
            greeting = await self._greet(startup)
            answer.write(greeting)
            while True:
                await self._transaction(client, answer)
        answer.close()

    async def _greet(self, startup: bytes) -> bytes:
        greeting = b""
        while self.left:
            self.left -= 1
            server = await asyncio.open_unix_connection(self.path)
            server[1].write(startup)
            greeting = await self._until(server[0], b"Z")
            self.free.put_nowait(server)
            self.greeting = greeting
        return self.greeting

    async def _transaction(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """Forward messages until the server is ready outside a transaction, then release the session."""
        asked = await self._message(client)
        if asked[:1] == b"X":
            raise ConnectionError
        server = await self.free.get()
        try:
            while True:
                server[1].write(asked)
                if asked[:1] in ENDINGS:
                    said = await self._until(server[0], ENDINGS[asked[:1]])
                    answer.write(said)
                    if said[-6:] == READY:
                        return
                asked = await self._message(client)
        finally:
            self.free.put_nowait(server)

    async def _until(self, server: asyncio.StreamReader, endings: bytes) -> bytes:
        said = b""
        while True:
            said += (message := await self._message(server))
            if message[:1] in endings:
                return said

    async def _message(self, stream: asyncio.StreamReader) -> bytes:
        head = await stream.readexactly(5)
        return head + await stream.readexactly(struct.unpack("!I", head[1:])[0] - 4)


@pytest.fixture
async def rotating(database_url: str, server: Server, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of this test's database, through three sessions that take turns."""
    if server.binaries is None:
        pytest.skip("this pooler does not support passwords, which an external server may require")
    pooler = Rotating(_socket(database_url), sessions=3)
    listening = await asyncio.start_unix_server(pooler.serve, tmp_path / ".s.PGSQL.5432")
    yield f"postgresql://flowfabric@/{urlsplit(database_url).path[1:]}?host={tmp_path}&port=5432"
    listening.close()
    while not pooler.free.empty():
        pooler.free.get_nowait()[1].close()


def _socket(url: str) -> str:
    options = parse_qs(urlsplit(url).query)
    return f"{options['host'][0]}/.s.PGSQL.{options['port'][0]}"


async def _work(database: Database, lane: str) -> None:
    """The usual work of a process: single calls, a transaction of several, and an error."""
    for number in range(5):
        await database.run(lambda conn: executions.submit(conn, submission(lane=lane)))
        async with database.transaction() as conn:
            await lanes.pause_lane(conn, lane, by=str(number))
            await lanes.resume_lane(conn, lane, by=str(number))
        with pytest.raises(LaneNotFound):
            await database.run(lambda conn: lanes.pause_lane(conn, "nowhere", by="ops"))


async def test_clients_share_sessions_that_take_turns(rotating: str, given: Given) -> None:
    async with Database(POOLER, rotating) as one, Database(POOLER, rotating) as other:
        await asyncio.gather(_work(one, "a"), _work(one, "b"), _work(other, "c"), _work(other, "d"))

    assert await given.count("executions") == 20
    assert (await given.events()).count("lane_paused") == 20


async def test_without_the_setting_the_same_work_fails(rotating: str) -> None:
    async with Database(Config(pool_size=1), rotating) as database:
        with pytest.raises((asyncpg.PostgresError, DatabaseUnavailable)):
            await _work(database, "a")


async def test_no_state_is_left_in_a_session(database_url: str) -> None:
    async with Database(Config(pooler=True, pool_size=1), database_url) as database:
        await _work(database, "a")
        async with database.connection() as conn:
            assert await conn.fetch("select name from pg_settings where source = 'session'") == []
            assert await conn.fetch("select name from pg_prepared_statements") == []
            assert await conn.fetch("select name from pg_cursors where name <> ''") == []
            assert await conn.fetch("select pg_listening_channels()") == []
            assert await conn.fetch("select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()") == []


async def test_a_database_can_be_migrated_through_a_pooler(rotating: str, given: Given) -> None:
    await given.rows("drop schema flowfabric cascade")
    async with Database(POOLER, rotating) as database, database.connection() as conn:
        assert [step.number for step in await migrate.migrate(conn, POOLER)][-1] == migrate.last_migration()
        await migrate.check(conn, POOLER)


@pytest.fixture
def pgbouncer(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, through PgBouncer with two sessions."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(embedded.start(tmp_path / "data", durable=False, port=_free_port()))
        behind, port = urlsplit(server.url()), _free_port()
        settings = Path(stack.enter_context(tempfile.TemporaryDirectory()), "pgbouncer.ini")
        settings.write_text(PGBOUNCER.format(behind=behind, port=port))
        user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        for path in (settings, settings.parent):
            shutil.chown(path, user or os.geteuid())
        bouncer = subprocess.Popen([program, settings], user=user, stderr=subprocess.PIPE, text=True)
        stack.callback(bouncer.communicate)
        stack.callback(bouncer.terminate)
        assert bouncer.stderr is not None
        assert any("process up" in line for line in bouncer.stderr)
        yield f"postgresql://someone@127.0.0.1:{port}/flowfabric"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_everything_works_through_pgbouncer(pgbouncer: str) -> None:
    async with Database(POOLER, pgbouncer) as one, Database(POOLER, pgbouncer) as other:
        async with one.connection() as conn:
            await migrate.migrate(conn, POOLER)
            await migrate.check(conn, POOLER)

        await asyncio.gather(_work(one, "a"), _work(one, "b"), _work(other, "c"), _work(other, "d"))

        submitted = await one.run(executions.list_executions)
        assert len(submitted.items) == 20
