"""The driver: the only module that imports asyncpg. Connects, and turns what Postgres reports into our own errors."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple, Protocol

import asyncpg
import msgspec
from asyncpg.transaction import Transaction

from flowfabric import errors
from flowfabric.postgres.backoff import lock_backoff

Row = Mapping[str, Any]


class Connection(Protocol):
    """A connection to Postgres, as asyncpg has it, from a pool or not. Arguments replace `$1`, `$2`, … of a query."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]:
        """Run a query and return its rows."""
        ...

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        """Run a query and return its first row, or `None`."""
        ...

    async def fetchval(self, query: str, *args: object) -> Any:
        """Run a query and return the first value of its first row, or `None`."""
        ...

    async def execute(self, query: str, *args: object) -> str:
        """Run a statement and return its status, such as `INSERT 0 1`."""
        ...

    async def executemany(self, command: str, args: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each list of arguments."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    def add_termination_listener(self, callback: Callable[..., object]) -> None: ...
    def remove_termination_listener(self, callback: Callable[..., object]) -> None: ...


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
LOCKED = (*COLLIDED, asyncpg.LockNotAvailableError)  # other transactions hold locks that the call needs
# The server cannot do it now: it is full, a time limit was reached, or it has become a standby in a failover.
PREVENTED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.ReadOnlySQLTransactionError,
)
PROBES = 3  # unanswered keepalive probes after which a connection is lost
UNFIT = (*LOST, asyncpg.ReadOnlySQLTransactionError)  # the next caller could not use this connection either


class Silent(asyncpg.PostgresConnectionError):  # type: ignore[misc]
    """Postgres did not answer a call within its time limit, so the connection was dropped."""


class Session(NamedTuple):
    """A session of the server: process ids are used again, but not with the same start."""

    pid: int
    started_at: datetime


class Limits(NamedTuple):
    """Time limits of a connection, in seconds."""

    connect: float  # for opening it
    call: float  # for every call on it
    network: float  # for a packet to be acknowledged by the other machine
    lock: float | None = None  # for a lock of another transaction, before the call fails and is tried again


def _limited(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Drop the connection if the call has no answer within the limit, or is cancelled.

    Nothing more may be sent on it: the answer may still come, or never. The driver would wait for it before the next
    call, and before it rolls a transaction back.
    """

    @wraps(method)
    async def limited(self: "OwnConnection", *args: Any, **options: Any) -> Any:
        if self.called_at is not None:
            return await method(self, *args, **options)  # part of a call, or refused because there is one already
        self.called_at = self._loop.time()
        if self.watch is None:
            self.watch = self._loop.call_later(self.limit, self.drop_if_silent)
        try:
            return await method(self, *args, **options)
        except asyncio.CancelledError:
            self.terminate()
            raise
        except Exception:
            if self.silent:
                raise Silent(f"Postgres did not answer within {self.limit:g} s") from None
            raise
        finally:
            self.called_at = None

    return limited


class OwnConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that we opened. Every call on it has a time limit, also the begin and end of a transaction.

    One timer watches all calls, because the driver's own limit would start and cancel a timer for every call.
    """

    __slots__ = ("called_at", "limit", "lock_limit", "session", "silent", "waits", "watch")

    limit: float
    session: Session | None
    called_at: float | None  # when the call in flight was made, on the clock of the event loop
    watch: asyncio.TimerHandle | None
    silent: bool  # whether it was dropped because a call had no answer
    lock_limit: float | None  # how long a call waits for a lock, if the call itself must say so: behind a pooler
    waits: bool  # whether a call that meets a lock is tried again on this connection

    fetch = _limited(asyncpg.Connection.fetch)
    fetchrow = _limited(asyncpg.Connection.fetchrow)
    fetchval = _limited(asyncpg.Connection.fetchval)
    execute = _limited(asyncpg.Connection.execute)
    executemany = _limited(asyncpg.Connection.executemany)

    def drop_if_silent(self) -> None:
        """Drop the connection if the call in flight was made too long ago, else look again when it would be."""
        self.watch = None
        if self.called_at is None or self.is_closed():
            return
        left = self.called_at + self.limit - self._loop.time()
        if left > 0:
            self.watch = self._loop.call_later(left, self.drop_if_silent)
        else:
            self.silent = True
            self.terminate()

    def terminate(self) -> None:
        """Close the connection without waiting for anything."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None
        super().terminate()

    def transaction(self, **options: Any) -> "OwnTransaction":
        """Start a transaction with `async with`."""
        self._check_open()
        return OwnTransaction(self, **{"isolation": None, "readonly": False, "deferrable": False, **options})


class OwnTransaction(Transaction):  # type: ignore[misc]
    """A transaction that raises what the block raised, also if the connection was dropped: nothing is to be undone."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not self._connection.is_closed():
            await super().__aexit__(kind, error, trace)


async def connect(url: str, *, limits: Limits, pooler: bool) -> OwnConnection:
    """Open a connection and prepare its session for our calls.

    Behind a transaction-mode pooler every transaction may run in another session, so nothing may stay prepared:
    without its statement cache the driver prepares and runs a call before it releases the session.
    """
    conn = await asyncpg.connect(
        url,
        timeout=limits.connect,
        connection_class=OwnConnection,
        **({"statement_cache_size": 0} if pooler else {}),
    )
    conn.limit, conn.session, conn.called_at, conn.watch = limits.call, None, None, None
    conn.silent, conn.waits = False, False
    conn.lock_limit = None
    try:
        _watch_network(conn, limits.network)
        if pooler:
            await _learn_arrays(conn)
        else:
            conn.session = await _prepare_session(conn, limits)
    except BaseException:
        conn.terminate()
        raise
    own: OwnConnection = conn
    return own


def lock_limit(conn: Connection) -> str | None:
    """How long a call waits for a lock, if it must say so itself; a caller's connection waits as the server says."""
    limit: float | None = getattr(conn, "lock_limit", None)
    return None if limit is None else _milliseconds(limit)


async def fetch(conn: Connection, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    """Run a call, and run it again if an upgrade replaced the function or another transaction collided with it.

    On a connection that `waits`, also while another transaction has locked a row, up to the time limit of a call. In
    all cases nothing of the call has happened, so repeating is safe for every function. Inside a transaction it is not
    possible: Postgres has aborted the transaction.
    """
    try:
        return await _fetch(conn, statement, arguments)
    except asyncpg.LockNotAvailableError:
        if conn.is_in_transaction() or not getattr(conn, "waits", False):  # a caller's connection has no such attribute
            raise
    return await _fetch_again(conn, statement, arguments)


async def _fetch_again(conn: Any, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    backoff, end = lock_backoff(), time.monotonic() + conn.limit
    while True:
        await backoff.wait()
        try:
            return await _fetch(conn, statement, arguments)
        except asyncpg.LockNotAvailableError:
            if time.monotonic() > end:
                raise


async def _fetch(conn: Connection, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    for _ in range(2):
        try:
            return await conn.fetch(statement, *arguments)
        except (*REPLACED, *COLLIDED, asyncpg.InternalServerError) as error:
            if conn.is_in_transaction() or not (_is_replaced(error) or isinstance(error, COLLIDED)):
                raise
    return await conn.fetch(statement, *arguments)


async def closed(conn: Connection, seconds: float, ended: asyncio.Event | None = None) -> bool:
    """Wait until the connection is closed, by either side, but no longer than that; return whether it is closed.

    A caller that sets `ended` ends the wait too.
    """
    ended = ended or asyncio.Event()

    def end(_: object) -> None:
        ended.set()

    conn.add_termination_listener(end)
    try:
        if not conn.is_closed():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds)
    finally:
        conn.remove_termination_listener(end)
    return conn.is_closed()


def session_pid(conn: Any) -> int:
    """The process id of the session that answered when the connection was opened; behind a pooler it may change."""
    pid: int = conn.get_server_pid()
    return pid


def message(error: Exception) -> str:
    """The message alone, because `str` of a driver's error also contains our detail and hint. It is never empty."""
    is_drivers = isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError)
    return str(error.args[0] if is_drivers else error) or type(error).__name__


def behind(said: str) -> errors.SchemaBehind:
    """The error for a database without the function that a call needs."""
    return errors.SchemaBehind(f"{said}; the schema is missing or older than this version: run `ff migrate`")


def refused(error: Any) -> errors.FlowFabricError | None:
    """The error that SQL raised by its code, or that the driver raised before anything was sent."""
    if isinstance(error, asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return behind(message(error))
    if isinstance(error, asyncpg.CharacterNotInRepertoireError | asyncpg.UntranslatableCharacterError):
        return errors.InvalidText(f"{message(error)}; remove the characters that Postgres cannot store")
    if type(error) is asyncpg.DataError:  # the driver's own, before anything is sent
        return errors.InvalidBody(message(error))
    if not (getattr(error, "sqlstate", None) or "").startswith("FF"):
        return None
    fields = msgspec.json.decode(error.hint or "{}", type=dict[str, object])
    return errors.from_code(message(error), error.detail or message(error), fields, family=int(error.sqlstate[2:]))


def failed(conn: Connection, error: Exception) -> errors.Unavailable | None:
    """The error for a caller whose call Postgres could not run; `None` if the error means something else."""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return errors.PrivilegeMissing(
            f"{message(error)}; grant that privilege to the role, or connect as the owner of the schema"
        )
    if isinstance(error, COLLIDED):
        return errors.DatabaseUnavailable(f"collided with another transaction: {message(error)}; repeat the call")
    if _is_replaced(error) and not isinstance(error, asyncpg.UndefinedFunctionError):
        return errors.DatabaseUnavailable(
            f"an upgrade replaced a function during the call: {message(error)}; repeat the transaction"
        )
    if isinstance(error, asyncpg.LockNotAvailableError):
        return errors.RowLocked(
            "another transaction has locked a row that the call needs, and nothing was changed; repeat the call "
            "(`ff doctor --longest-transaction 1s` lists open transactions)"
        )
    if isinstance(error, PREVENTED):
        return errors.DatabaseUnavailable(f"Postgres could not run the call: {message(error)}")
    if isinstance(error, LOST) or (isinstance(error, asyncpg.InterfaceError) and _is_closed(conn)):
        return errors.DatabaseUnavailable(f"the connection was lost: {message(error)}")
    return None


@contextmanager
def translated(conn: Connection, kinds: tuple[type[Exception], ...] = DRIVER) -> Iterator[None]:
    """Raise an `Unavailable` instead of the driver's error where Postgres could not run the statement."""
    try:
        yield
    except kinds as error:
        if (unavailable := failed(conn, error)) is not None:
            raise unavailable from error
        raise


def _is_replaced(error: Exception) -> bool:
    # A function can be dropped between the moment a call looks it up and the moment it runs.
    return isinstance(error, REPLACED) or (
        isinstance(error, asyncpg.InternalServerError) and "cache lookup failed for function" in str(error)
    )


def _is_closed(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:
        return True  # it belongs to a caller's pool, which has taken it back


def _watch_network(conn: Any, seconds: float) -> None:
    """Let the kernel close the connection if the other machine stops acknowledging packets."""
    own = conn._transport.get_extra_info("socket")
    if own is None or own.family not in (socket.AF_INET, socket.AF_INET6):
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle, between = max(int(seconds), 1), max(int(seconds / PROBES), 1)
    options = {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPALIVE": idle,  # the name on macOS
        "TCP_KEEPINTVL": between,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": int(seconds * 1_000),
    }
    for name, value in options.items():
        if hasattr(socket, name):
            with suppress(OSError):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _prepare_session(conn: Any, limits: Limits) -> Session:
    """Mark the session as ours, limit its lock waits, and let the server end it soon if this process is gone."""
    seconds = limits.network
    settings = {
        "flowfabric.direct": "on",  # events of our own calls take their ids at once; see engine/events/append.sql
        # Functions lock a row and then read what its last owner wrote, which a stricter level would hide.
        "default_transaction_isolation": "read committed",
        "tcp_keepalives_idle": max(int(seconds), 1),
        "tcp_keepalives_interval": max(int(seconds / PROBES), 1),
        "tcp_keepalives_count": PROBES,
        "tcp_user_timeout": int(seconds * 1_000),
        **({} if limits.lock is None else {"lock_timeout": _milliseconds(limits.lock)}),
    }
    listed = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    [row] = await conn.fetch(
        f"select {listed}, "  # noqa: S608 - our own names and numbers
        # While a statement runs, look whether the client has closed the connection; other systems refuse the setting.
        "case when version() ~ '(linux|darwin)' then set_config('client_connection_check_interval', '1s', false) end, "
        "s.pid, s.backend_start from pg_stat_get_activity(pg_backend_pid()) s"
    )
    return Session(row["pid"], row["backend_start"])


def _milliseconds(seconds: float) -> str:
    return f"{int(seconds * 1_000)}ms"


async def prepare_for_caller(conn: Any) -> None:
    """Prepare an open transaction for a caller: it may stay open for long, and waits for locks as the server says."""
    conn.lock_limit = None
    await conn.execute("set local flowfabric.direct to ''; set local lock_timeout to default")


async def end_session(conn: Connection, session: Session) -> None:
    """End a session that no longer answers, and wait a second for it: it may hold locks that a repeated call needs."""
    await conn.fetch(
        "select pg_terminate_backend(s.pid, 1000) from pg_stat_get_activity($1) s where s.backend_start = $2", *session
    )


async def _learn_arrays(conn: Any) -> None:
    """Look up the array types now, inside a transaction that is rolled back.

    The driver would do it at their first use and leave a changed setting in a session that other clients get next.
    """
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.fetch("select " + ", ".join(f"null::{name}[]" for name in ARRAYS))
    finally:
        await transaction.rollback()
