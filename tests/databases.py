"""Databases for the tests: copies of a template that are made ahead of time and dropped later, in a thread."""

import asyncio
import threading
import uuid
from queue import SimpleQueue
from typing import NamedTuple

import asyncpg

from flowfabric.testing import Server


class Copy(NamedTuple):
    """A wish for a new copy."""


class Drop(NamedTuple):
    """A database that no test needs any more."""

    name: str


class Databases:
    """Copies of a template over one connection: the next one is made while a test still uses the last one."""

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        # Copying files takes less than half the time, and costs a checkpoint: cheap only where nothing is durable.
        strategy = " strategy file_copy" if server.binaries else ""
        self._copy = f"create database {{}} template {template}{strategy}"
        self._jobs: SimpleQueue[Copy | Drop | None] = SimpleQueue()
        self._made: SimpleQueue[str | Exception] = SimpleQueue()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="databases")

    def start(self) -> None:
        """Make the first copy."""
        self._thread.start()
        self._jobs.put(Copy())

    def take(self) -> str:
        """Return the name of a copy, and have the next one made."""
        self._jobs.put(Copy())
        made = self._made.get()
        if isinstance(made, Exception):
            raise made
        return made

    def drop(self, name: str) -> None:
        """Have a copy removed, even if sessions still use it."""
        self._jobs.put(Drop(name))

    def stop(self) -> None:
        """Wait until everything is dropped; raise the first error of a drop."""
        self._jobs.put(None)
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    async def _work(self) -> None:
        conn: asyncpg.Connection | None = None
        while (job := self._jobs.get()) is not None:
            try:
                conn = conn or await asyncpg.connect(self._server.url("postgres"))
                await self._do(conn, job)
            except Exception as error:
                self._made.put(error) if isinstance(job, Copy) else self._failed.append(error)
        if conn is not None:
            while not self._made.empty():
                await self._do(conn, Drop(str(self._made.get())))
            await conn.close()

    async def _do(self, conn: asyncpg.Connection, job: Copy | Drop) -> None:
        match job:
            case Copy():
                name = f"test_{uuid.uuid4().hex}"
                await conn.execute(self._copy.format(name))
                self._made.put(name)
            case Drop(name):
                await conn.execute(f"drop database if exists {name} with (force)")
