"""Callers' connections: what a program passes to join its own transaction, of asyncpg, psycopg, SQLAlchemy or Django.

They are recognised by their shape, and no driver is imported. A sync connection is called from the same operations as
an async one: its coroutines never wait, so `finish` runs them to their end.
"""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from flowfabric import errors
from flowfabric.postgres import driver, portable
from flowfabric.postgres.driver import Connection, Row

T = TypeVar("T")

Wake = tuple[Callable[[str], None], str]

WAKING = "flowfabric.waking"  # where a session of SQLAlchemy keeps which lanes to notify after its commit
SCHEMA_MISSING = ("3F000", "42883")  # SQLSTATEs: the schema or the function does not exist

BEGIN = {
    "asyncpg": "`async with conn.transaction():`",
    "psycopg": "`with conn.transaction():`, or connect without autocommit",
    "SQLAlchemy": "an isolation level other than AUTOCOMMIT",
    "Django": "`with transaction.atomic():`",
}


class AsyncpgConnection(Protocol):
    """A connection of asyncpg."""

    async def fetch(self, query: str, *args: object) -> Sequence[Row]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...


class PsycopgConnection(Protocol):
    """A sync connection of psycopg 3."""

    @property
    def pgconn(self) -> Any: ...
    def commit(self) -> None: ...


class PsycopgAsyncConnection(Protocol):
    """An async connection of psycopg 3."""

    @property
    def pgconn(self) -> Any: ...
    async def commit(self) -> None: ...


class SqlalchemySession(Protocol):
    """A session or connection of SQLAlchemy 2."""

    def in_nested_transaction(self) -> bool: ...
    def commit(self) -> None: ...


class SqlalchemyAsyncSession(Protocol):
    """A session or connection of SQLAlchemy's asyncio extension."""

    def in_nested_transaction(self) -> bool: ...
    async def commit(self) -> None: ...


class SqlalchemyScopedSession(Protocol):
    """A registry of SQLAlchemy with a session per thread, as Flask-SQLAlchemy has one."""

    @property
    def registry(self) -> Any: ...
    def commit(self) -> None: ...


class SqlalchemyAsyncScopedSession(Protocol):
    """A registry of SQLAlchemy with an async session per task."""

    @property
    def registry(self) -> Any: ...
    async def commit(self) -> None: ...


class DjangoConnection(Protocol):
    """A connection of Django."""

    @property
    def in_atomic_block(self) -> Any: ...
    def on_commit(self, func: Callable[[], object], /) -> Any: ...


class DjangoProxy(Protocol):
    """`django.db.connection`, which passes everything on to the connection of the thread."""

    def __getattr__(self, item: Any, /) -> Any: ...
    def __delattr__(self, name: Any, /) -> Any: ...
    def __contains__(self, key: Any, /) -> Any: ...


AsyncCaller = (
    Connection | AsyncpgConnection | PsycopgAsyncConnection | SqlalchemyAsyncSession | SqlalchemyAsyncScopedSession
)
SyncCaller = PsycopgConnection | SqlalchemySession | SqlalchemyScopedSession | DjangoConnection | DjangoProxy


class Caller(ABC):
    """A connection of a caller, with what an operation needs of it."""

    is_async = False
    name: str

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def joined(self) -> Connection:
        """The connection that operations use. Raises `RuntimeError` if no transaction is open."""
        return cast("Connection", self)

    async def fetch(self, text: str, *arguments: object) -> Sequence[Row]:
        """Run a statement in the caller's transaction. Raises `RuntimeError` if no transaction is open."""
        try:
            answer = self._fetch(text, arguments)
            return cast("Sequence[Row]", await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            if (refused := _refused(error)) is not None:
                raise refused from error
            raise

    @abstractmethod
    def _fetch(self, text: str, arguments: Sequence[object]) -> Any: ...

    def after_commit(self, wake: Wake) -> None:  # noqa: B027 - most drivers cannot say when they have committed
        """Notify the workers of a lane after the caller's commit, if the driver has a hook for that."""

    def _expect_postgres(self, found: str) -> None:
        if found != "postgresql":
            raise TypeError(
                f"this connection of {self.name} is to {found}, not to Postgres; pass one to the Postgres database "
                "that has the schema flowfabric"
            )

    def _expect_transaction(self, *, is_open: bool) -> None:
        if not is_open:
            raise RuntimeError(
                "no transaction is open on this connection, so the submission could not be rolled back; "
                f"use {BEGIN[self.name]}, or call submit"
            )


class OfAsyncpg(Caller):
    """A connection of asyncpg: operations use it as it is."""

    is_async, name = True, "asyncpg"

    def joined(self) -> Connection:
        self._expect_transaction(is_open=self._conn.is_closed() or self._conn.is_in_transaction())
        return cast("Connection", self._conn)

    def _fetch(self, text: str, arguments: Sequence[object]) -> Any:
        return self._conn.fetch(text, *arguments)


class OfPsycopg(Caller):
    """A sync connection of psycopg, which begins a transaction with its first statement unless it is in autocommit."""

    name = "psycopg"

    def _fetch(self, text: str, arguments: Sequence[object]) -> Any:
        if self._hides_status():
            with self._conn.pipeline() as pipeline:
                pipeline.sync()
        with self._cursor() as cursor:
            cursor.execute(*self._statement(cursor, text, arguments), prepare=False)
            return cursor.fetchall()

    def _hides_status(self) -> bool:
        """Whether a pipeline has to be synchronized before the connection knows if a transaction is open."""
        return bool(self._conn.autocommit and self._conn.info.pipeline_status)

    def _cursor(self) -> Any:
        self._expect_transaction(is_open=not self._conn.autocommit or self._conn.info.transaction_status != 0)
        return self._conn.cursor(row_factory=_by_name)

    def _statement(self, cursor: Any, text: str, arguments: Sequence[object]) -> tuple[str, list[str]]:
        is_raw = any("RawCursor" in kind.__name__ for kind in type(cursor).__mro__)
        return portable.statement(text, arguments, "${}".format if is_raw else _percent)


class OfPsycopgAsync(OfPsycopg):
    """An async connection of psycopg."""

    is_async = True

    async def _fetch(self, text: str, arguments: Sequence[object]) -> Any:
        if self._hides_status():
            async with self._conn.pipeline() as pipeline:
                await pipeline.sync()
        async with self._cursor() as cursor:
            await cursor.execute(*self._statement(cursor, text, arguments), prepare=False)
            return await cursor.fetchall()


class OfSqlalchemy(Caller):
    """A session or a connection of SQLAlchemy, on any driver; a session can say when it has committed."""

    name = "SQLAlchemy"

    def _fetch(self, text: str, arguments: Sequence[object]) -> Any:
        return self._fetch_on(self._conn, text, arguments)

    def _fetch_on(self, given: Any, text: str, arguments: Sequence[object]) -> Sequence[Row]:
        conn = given if hasattr(given, "exec_driver_sql") else given.connection()
        self._expect_postgres(conn.dialect.name)
        self._expect_transaction(is_open=not getattr(conn.connection.dbapi_connection, "autocommit", False))
        asked, values = portable.statement(text, arguments, ":p{}".format)
        named = {f"p{number}": value for number, value in enumerate(values, 1)}
        result = conn.execute(sys.modules["sqlalchemy"].text(asked), named)
        return cast("Sequence[Row]", result.mappings().all())

    def after_commit(self, wake: Wake) -> None:
        session = getattr(self._conn, "sync_session", self._conn)
        if hasattr(session, "exec_driver_sql") or hasattr(session, "sync_connection"):
            return  # a connection has no event after its commit
        session.info.setdefault(WAKING, set()).add(wake)
        event = sys.modules["sqlalchemy.event"]
        if not event.contains(session, "after_transaction_end", _transaction_ended):
            event.listen(session, "after_transaction_end", _transaction_ended)


class OfSqlalchemyAsync(OfSqlalchemy):
    """A session or a connection of SQLAlchemy's asyncio extension."""

    is_async = True

    async def _fetch(self, text: str, arguments: Sequence[object]) -> Any:
        return await self._conn.run_sync(self._fetch_on, text, arguments)


class OfDjango(Caller):
    """A connection of Django."""

    name = "Django"

    def _fetch(self, text: str, arguments: Sequence[object]) -> Sequence[Row]:
        self._expect_postgres(self._conn.vendor)
        self._expect_transaction(is_open=not self._conn.get_autocommit())
        with self._conn.cursor() as cursor:
            cursor.execute(*portable.statement(text, arguments, _percent))
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def after_commit(self, wake: Wake) -> None:
        if self._conn.in_atomic_block:
            notify, lane = wake
            self._conn.on_commit(lambda: notify(lane))


def caller(conn: object) -> Caller:
    """Recognise a caller's connection. Raises `TypeError` for anything else."""
    if hasattr(conn, "registry") and hasattr(conn, "remove"):
        conn = conn.registry()
    is_async = inspect.iscoroutinefunction(getattr(conn, "commit", None))
    if hasattr(conn, "in_atomic_block") and hasattr(conn, "on_commit"):
        return OfDjango(conn)
    if hasattr(conn, "in_nested_transaction"):
        return OfSqlalchemyAsync(conn) if is_async else OfSqlalchemy(conn)
    if hasattr(conn, "pgconn"):
        return OfPsycopgAsync(conn) if is_async else OfPsycopg(conn)
    if hasattr(conn, "is_in_transaction"):
        return OfAsyncpg(conn)
    raise TypeError(
        f"{type(conn).__name__} is not a connection that can be joined; pass one of asyncpg, psycopg 3, SQLAlchemy 2 "
        "or Django, or call the SQL function flowfabric.submit_one on it"
    )


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a sync connection to its end; it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    raise AssertionError("a call on a sync connection does not wait")


def _transaction_ended(session: Any, transaction: Any) -> None:
    """Notify after the end of an outermost transaction; if it was rolled back, the workers find nothing."""
    if transaction.parent is None:
        for notify, lane in session.info.pop(WAKING, ()):
            notify(lane)


def _percent(_: int) -> str:
    return "%s"


def _by_name(cursor: Any) -> Callable[[Sequence[Any]], Mapping[str, Any]]:
    names = [column.name for column in cursor.description or ()]
    return lambda values: dict(zip(names, values, strict=True))


def _refused(error: Exception) -> errors.FlowFabricError | None:
    """The error that SQL raised by its code, whichever driver reports it and however it is wrapped."""
    for each in _causes(error):
        if isinstance(each, driver.DRIVER):
            return driver.refused(each)
        if (state := getattr(each, "sqlstate", None)) is not None and (said := getattr(each, "diag", None)) is not None:
            if state in SCHEMA_MISSING:
                return driver.behind(str(said.message_primary))
            if state.startswith("FF"):
                fields = msgspec.json.decode(said.message_hint or "{}", type=dict[str, object])
                return errors.from_code(said.message_primary, said.message_detail, fields, family=int(state[2:]))
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "orig", None) or error.__cause__
