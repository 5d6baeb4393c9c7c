"""The driver: the only module that imports asyncpg. Connects, and turns what Postgres reports into our own errors."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol

import asyncpg
import msgspec

from flowfabric import errors

Row = Mapping[str, Any]


class Connection(Protocol):
    """What an operation needs of a connection. An asyncpg connection will do, from a pool or not."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    async def execute(self, query: str, *args: object) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    def add_termination_listener(self, callback: Callable[..., object]) -> None: ...


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
# The server cannot do it now: it is full, a time limit was reached, or it has become a standby in a failover.
PREVENTED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
)
UNFIT = (*LOST, asyncpg.ReadOnlySQLTransactionError)  # the next caller could not use this connection either


async def connect(url: str, *, timeout: float, pooler: bool) -> Any:  # noqa: ASYNC109 - the driver's own limit
    """Open a connection and prepare its session for our calls.

    Behind a transaction-mode pooler every transaction may run in another session, so nothing may stay prepared:
    without its statement cache the driver prepares and runs a call before it releases the session.
    """
    conn = await asyncpg.connect(url, timeout=timeout, **({"statement_cache_size": 0} if pooler else {}))
    try:
        await (_learn_arrays(conn) if pooler else _set_up(conn))
    except BaseException:
        conn.terminate()
        raise
    return conn


async def fetch(conn: Connection, statement: str, arguments: Sequence[object]) -> Sequence[Row]:
    """Run a call, and run it again if an upgrade replaced the function or another transaction collided with it.

    In both cases nothing of the call has happened, so repeating is safe for every function. Inside a transaction it is
    not possible: Postgres has aborted the transaction.
    """
    for _ in range(2):
        try:
            return await conn.fetch(statement, *arguments)
        except (*REPLACED, *COLLIDED, asyncpg.InternalServerError) as error:
            if conn.is_in_transaction() or not (_is_replaced(error) or isinstance(error, COLLIDED)):
                raise
    return await conn.fetch(statement, *arguments)


async def closed(conn: Connection) -> None:
    """Wait until the connection is closed, by either side."""
    ended = asyncio.Event()
    conn.add_termination_listener(lambda _: ended.set())
    if not conn.is_closed():
        await ended.wait()


def session_pid(conn: Any) -> int:
    """The process id of the session that answered when the connection was opened; behind a pooler it may change."""
    pid: int = conn.get_server_pid()
    return pid


def message(error: Exception) -> str:
    """The message alone, because `str` of a driver's error also contains our detail and hint."""
    return str(error.args[0]) if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError) else str(error)


def refused(error: Any) -> errors.FlowFabricError | None:
    """The error that SQL raised by its code, or that the driver raised before anything was sent."""
    if isinstance(error, asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return errors.SchemaBehind(
            f"{message(error)}; the database schema is older than this release or missing: run `ff migrate`"
        )
    if isinstance(error, asyncpg.CharacterNotInRepertoireError | asyncpg.UntranslatableCharacterError):
        return errors.InvalidText(f"{message(error)}; Postgres cannot store this text")
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
            f"an upgrade replaced a function meanwhile: {message(error)}; repeat the transaction"
        )
    if isinstance(error, PREVENTED):
        return errors.DatabaseUnavailable(f"Postgres cannot run this now: {message(error)}")
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


async def _set_up(conn: Any) -> None:
    """Turn off JIT compilation, which takes longer than any of our statements runs, and mark the session as our own.

    Before Postgres 18 the planner overestimates statements that read a small table whole, because our functions turn
    sequential scans off, and compiles them. In a session marked as our own, whose transactions are short, events get
    their ids as they are written; in any other, when the transaction commits.
    """
    await conn.fetch("select set_config('jit', 'off', false), set_config('flowfabric.direct', 'on', false)")


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
