"""Databases that take long to fill: made once for the tests of a file, each of which undoes what it does."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from flowfabric.testing import Server


@contextmanager
def copied(server: Server, template: str) -> Iterator[str]:
    """Where a copy of a database is, for as long as it is used."""
    name = f"test_{uuid.uuid4().hex}"
    asyncio.run(server.execute(f"create database {name} template {template}"))
    yield server.url(name)
    asyncio.run(server.execute(f"drop database {name} with (force)"))


@asynccontextmanager
async def undone(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection on which all that is done is undone in the end."""
    conn = await asyncpg.connect(url)
    transaction = conn.transaction()
    await transaction.start()
    yield conn
    await transaction.rollback()
    await conn.close()
