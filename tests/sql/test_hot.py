"""Renewals touch no index: they are HOT updates."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from flowfabric import testing
from flowfabric.config import Config
from flowfabric.engine import claims, executions
from flowfabric.model import Fence, Renewed
from flowfabric.postgres import embedded
from flowfabric.schema import migrate
from tests.conftest import SOAK
from tests.given import Given, submission

LEASES = 10_000 if SOAK else 2_000

UPDATED = """
select pg_stat_get_xact_tuples_updated(c) as updated, pg_stat_get_xact_tuples_hot_updated(c) as hot
from (select 'flowfabric.tickets'::regclass) as t (c)
"""


async def hot_renewals(conn: asyncpg.Connection, given: Given, fences: list[Fence]) -> int:
    """Renew all leases in one call, and count how many of the updates were HOT."""
    await given.time_passes(seconds=10)
    async with conn.transaction():
        [before] = await given.rows(UPDATED)
        renewed = await claims.renew_many(conn, fences)
        [after] = await given.rows(UPDATED)
    assert [type(answer) for answer in renewed] == [Renewed] * LEASES
    assert after["updated"] - before["updated"] == LEASES
    return int(after["hot"] - before["hot"])


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[asyncpg.Connection]:
    """A server without other sessions or autovacuum.

    Any open snapshot would keep old row versions in their pages, and updates would move to other pages and not be HOT.
    """
    with embedded.start(tmp_path / "postgres", durable=False, settings={"autovacuum": "off"}) as server:
        conn = await asyncpg.connect(server.url())
        await migrate.migrate(conn, Config())
        await testing.install_clock(conn)
        yield conn
        await conn.close()


async def test_renewals_are_hot_updates(alone: asyncpg.Connection) -> None:
    given = Given(alone)
    await executions.submit_many(alone, [submission()] * LEASES)
    fences = []
    while some := await claims.claim(alone, "w", instance="w-1", lanes=["default"], take=1_000):
        fences += [taken.fence for taken in some]

    # A ticket grows when it is claimed. The first renewal moves the few that no longer fit twice into their page.
    assert await hot_renewals(alone, given, fences) >= 0.95 * LEASES
    for _ in range(3):
        assert await hot_renewals(alone, given, fences) == LEASES
