"""Peers whose only server is the measured Postgres."""

from pathlib import Path
from typing import Any

import psycopg

from benchmarks.peers.engine import Engine


class OnPostgres(Engine):
    """A peer with its own connection for counting and vacuuming."""

    on_postgres = True

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url, directory)
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._pinned: psycopg.AsyncConnection[Any] | None = None

    async def __aexit__(self, *exc: object) -> None:
        for conn in (self._conn, self._pinned):
            if conn is not None:
                await conn.close()

    async def value(self, query: str, *arguments: object) -> Any:
        """The first column of the first row."""
        if self._conn is None:
            self._conn = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        found = await self._conn.execute(query, arguments)
        row = await found.fetchone() if found.description else None
        return row[0] if row else None

    async def settle(self) -> None:
        await self.value("vacuum (analyze)")
        await self.value("checkpoint")

    async def size(self) -> int:
        await self.value("vacuum")
        return int(await self.value("select pg_database_size(current_database())"))

    async def pin(self) -> None:
        self._pinned = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        await self._pinned.execute("begin isolation level repeatable read")
        await self._pinned.execute("select txid_current()")
