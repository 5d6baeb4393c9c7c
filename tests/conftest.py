"""Fixtures for all tests: one embedded Postgres per run, and a fresh copy of a migrated database for each test."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest

from flowfabric import App
from flowfabric.config import Config
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.testing import Server as Server
from tests.databases import Databases
from tests.given import Given
from tests.provoked import Provoked
from tests.races import Race

SOAK = os.environ.get("FLOWFABRIC_SOAK") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Record the error codes that the tests provoke; a run of all of them must provoke every one."""
    provoked = Provoked(config)
    provoked.start()
    config.pluginmanager.register(provoked, "provoked")


@pytest.fixture(scope="session")
def server(flowfabric_server: Server) -> Server:
    """The Postgres of this test run, started by the testing kit."""
    return flowfabric_server


@pytest.fixture(scope="session")
def template(flowfabric_template: str) -> str:
    """A migrated database with a clock that can be moved, made once per run."""
    return flowfabric_template


@pytest.fixture(scope="session")
def databases(server: Server, template: str) -> Iterator[Databases]:
    """Copies of the template, made ahead of the tests that use them."""
    copies = Databases(server, template)
    copies.start()
    yield copies
    copies.stop()


@pytest.fixture
def database_url(server: Server, databases: Databases) -> Iterator[str]:
    """The URL of a database that only this test uses."""
    name = databases.take()
    yield server.url(name)
    databases.drop(name)


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    """The URL of an empty database, without the schema."""
    async with server.database() as url:
        yield url


Connect = Callable[[], Awaitable[asyncpg.Connection]]


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """A function that opens another connection to the test's database; all are closed at the end."""
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


@pytest.fixture
async def race(given: Given, connect: Connect) -> Race:
    """Two sessions, one of which must wait for the other."""
    return Race(given, await connect(), await connect())


@pytest.fixture
def app(database_url: str) -> App:
    """An app on the database of this test, not yet open."""
    return App(url=database_url)
