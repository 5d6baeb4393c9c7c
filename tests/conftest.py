"""What tests stand on: one embedded Postgres for the run, and a fresh copy of a migrated database for each test."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.testing import Server as Server
from tests.given import Given

SOAK = os.environ.get("FLOWFABRIC_SOAK") == "1"


@pytest.fixture(scope="session")
def server(flowfabric_server: Server) -> Server:
    """The Postgres of this test run, the testing kit's."""
    return flowfabric_server


@pytest.fixture(scope="session")
def template(flowfabric_template: str) -> str:
    """A migrated database with a clock that can be moved, made once per run."""
    return flowfabric_template


@pytest.fixture
async def database_url(server: Server, template: str) -> AsyncIterator[str]:
    """A database of this test's own."""
    async with server.database(template) as url:
        yield url


@pytest.fixture
async def empty_url(server: Server) -> AsyncIterator[str]:
    """A database with nothing in it."""
    async with server.database() as url:
        yield url


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
