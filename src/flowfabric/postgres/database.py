"""The database: the connections of one process, to a Postgres server by URL or to the embedded one."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from flowfabric import errors
from flowfabric.config import URL_SHAPE, Config
from flowfabric.postgres import driver, embedded
from flowfabric.postgres.backoff import Backoff, lock_backoff
from flowfabric.postgres.driver import DRIVER, UNFIT, Connection, Limits, OwnConnection, Session
from flowfabric.postgres.pool import Closing, Pool

log = logging.getLogger("flowfabric.postgres")

T = TypeVar("T")

SWEEP_CONNECTIONS = 2  # separate, so that no call waits for a sweep or meets a session that has only run sweeps
# How many times as long as a call may take: one pass of a sweep, and one statement of a migration.
SWEEPING, MIGRATING = 6, 360
LOCK_WAIT = 0.1  # seconds that a call waits for a lock of another transaction before it releases its connection
WATCH_INTERVAL, FAILED_PAUSE = 0.5, 5.0  # seconds between two looks at the embedded Postgres


@asynccontextmanager
async def open_database(config: Config) -> AsyncIterator["Database"]:
    """Open the connections that the settings name; without a URL, start the embedded Postgres and stop it at the end.

    Raises `BadSetting` for a malformed URL, `DatabaseUnavailable`, `EmbeddedUnavailable`.
    """
    if config.url is not None:
        async with Database(config, config.url) as database:
            yield database
        return
    server = await asyncio.to_thread(embedded.start, config.data)
    watching = asyncio.create_task(_restart_when_down(server), name="embedded Postgres: restart")
    try:
        async with Database(config, server.url()) as database:
            yield database
    finally:
        watching.cancel()
        try:
            await asyncio.to_thread(server.stop)
        except RuntimeError:  # the process is exiting and starts no threads any more
            server.stop()


async def _restart_when_down(server: embedded.Server) -> None:
    """Start the embedded Postgres again when it was killed; no administrator does."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL)
        try:
            if server.is_down():
                await asyncio.to_thread(server.restart)
        except (errors.EmbeddedUnavailable, OSError) as error:
            log.warning("the embedded Postgres is down and cannot be started, retrying: %s", error)
            await asyncio.sleep(FAILED_PAUSE)


class Database:
    """The connections of one process to one Postgres."""

    def __init__(self, config: Config, url: str) -> None:
        self.config = config
        self._timeout = config.timeout.total_seconds()
        self._call_timeout = config.call_timeout.total_seconds()
        self._url = url
        self._pool: Pool[Any] | None = None
        self._aside: Pool[Any] | None = None
        self._steps: Pool[Any] | None = None
        self._silent: list[Session] = []

    async def __aenter__(self) -> Self:
        self._pool = Pool(partial(self._connect, lock=LOCK_WAIT), self.config.pool_size)
        self._aside = Pool(partial(self._connect, SWEEPING, lock=LOCK_WAIT), SWEEP_CONNECTIONS)
        # Separate, so that code of users that keeps a transaction open never keeps calls of the engine waiting.
        self._steps = Pool(self._connect, self.config.pool_size)
        try:
            self._pool.give_back(await self._pool.borrow(self._timeout))
        except (ValueError, OverflowError):  # a port above 65535 overflows
            # The driver's own message may quote the password.
            raise errors.BadSetting(f"FLOWFABRIC_URL is invalid; {URL_SHAPE}") from None
        except DRIVER as error:
            raise errors.DatabaseUnavailable(
                f"could not connect{self._where()}: {self._why(error)}; check FLOWFABRIC_URL"
            ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections when those in use are back, or after the setting `timeout`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(*(pool.close() for pool in self._pools), return_exceptions=True)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Limit how long calls in flight may keep the block waiting: after the setting `timeout` all of them fail."""
        given_up = asyncio.get_running_loop().call_later(self._timeout, self._abandon)
        try:
            yield
        finally:
            given_up.cancel()

    def _abandon(self) -> None:
        log.warning("the database has not answered for %g s while this process closes; giving up", self._timeout)
        for pool in self._pools:
            pool.abandon()

    @property
    def _pools(self) -> list[Pool[Any]]:
        return [pool for pool in (self._aside, self._steps, self._pool) if pool is not None]

    @asynccontextmanager
    async def connection(self, *, aside: bool = False, waits: bool = True) -> AsyncIterator[Connection]:
        """Borrow a connection for the length of the block; with `aside`, one of those that only sweeps use.

        A call that needs a locked row is retried for as long as a call may take, unless it is in a transaction; if the
        connection does not wait, the call raises `RowLocked` after a tenth of a second.
        """
        async with self._connection(self._aside if aside else self._pool, waits=waits) as conn:
            yield conn

    @asynccontextmanager
    async def _connection(self, lender: Pool[Any] | None, *, waits: bool) -> AsyncIterator[Connection]:
        pool, conn = await self._borrow(lender)
        conn.waits, conn.lock_limit = waits, LOCK_WAIT if self.config.pooler else None
        try:
            with driver.translated(conn, DRIVER[:-1]):  # not OSError: the block may use other files and sockets
                yield conn
        except errors.DatabaseUnavailable as unavailable:
            if isinstance(unavailable.__cause__, UNFIT):
                conn.terminate()
            raise
        finally:
            if conn.silent:
                self._distrust(conn)
            pool.give_back(conn)

    def _distrust(self, silent: OwnConnection) -> None:
        """Drop the idle connections too: they went the same way. The next call ends the session on the server."""
        for pool in self._pools:
            pool.drop_idle()
        if silent.session is not None:
            self._silent.append(silent.session)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Borrow a connection with an open transaction: the calls on it happen together or not at all.

        Its events get their ids when it commits, so that it delays no reader of the log however long it is open.
        """
        async with self.connection() as conn, conn.transaction():
            await driver.prepare_for_caller(conn)
            yield conn

    @asynccontextmanager
    async def own_connection(self, patience: float = 1) -> AsyncIterator[Connection]:
        """Open a connection outside the pool, for long use: listening, reading the log, renewing leases.

        Its calls may take `patience` times as long as the setting `call_timeout`.
        """
        try:
            conn = await self._connect(patience)
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"could not connect{self._where()}: {self._why(error)}") from error
        try:
            with driver.translated(conn, DRIVER[:-1]):
                yield conn
        finally:
            conn.terminate()

    async def run(
        self,
        operation: Callable[[Connection], Awaitable[T]],
        *,
        repeat: bool = False,
        aside: bool = False,
        wait: bool = True,
    ) -> T:
        """Run an operation on a pooled connection; with `aside`, on one of those that only sweeps use.

        With `repeat`, which is for operations that may safely happen twice, an operation whose connection was lost or
        did not answer is retried with growing pauses, for as long as the setting `timeout` allows after that. If a row
        is locked, it releases its connection and is retried, for as long as a call may take; without `wait` it raises
        `RowLocked` immediately.
        """
        return await self._run(operation, self._aside if aside else self._pool, repeat=repeat, wait=wait)

    async def run_transaction(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation of a user in a transaction, on a connection that only these operations use.

        Waits, without a limit, while all of these connections are in use.
        Repeats it as `run` does, with everything rolled back before, also if the connection was lost at the commit: the
        operation itself must notice that its first run was committed.
        """

        async def in_transaction(conn: Connection) -> T:
            async with conn.transaction():
                await driver.prepare_for_caller(conn)
                return await operation(conn)

        return await self._run(in_transaction, self._steps, repeat=True, wait=True)

    async def _run(
        self, operation: Callable[[Connection], Awaitable[T]], pool: Pool[Any] | None, *, repeat: bool, wait: bool
    ) -> T:
        unavailable, locked = Backoff(0.05, 2.0, jitter=0.5), lock_backoff()
        began, end = time.monotonic(), None if repeat else 0.0
        while True:
            try:
                async with self._connection(pool, waits=wait and not repeat) as conn:
                    return await operation(conn)
            except errors.RowLocked:
                if not (wait and repeat) or time.monotonic() - began > self._call_timeout:
                    raise
                await locked.wait()
            except errors.DatabaseUnavailable as error:
                end = time.monotonic() + self._timeout if end is None else end
                if time.monotonic() + unavailable.current > end:
                    raise
                pause = unavailable.next()
                log.warning("the database is unavailable; retrying in %.2f s: %s", pause, error.message)
                await asyncio.sleep(pause)

    async def _borrow(self, pool: Pool[Any] | None) -> tuple[Pool[Any], Any]:
        if pool is None or pool.is_closing:
            raise errors.ShuttingDown("the connections of this process are closed; repeat the call in another process")
        try:
            # Code of users keeps the connections of `run_transaction` for as long as it likes; that is no failure.
            conn = await pool.borrow(None if pool is self._steps else self._timeout)
        except Closing as error:
            raise errors.ShuttingDown(
                "the connections of this process were closed during the call; repeat the call in another process"
            ) from error
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"no connection available: {self._why(error, pool)}") from error
        if self._silent:
            await self._end_silent(pool, conn)
        return pool, conn

    async def _end_silent(self, pool: Pool[Any], conn: OwnConnection) -> None:
        """End sessions that did not answer, before a call is repeated: they may hold locks, or still be at work."""
        try:
            with driver.translated(conn):
                while self._silent:
                    await driver.end_session(conn, self._silent.pop())
        except errors.DatabaseUnavailable as error:
            log.debug("could not end a session that does not answer; Postgres will: %s", error.message)
        except BaseException:
            pool.give_back(conn)
            raise

    async def _connect(self, patience: float = 1, lock: float | None = None) -> OwnConnection:
        limits = Limits(self._timeout, patience * self._call_timeout, self._call_timeout, lock)
        return await driver.connect(self._url, limits=limits, pooler=self.config.pooler)

    def _where(self) -> str:
        host = urlsplit(self._url).hostname  # nothing else of the URL: a badly escaped password can look like a port
        return f" to {host}" if host else ""

    def _why(self, error: Exception, pool: Pool[Any] | None = None) -> str:
        if not isinstance(error, TimeoutError):
            return driver.message(error)
        if pool is None or pool.in_use == 0:
            return f"Postgres did not answer within {self._timeout:g} s"
        if pool is self._aside:
            return f"waited {self._timeout:g} s while other sweeps used all connections reserved for sweeps"
        return f"waited {self._timeout:g} s while all {pool.in_use} connections were in use; raise FLOWFABRIC_POOL_SIZE"
