"""The one door to Postgres: connect, call, and turn what Postgres says into our own refusals.

Nothing else imports the driver. A call is one function of the schema `flowfabric` and one round trip; it works on a
connection of ours and just as well on one of the caller's, inside a transaction that is already open.
"""

import asyncio
import functools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol, Self, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg
import msgspec

from flowfabric import errors
from flowfabric.config import URL_SHAPE, BadSetting, Config
from flowfabric.model import Page
from flowfabric.postgres.pool import Closing, Pool

log = logging.getLogger("flowfabric.postgres")

T = TypeVar("T")
Row = Mapping[str, Any]

LONGEST_PAGE = 1_000
ASIDE = 2  # connections for sweeps: no call waits for one, or is the first of its kind on one that has only swept


class Connection(Protocol):
    """What an operation needs of a connection; asyncpg's own, pooled or not, will do."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    async def execute(self, query: str, *args: object) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    def add_termination_listener(self, callback: Callable[..., object]) -> None: ...


async def rows(conn: Connection, function: str, /, **arguments: object) -> Sequence[Row]:
    """Call a function of ours and return its rows."""
    statement = _statement(function, tuple(arguments))
    try:
        return await _fetch(conn, statement, list(arguments.values()))
    except DRIVER as error:
        if (refused := _refused(error)) is not None:
            raise refused from None
        if (failed := _failed(conn, error)) is not None:
            raise failed from error
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
    with _failing(conn, DRIVER):
        await conn.fetch(f"select {function}({places})", *arguments.values())


async def query(conn: Connection, text: str) -> Sequence[Row]:
    """Run the one statement of a file and return its rows: for what is read where no function of ours is yet."""
    with _failing(conn, DRIVER):
        return await conn.fetch(text)


def greeted_by(conn: Any) -> int:
    """The session that answered when this connection was opened; behind a pooler, calls may run in another."""
    pid: int = conn.get_server_pid()
    return pid


async def script(conn: Connection, text: str) -> None:
    """Run several statements at once: a migration, or the functions of a concept."""
    with _failing(conn, DRIVER):
        await conn.execute(text)


async def closed(conn: Connection) -> None:
    """Wait until the connection ends, from whichever side."""
    ended = asyncio.Event()
    conn.add_termination_listener(lambda _: ended.set())
    if not conn.is_closed():
        await ended.wait()


def read(kind: type[T], text: str) -> T:
    """A JSON answer as the type it stands for."""
    decoder: msgspec.json.Decoder[T] = _decoder(cast("Any", kind))
    return decoder.decode(text)


def take(limit: int) -> int:
    """How many to ask for, as a number that Postgres can hold: SQL refuses what is below 0, and no page is longer."""
    return max(min(limit, LONGEST_PAGE), -LONGEST_PAGE)


def page(found: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """A page of what was found; SQL reads one row more than a page holds, which tells whether more follows."""
    items = found[: min(limit, LONGEST_PAGE)]
    return Page(items, cursor(items[-1]) if items and len(found) > len(items) else None)


def refusal(code: str, detail: str) -> errors.FlowFabricError:
    """A refusal that came back as a value, one item of a batch."""
    fields = msgspec.json.decode(detail, type=dict[str, object])
    return errors.refusal(code, str(fields.pop("message")), fields)


class Database:
    """The connections of one process to one Postgres."""

    def __init__(self, config: Config, url: str) -> None:
        self.config = config
        self._url = url
        self._pool: Pool[Any] | None = None
        self._aside: Pool[Any] | None = None

    async def __aenter__(self) -> Self:
        self._pool = Pool(self._connect, self.config.pool_size)
        self._aside = Pool(self._connect, ASIDE)
        try:
            self._pool.give_back(await self._pool.borrow(self.config.timeout))
        except ValueError:
            # What the driver says of it may quote the password.
            raise BadSetting(f"FLOWFABRIC_URL cannot be read; {URL_SHAPE}") from None
        except DRIVER as error:
            raise errors.DatabaseUnavailable(
                f"cannot connect{self._where()}: {self._why(error)}; check FLOWFABRIC_URL"
            ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections, once those in use are back; after the setting `timeout`, without waiting."""
        for pool in (self._aside, self._pool):
            if pool is not None:
                with suppress(TimeoutError, *DRIVER):
                    async with asyncio.timeout(self.config.timeout):
                        await pool.close()

    @asynccontextmanager
    async def connection(self, *, aside: bool = False) -> AsyncIterator[Connection]:
        """A connection from the pool for as long as the block lasts; `aside`, of those for what nobody waits for."""
        pool, conn = await self._borrow(self._aside if aside else self._pool)
        try:
            with _failing(conn, DRIVER[:-1]):  # the block may have files and sockets of its own
                yield conn
        except errors.DatabaseUnavailable as unavailable:
            if isinstance(unavailable.__cause__, UNFIT):
                conn.terminate()
            raise
        finally:
            pool.give_back(conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection with a transaction open: what is called on it happens together or not at all."""
        async with self.connection() as conn, conn.transaction():
            yield conn

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[Connection]:
        """A connection outside the pool, for what lasts: listening, reading the log, renewing leases."""
        try:
            conn = await self._connect()
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"cannot connect{self._where()}: {self._why(error)}") from error
        try:
            with _failing(conn, DRIVER[:-1]):
                yield conn
        finally:
            conn.terminate()

    async def run(
        self, operation: Callable[[Connection], Awaitable[T]], *, repeat: bool = False, aside: bool = False
    ) -> T:
        """Run an operation on a connection of the pool, or `aside`: where it keeps no call waiting.

        With `repeat`, which is for operations that may safely happen twice, a lost connection is answered by trying
        again, with growing pauses, for as long as the setting `timeout` allows.
        """
        pauses = _pauses(self.config.timeout if repeat else 0.0)
        while True:
            try:
                async with self.connection(aside=aside) as conn:
                    return await operation(conn)
            except errors.DatabaseUnavailable as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                log.warning("trying again in %.2f s: %s", pause, error.message)
                await asyncio.sleep(pause)

    async def _borrow(self, pool: Pool[Any] | None) -> tuple[Pool[Any], Any]:
        if pool is None or pool.is_closing:
            raise errors.ShuttingDown("the connections of this process are closed; no more calls are taken")
        try:
            return pool, await pool.borrow(self.config.timeout)
        except Closing as error:
            raise errors.ShuttingDown("the connections of this process were closed meanwhile") from error
        except DRIVER as error:
            raise errors.DatabaseUnavailable(f"no connection: {self._why(error, pool)}") from error

    async def _connect(self) -> Any:
        # A pooler hands out another session with every transaction: nothing prepared may be expected there. Without its
        # cache the driver prepares and runs a call before it lets the session go.
        pooled = {"statement_cache_size": 0} if self.config.pooler else {}
        conn = await asyncpg.connect(self._url, timeout=self.config.timeout, **pooled)
        try:
            await (_learn_arrays(conn) if self.config.pooler else _forgo_compiling(conn))
        except BaseException:
            conn.terminate()
            raise
        return conn

    def _where(self) -> str:
        host = urlsplit(self._url).hostname  # and no more of it: a badly escaped password can look like a port
        return f" to {host}" if host else ""

    def _why(self, error: Exception, pool: Pool[Any] | None = None) -> str:
        if not isinstance(error, TimeoutError):
            return _said(error)
        why = "Postgres did not answer"
        if pool is not None and pool.in_use > 0:
            why = "other sweeps use them" if pool is self._aside else f"{pool.in_use} are in use (FLOWFABRIC_POOL_SIZE)"
        return f"after {self.config.timeout:g} s {why}"


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@functools.cache
def _statement(function: str, names: tuple[str, ...]) -> str:
    arguments = ", ".join(f"{name} => ${number}" for number, name in enumerate(names, 1))
    return f"select * from flowfabric.{function}({arguments})"  # noqa: S608 - names in our code, values as parameters


async def _fetch(conn: Connection, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    """Call again if an upgrade replaced the function, or another transaction collided with ours, in between.

    Either way nothing of the call has happened, so it is safe for every function. Inside a transaction it is too late:
    Postgres has given that up as a whole.
    """
    for _ in range(2):
        try:
            return await conn.fetch(statement, *arguments)
        except (*REPLACED, *COLLIDED, asyncpg.InternalServerError) as error:
            if conn.is_in_transaction() or not (_is_replaced(error) or isinstance(error, COLLIDED)):
                raise
    return await conn.fetch(statement, *arguments)


ARRAYS = ("bool", "int2", "int4", "int8", "float8", "text", "uuid", "bytea", "timestamptz", "interval", "jsonb")
DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
REPLACED = (asyncpg.UndefinedFunctionError, asyncpg.InvalidCachedStatementError)
COLLIDED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
LOST = (
    OSError,
    asyncpg.InternalClientError,  # the driver itself has lost track of the connection
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
# What the server cannot do for now: it is full, it ran into a time limit, or it is a standby since a failover.
PREVENTED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
)

UNFIT = (*LOST, asyncpg.ReadOnlySQLTransactionError)  # of no use to the next caller either


def _is_replaced(error: Exception) -> bool:
    # A function can be dropped between the moment a call looks it up and the moment it runs.
    return isinstance(error, REPLACED) or (
        isinstance(error, asyncpg.InternalServerError) and "cache lookup failed for function" in str(error)
    )


def _said(error: Exception) -> str:
    """The message alone: `str` of a driver's error has detail and hint in it, which are for us."""
    return str(error.args[0]) if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError) else str(error)


def _refused(error: Any) -> errors.FlowFabricError | None:
    """What SQL refused, or what could not even be asked."""
    if isinstance(error, asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return errors.SchemaBehind(
            f"{_said(error)}; the database has not been brought to this version: run `ff migrate`"
        )
    if isinstance(error, asyncpg.CharacterNotInRepertoireError | asyncpg.UntranslatableCharacterError):
        return errors.InvalidText(f"{_said(error)}; Postgres cannot store such a text")
    if type(error) is asyncpg.DataError:  # the driver's own, before anything is sent
        return errors.InvalidBody(_said(error))
    if not (getattr(error, "sqlstate", None) or "").startswith("FF"):
        return None
    fields = msgspec.json.decode(error.hint or "{}", type=dict[str, object])
    return errors.refusal(_said(error), error.detail or _said(error), fields, family=int(error.sqlstate[2:]))


def _failed(conn: Connection, error: Exception) -> errors.Unavailable | None:
    """What to tell a caller for whom Postgres could not do it, if that is what happened."""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return errors.PrivilegeMissing(f"{_said(error)}; grant that to the role, or connect as the owner of the schema")
    if isinstance(error, COLLIDED):
        return errors.DatabaseUnavailable(f"collided with another transaction: {_said(error)}; it may be repeated")
    if _is_replaced(error) and not isinstance(error, asyncpg.UndefinedFunctionError):
        return errors.DatabaseUnavailable(
            f"an upgrade came in between: {_said(error)}; the transaction may be repeated"
        )
    if isinstance(error, PREVENTED):
        return errors.DatabaseUnavailable(f"Postgres cannot do this now: {_said(error)}")
    if isinstance(error, LOST) or (isinstance(error, asyncpg.InterfaceError) and _is_closed(conn)):
        return errors.DatabaseUnavailable(f"the connection was lost: {_said(error)}")
    return None


@contextmanager
def _failing(conn: Connection, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Report what Postgres could not do as ours; whatever else is wrong with a statement is left as it is."""
    try:
        yield
    except kinds as error:
        if (failed := _failed(conn, error)) is not None:
            raise failed from error
        raise


def _is_closed(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:
        return True  # of a pool of the caller's, which has taken it back


def _pauses(timeout: float) -> Iterator[float]:
    """Pauses that double up to two seconds, with jitter, until the timeout is used up, by them or between them."""
    clock = asyncio.get_running_loop().time
    pause, end = 0.05, clock() + timeout
    while clock() + pause <= end:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret, only spreads callers out
        pause = min(pause * 2, 2.0)


async def _forgo_compiling(conn: Any) -> None:
    """Have this session compile no statement, which takes longer than any of ours runs.

    Before Postgres 18, one that reads a small table whole is believed to be immensely costly in our functions, because
    they are set to go by indexes.
    """
    await conn.fetch("select set_config('jit', 'off', false)")


async def _learn_arrays(conn: Any) -> None:
    """Look up the array types now, and undo what that does to the session.

    The driver would do it at their first use, and leave a setting behind in a session that others get next.
    """
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.fetch("select " + ", ".join(f"null::{kind}[]" for kind in ARRAYS))
    finally:
        await transaction.rollback()
