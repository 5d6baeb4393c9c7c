"""The one door to Postgres: connect, call, and turn what Postgres says into our own refusals.

Nothing else imports the driver. A call is one function of the schema `flowfabric` and one round trip; it works on a
connection of ours and just as well on one of the caller's, inside a transaction that is already open.
"""

import asyncio
import functools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

import asyncpg
import msgspec

from flowfabric import errors
from flowfabric.config import Config
from flowfabric.model import Page

log = logging.getLogger("flowfabric.db")

T = TypeVar("T")
Row = Mapping[str, Any]


class Connection(Protocol):
    """What an operation needs of a connection; asyncpg's own, pooled or not, will do."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    async def execute(self, query: str, *args: object) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...


async def rows(conn: Connection, function: str, /, **arguments: object) -> Sequence[Row]:
    """Call a function of ours and return its rows."""
    statement = _statement(function, tuple(arguments))
    try:
        return await _fetch(conn, statement, list(arguments.values()))
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if (refused := _refused(error)) is not None:
            raise refused from None
        if (lost := _lost(conn, error)) is not None:
            raise lost from error
        raise


async def row(conn: Connection, function: str, /, **arguments: object) -> Row:
    """Call a function of ours that answers with exactly one row."""
    [only] = await rows(conn, function, **arguments)
    return only


async def value(conn: Connection, function: str, /, **arguments: object) -> Any:
    """Call a function of ours that answers with one value."""
    [only] = (await row(conn, function, **arguments)).values()
    return only


async def builtin(conn: Connection, function: str, /, **arguments: object) -> None:
    """Call a function of Postgres itself, for what it does."""
    places = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
    await conn.fetch(f"select {function}({places})", *arguments.values())


async def script(conn: Connection, text: str) -> None:
    """Run several statements at once: a migration, or the functions of a concept."""
    await conn.execute(text)


def read(kind: type[T], text: str) -> T:
    """A JSON answer as the type it stands for."""
    return msgspec.json.decode(text, type=kind)


def page(found: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """A page of what was found; SQL reads one row more than a page holds, which tells whether more follows."""
    items = found[: min(limit, 1_000)]
    return Page(items, cursor(items[-1]) if items and len(found) > len(items) else None)


def refusal(code: str, detail: str) -> errors.Refusal:
    """A refusal that came back as a value, one item of a batch."""
    fields = msgspec.json.decode(detail, type=dict[str, object])
    return errors.refusal(code, str(fields.pop("message")), fields)


class Database:
    """The connections of one process to one Postgres."""

    def __init__(self, config: Config, url: str) -> None:
        self._config = config
        self._url = url
        self._pool: Any = None

    async def __aenter__(self) -> Self:
        # A pooler hands out another session with every transaction: nothing prepared may be expected there.
        prepared = {"statement_cache_size": 0} if self._config.pooler else {}
        try:
            self._pool = await asyncpg.create_pool(
                self._url, min_size=1, max_size=self._config.pool_size, reset=_keep_session, **prepared
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise errors.DatabaseUnavailable(f"cannot connect: {error}; check FLOWFABRIC_URL") from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection from the pool, for as long as the block lasts."""
        try:
            conn = await self._pool.acquire()
        except (asyncpg.PostgresError, OSError) as error:
            raise errors.DatabaseUnavailable(f"no connection: {error}") from error
        except asyncpg.InterfaceError as error:
            raise errors.ShuttingDown(f"the pool is closed: {error}") from error
        try:
            yield conn
        finally:
            await self._pool.release(conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection with a transaction open: what is called on it happens together or not at all."""
        async with self.connection() as conn, conn.transaction():
            yield conn

    async def run(self, operation: Callable[[Connection], Awaitable[T]], *, repeat: bool = False) -> T:
        """Run an operation on a connection of the pool.

        With `repeat`, which is for operations that may safely happen twice, a lost connection is answered by trying
        again, with growing pauses, for as long as the setting `patience` allows.
        """
        pauses = _pauses(self._config.patience if repeat else 0.0)
        while True:
            try:
                async with self.connection() as conn:
                    return await operation(conn)
            except errors.DatabaseUnavailable as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                log.warning("trying again in %.2f s: %s", pause, error.message)
                await asyncio.sleep(pause)


@functools.cache
def _statement(function: str, names: tuple[str, ...]) -> str:
    arguments = ", ".join(f"{name} => ${number}" for number, name in enumerate(names, 1))
    return f"select * from flowfabric.{function}({arguments})"  # noqa: S608 - names in our code, values as parameters


async def _fetch(conn: Connection, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    """Call once more if an upgrade replaced the function in between: that must not reach the caller."""
    try:
        return await conn.fetch(statement, *arguments)
    except (asyncpg.UndefinedFunctionError, asyncpg.InvalidCachedStatementError):
        if conn.is_in_transaction():
            raise
        return await conn.fetch(statement, *arguments)


def _refused(error: Any) -> errors.Refusal | None:
    """The refusal that SQL raised, if it is one."""
    if isinstance(error, asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return errors.SchemaBehind(f"{error}; the database has not been brought to this version: run `ff migrate`")
    if not (getattr(error, "sqlstate", None) or "").startswith("FF"):
        return None
    return errors.refusal(str(error), error.detail, msgspec.json.decode(error.hint, type=dict[str, object]))


LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
COLLIDED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


def _lost(conn: Connection, error: Exception) -> errors.DatabaseUnavailable | None:
    """What to tell a caller whose call Postgres could not finish, if that is what happened."""
    if isinstance(error, COLLIDED):
        return errors.DatabaseUnavailable(f"collided with another transaction: {error}; the call may be repeated")
    if isinstance(error, LOST) or (isinstance(error, asyncpg.InterfaceError) and conn.is_closed()):
        return errors.DatabaseUnavailable(f"the connection was lost: {error}")
    return None


def _pauses(patience: float) -> Iterator[float]:
    """Pauses that double up to two seconds, with jitter, until their sum would pass the patience."""
    pause, left = 0.05, patience
    while pause <= left:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret, only spreads callers out
        left -= pause
        pause = min(pause * 2, 2.0)


async def _keep_session(conn: object) -> None:
    """We leave nothing behind in a session, so a released connection needs no reset and no round trip for one."""
