"""What a measurement has written, read from the write-ahead log: rows, index entries and bytes."""

import asyncio
import re
from collections.abc import Iterable
from typing import NamedTuple, Self

import asyncpg

from flowfabric.postgres import embedded

RECORD = re.compile(r"rmgr: (\w+) +len \(rec/tot\): +(\d+)/.*?desc: (\w+)")
MADE = {("Heap", "INSERT"), ("Heap", "UPDATE"), ("Heap", "HOT_UPDATE")}
# A commit that waits until the log before it is on disk, also on a server that is not durable.
FLUSH = "select set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'benchmark', '')"
ENTERED = {("Btree", kind) for kind in ("INSERT_LEAF", "INSERT_POST", "SPLIT_L", "SPLIT_R")}


class Written(NamedTuple):
    """Counts of one measurement. Copies of whole pages, which depend on the last checkpoint, are not in the bytes."""

    rows: float
    versions: float
    entries: float
    bytes: float

    def each(self, count: int) -> "Written":
        """The same for one of `count` items."""
        return Written(*(number / count for number in self))


def counted(records: Iterable[str], database: int) -> Written:
    """Count the records of `pg_waldump`: rows and index entries of this database, and the bytes of all records."""
    rows = versions = entries = size = 0
    for record in records:
        if (found := RECORD.match(record)) is None:
            continue
        kind = found[1], found[3]
        size += int(found[2])
        if re.search(rf": rel \d+/{database}/", record):
            rows += kind == ("Heap", "INSERT")
            versions += kind in MADE
            entries += kind in ENTERED
    return Written(rows, versions, entries, size)


class Wal:
    """Reads what is written from `begin` to `written`. Nobody else may use the server meanwhile."""

    def __init__(self, conn: asyncpg.Connection, start: str) -> None:
        self.conn = conn
        self.start = start

    @classmethod
    async def begin(cls, conn: asyncpg.Connection) -> Self:
        return cls(conn, await conn.fetchval("select pg_current_wal_insert_lsn()::text"))

    async def written(self) -> Written:
        """Read the log up to now."""
        end = await self.conn.fetchval("select pg_current_wal_insert_lsn()::text")
        await self.conn.execute(FLUSH)
        database, directory = await self.conn.fetchrow(
            "select oid::int, current_setting('data_directory') from pg_database where datname = current_database()"
        )
        process = await asyncio.create_subprocess_exec(
            *(find_waldump(), f"--path={directory}/pg_wal", f"--start={self.start}", f"--end={end}"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"pg_waldump could not read the log of {directory}; standard error says why")
        return counted(out.decode().splitlines(), database)


def find_waldump() -> str:
    return str(embedded.find_binaries() / "pg_waldump")
