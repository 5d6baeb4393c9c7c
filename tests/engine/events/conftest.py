"""The tests of the log start with an empty log."""

import asyncpg
import pytest


@pytest.fixture(autouse=True)
async def empty_log(conn: asyncpg.Connection) -> None:
    """Remove the events that the migrations wrote."""
    await conn.execute("truncate flowfabric.events; alter sequence flowfabric.event_ids restart")
    await conn.execute("update flowfabric.horizon set id = 0, mark = null, holders = '{}'")
