"""Databases that take long to fill: made once for the tests of a file, each of which rolls back its changes."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from flowfabric.testing import Server


@contextmanager
def copied(server: Server, template: str) -> Iterator[str]:
    """The URL of a copy of a database, dropped at the end."""
    name = f"test_{uuid.uuid4().hex}"
    asyncio.run(server.execute(f"create database {name} template {template}"))
    yield server.url(name)
    asyncio.run(server.execute(f"drop database {name} with (force)"))


@asynccontextmanager
async def undone(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose changes are rolled back at the end."""
    conn = await asyncpg.connect(url)
    transaction = conn.transaction()
    await transaction.start()
    yield conn
    await transaction.rollback()
    await conn.close()
