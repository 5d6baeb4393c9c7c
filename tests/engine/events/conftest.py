"""The tests of the log start with an empty log."""

import asyncpg
import pytest

from tests.conftest import Connect
from tests.engine.events.log import write_directly


@pytest.fixture
def connect_directly(connect: Connect) -> Connect:
    """Opens sessions like those of our own pool, in which events get their ids before the commit."""

    async def open_one() -> asyncpg.Connection:
        conn = await connect()
        await write_directly(conn)
        return conn

    return open_one


@pytest.fixture(autouse=True)
async def empty_log(conn: asyncpg.Connection) -> None:
    """Remove the events that the migrations wrote."""
    await conn.execute("truncate flowfabric.events; alter sequence flowfabric.event_ids restart")
    await conn.execute("update flowfabric.horizon set id = 0, mark = null, holders = '{}'")
