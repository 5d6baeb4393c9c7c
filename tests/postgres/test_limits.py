"""Every await on a socket has a limit: what our code may await at all, and each kind of use on a silent connection."""

import ast
import asyncio
import inspect
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from benchmarks.proxy import Proxy, proxied
from flowfabric import App
from flowfabric.config import Config
from flowfabric.engine import attempts
from flowfabric.errors import DatabaseUnavailable
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection, OwnConnection
from flowfabric.postgres.pool import Lendable, Pool
from tests import sources
from tests.given import Given

LIMIT = timedelta(seconds=0.3)
SHORT = Config(call_timeout=LIMIT, timeout=LIMIT)
SOON = 10.0  # seconds: far above every limit here, far below the limits that hold without our settings

# Methods of a connection without a limit of their own, and where it comes from.
LIMITED_OTHERWISE = {
    "add_listener": "it sends LISTEN with `fetch`",
    "close": "`Pool.close` allows all connections a second together",
}
# Where our source opens a socket.
OPENING = {
    "postgres/driver.py": "asyncpg.connect has a timeout; the session is prepared with limited calls",
    "postgres/embedded.py": "a Unix socket with a timeout",
}


def coroutines(kind: type) -> set[str]:
    return {name for name, method in vars(kind).items() if inspect.iscoroutinefunction(method)}


def test_every_method_that_our_code_can_await_on_a_connection_is_limited() -> None:
    awaited = coroutines(Connection) | coroutines(Lendable)

    assert {n for n in awaited if not hasattr(getattr(OwnConnection, n), "__wrapped__")} == set(LIMITED_OTHERWISE)


def test_our_code_uses_no_other_method_of_the_driver() -> None:
    known = coroutines(Connection) | coroutines(Lendable)
    others = {name for name in coroutines(asyncpg.Connection) - known if not name.startswith("_")} | {"cursor"}
    used = [
        (file.name, ast.unparse(node))
        for file in sources.python_files(sources.SRC)
        if file.name != "callers.py"  # calls the drivers of callers, which have limits of their own
        for node in ast.walk(sources.parsed(file))
        if isinstance(node, ast.Attribute) and node.attr in others and ast.unparse(node.value).endswith("conn")
    ]

    assert used == []


def test_only_these_modules_open_sockets() -> None:
    opening = ("asyncpg.connect(", "socket.socket(", "open_connection(", "open_unix_connection(", "create_connection(")
    found = {
        str(file.relative_to(sources.SRC))
        for file in sources.python_files(sources.SRC)
        if any(words in file.read_text() for words in opening)
    }

    assert found == set(OPENING)


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as opened:
        yield opened


async def fetches(conn: Connection, proxy: Proxy) -> None:
    proxy.silence()
    await conn.fetch("select 1")


async def executes(conn: Connection, proxy: Proxy) -> None:
    proxy.silence()
    await conn.execute("select 1; select 2")


async def begins(conn: Connection, proxy: Proxy) -> None:
    proxy.silence()
    async with conn.transaction():
        pass


async def commits(conn: Connection, proxy: Proxy) -> None:
    async with conn.transaction():
        proxy.silence()


async def rolls_back(conn: Connection, proxy: Proxy) -> None:
    async with conn.transaction():
        proxy.silence()
        raise KeyError("something else went wrong")


async def releases_a_savepoint(conn: Connection, proxy: Proxy) -> None:
    async with conn.transaction(), conn.transaction():
        proxy.silence()


async def listens(conn: Connection, proxy: Proxy) -> None:
    proxy.silence()
    await conn.add_listener("flowfabric", print)


USES = [fetches, executes, begins, commits, rolls_back, releases_a_savepoint, listens]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["pooled", "of sweeps", "own"])
async def test_every_use_of_a_silent_connection_ends_with_an_error(
    proxy: Proxy, kind: str, use: Callable[[Connection, Proxy], Awaitable[None]]
) -> None:
    async with Database(SHORT, proxy.url) as database, asyncio.timeout(SOON):
        borrowed = database.own_connection() if kind == "own" else database.connection(aside=kind == "of sweeps")
        with pytest.raises(DatabaseUnavailable, match="did not answer"):
            async with borrowed as conn:
                await use(conn, proxy)


@pytest.mark.parametrize(
    ("pooler", "words"),
    [(False, b""), (False, b"server_version"), (False, b"set_config"), (True, b"BEGIN"), (True, b"ROLLBACK")],
)
async def test_connecting_ends_with_an_error_wherever_the_server_goes_silent(
    proxy: Proxy, pooler: bool, words: bytes
) -> None:
    proxy.lose(words)
    config = Config(call_timeout=LIMIT, timeout=LIMIT, pooler=pooler)

    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        async with asyncio.timeout(SOON), Database(config, proxy.url):
            pass


async def test_closing_a_pool_of_silent_connections_takes_a_second(proxy: Proxy) -> None:
    database = Database(SHORT, proxy.url)
    pool: Pool[OwnConnection] = Pool(database._connect, 2)
    pool.give_back(await pool.borrow(SOON))
    proxy.silence()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await pool.close()
    assert time.monotonic() - began < SOON


async def test_a_result_arrives_although_every_connection_went_silent(proxy: Proxy, given: Given) -> None:
    async with App(url=proxy.url, call_timeout=LIMIT) as app, asyncio.timeout(SOON):
        execution = await app.submit("report")
        waiting = asyncio.create_task(execution.result())
        await asyncio.sleep(0)
        proxy.silence()
        [claim] = await given.claim()
        await attempts.complete(given.conn, claim.fence, b'"done"')

        assert await waiting == "done"


def test_an_embedded_server_that_accepts_nothing_is_not_waited_for() -> None:
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{short}/.s.PGSQL.5432")
        listening.listen(0)
        place = embedded.Place(Path(short), Path(short), Path(short))
        place.cluster.mkdir()
        (place.cluster / "postmaster.pid").write_text(f"1\n{short}\n0\n5432\n{short}\n\n0\nready\n")

        assert place.listening() is not None  # the queue has room for one, and now it is full
        assert place.listening() is None
