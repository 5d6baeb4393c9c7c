"""Renewals touch no index: they are HOT updates, in the page where the ticket is."""

import asyncpg

from flowfabric.engine import claims, executions
from flowfabric.model import Fence, Renewed
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


async def test_renewals_are_hot_updates(conn: asyncpg.Connection, given: Given) -> None:
    await executions.submit_many(conn, [submission()] * LEASES)
    fences = []
    while some := await claims.claim(conn, "w", instance="w-1", lanes=["default"], take=1_000):
        fences += [taken.fence for taken in some]

    # A ticket grows when it is claimed, so the first renewal moves the few that do not fit twice into their page. And a
    # snapshot that somebody holds, such as an autovacuum that analyses, keeps old versions and their pages full for a
    # while. With an index in the way no pass would ever be HOT.
    passes = 0
    while await hot_renewals(conn, given, fences) < LEASES:
        passes += 1
        assert passes < 20, "some renewals touch an index, or never fit into their page"
