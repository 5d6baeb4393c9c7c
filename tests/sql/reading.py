"""How much a call reads, as Postgres counts it, and the table of calls that plan tests share."""

from collections.abc import Awaitable, Callable, Sequence
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
    """Rows and index entries that were read, and the number of sequential scans."""

    rows: int
    whole: int


class Plan(NamedTuple):
    """A line in a table of plan tests: a call, its data, and the most rows and index entries it may read."""

    fill: Callable[..., Awaitable[Any]]
    """Makes the data that the call is about, without being measured; its result is passed to the call."""
    call: Callable[[asyncpg.Connection, Any], Awaitable[Any]]
    most: int
    answers: Callable[[Any], object] = lambda _: True
    """Whether the answer of the call is the expected one."""

    async def check(self, conn: asyncpg.Connection, filled: Any, tables: Sequence[str]) -> None:
        """Make the call, in a transaction, and check its answer and what it read."""
        answer, read = await reading(conn, self.call(conn, filled), tables)
        assert self.answers(answer), answer
        assert (read.rows <= self.most, read.whole) == (True, 0), read


async def reading(conn: asyncpg.Connection, call: Awaitable[Any], tables: Sequence[str]) -> tuple[Any, Read]:
    """The answer of a call, and what it read of these tables. Counters are exact only within one transaction."""
    before = await conn.fetchrow(READ, tables)
    answer = await call
    after = await conn.fetchrow(READ, tables)
    return answer, Read(after["rows"] - before["rows"], after["whole"] - before["whole"])


async def pin(conn: asyncpg.Connection) -> None:
    """Keep a snapshot open until the connection closes, so that no old row version can be removed.

    A concurrent analyze does the same for a moment. With the snapshot pinned, every test reads the highest counts.
    """
    await conn.execute("begin isolation level repeatable read; select 1")
