"""What a call reads, as Postgres counts it."""

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

import asyncpg

READ = """
select sum(pg_stat_get_xact_tuples_returned(x.id) + pg_stat_get_xact_tuples_fetched(x.id))::int as rows,
       sum(pg_stat_get_xact_numscans(x.id)) filter (where x.id = c.oid)::int as whole
from pg_class c cross join lateral (
    select c.oid as id union all select i.indexrelid from pg_index i where i.indrelid = c.oid) x
where c.relnamespace = 'flowfabric'::regnamespace and c.relname = any ($1)
"""


class Read(NamedTuple):
    """Rows and index entries that were read, and how often a table was read whole."""

    rows: int
    whole: int


async def reading(conn: asyncpg.Connection, call: Awaitable[Any], tables: Sequence[str]) -> tuple[Any, Read]:
    """What a call answers, and what it read of these tables. In a transaction: the counters are exact within one."""
    before = await conn.fetchrow(READ, tables)
    answer = await call
    after = await conn.fetchrow(READ, tables)
    return answer, Read(after["rows"] - before["rows"], after["whole"] - before["whole"])


async def pin(conn: asyncpg.Connection) -> None:
    """Look at the database as it is now for as long as the connection is open, as an analyze beside a test does for a
    moment: what changes after it leaves its old version to be read again, so that counts are at their highest, always.
    """
    await conn.execute("begin isolation level repeatable read; select 1")
