"""The database: the connections of one process, to a Postgres server by URL or to the embedded one."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from flowfabric import errors
from flowfabric.config import URL_SHAPE, Config
from flowfabric.postgres import call, driver, embedded
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.driver import DRIVER, UNFIT, Connection
from flowfabric.postgres.pool import Closing, Pool

log = logging.getLogger("flowfabric.postgres")

T = TypeVar("T")

SWEEP_CONNECTIONS = 2  # separate, so that no call waits for a sweep or meets a session that has only run sweeps


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
    try:
        async with Database(config, server.url()) as database:
            yield database
    finally:
        try:
            await asyncio.to_thread(server.stop)
        except RuntimeError:  # the process is exiting and starts no threads any more
            server.stop()


class Database:
    """The connections of one process to one Postgres."""

    def __init__(self, config: Config, url: str) -> None:
        self.config = config
        self._timeout = config.timeout.total_seconds()
        self._url = url
        self._pool: Pool[Any] | None = None
        self._aside: Pool[Any] | None = None

    async def __aenter__(self) -> Self:
        self._pool = Pool(self._connect, self.config.pool_size)
        self._aside = Pool(self._connect, SWEEP_CONNECTIONS)
        try:
            self._pool.give_back(await self._pool.borrow(self._timeout))
        except ValueError:
            # The driver's own message may quote the password.
            raise errors.BadSetting(f"FLOWFABRIC_URL is malformed; {URL_SHAPE}") from None
        except DRIVER as error:
            raise errors.DatabaseUnavailable(
                f"cannot connect{self._where()}: {self._why(error)}; check FLOWFABRIC_URL"
            ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections when those in use are back, or after the setting `timeout`."""
        for pool in (self._aside, self._pool):
            if pool is not None:
                with suppress(TimeoutError, *DRIVER):
                    async with asyncio.timeout(self._timeout):
                        await pool.close()

    @asynccontextmanager
    async def connection(self, *, aside: bool = False) -> AsyncIterator[Connection]:
        """Borrow a connection for the length of the block; with `aside`, one of those that only sweeps use."""
        pool, conn = await self._borrow(self._aside if aside else self._pool)
        try:
            with driver.translated(conn, DRIVER[:-1]):  # not OSError: the block may use other files and sockets
                yield conn
        except errors.DatabaseUnavailable as unavailable:
            if isinstance(unavailable.__cause__, UNFIT):
                conn.terminate()
            raise
        finally:
            pool.give_back(conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Borrow a connection with an open transaction: the calls on it happen together or not at all.

        Its events get their ids when it commits, so that it delays no reader of the log however long it is open.
        """
        async with self.connection() as conn, conn.transaction():
            await call.builtin(conn, "set_config", setting_name="flowfabric.direct", new_value="", is_local=True)
            yield conn

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[Connection]:
        """Open a connection outside the pool, for long use: listening, reading the log, renewing leases."""
        try:
            conn = await self._connect()
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"cannot connect{self._where()}: {self._why(error)}") from error
        try:
            with driver.translated(conn, DRIVER[:-1]):
                yield conn
        finally:
            conn.terminate()

    async def run(
        self, operation: Callable[[Connection], Awaitable[T]], *, repeat: bool = False, aside: bool = False
    ) -> T:
        """Run an operation on a pooled connection; with `aside`, on one of those that only sweeps use.

        With `repeat`, which is for operations that may safely happen twice, a lost connection is retried with growing
        pauses for as long as the setting `timeout` allows.
        """
        end = time.monotonic() + (self._timeout if repeat else 0.0)
        backoff = Backoff(0.05, 2.0, jitter=0.5)
        while True:
            try:
                async with self.connection(aside=aside) as conn:
                    return await operation(conn)
            except errors.DatabaseUnavailable as error:
                if time.monotonic() + backoff.current > end:
                    raise
                pause = backoff.next()
                log.warning("the database is unavailable, retrying in %.2f s: %s", pause, error.message)
                await asyncio.sleep(pause)

    async def _borrow(self, pool: Pool[Any] | None) -> tuple[Pool[Any], Any]:
        if pool is None or pool.is_closing:
            raise errors.ShuttingDown("the connections of this process are closed; no more calls are accepted")
        try:
            return pool, await pool.borrow(self._timeout)
        except Closing as error:
            raise errors.ShuttingDown("the connections of this process were closed during the call") from error
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"no connection available: {self._why(error, pool)}") from error

    async def _connect(self) -> Any:
        return await driver.connect(self._url, timeout=self._timeout, pooler=self.config.pooler)

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
