"""The tests of the log start from an empty one."""

import asyncpg
import pytest


@pytest.fixture(autouse=True)
async def empty_log(conn: asyncpg.Connection) -> None:
    """Forget what bringing the database to this version has written."""
    await conn.execute("truncate flowfabric.events; alter sequence flowfabric.event_ids restart")
    await conn.execute("update flowfabric.horizon set id = 0, mark = null, holders = '{}'")
