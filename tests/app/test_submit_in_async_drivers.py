"""Submitting in the transaction of an async driver: with the caller's rows, or not at all."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from flowfabric import App, Execution
from flowfabric.app.tasks import Task
from flowfabric.errors import BudgetNotFound, DatabaseUnavailable, PayloadTooLarge, SchemaBehind
from tests.app.scene import TIMEOUT, Heard, working
from tests.given import Given

Opened = tuple[Any, Callable[[str], Any]]


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Opened]:
    conn = await asyncpg.connect(url, statement_cache_size=0)
    try:
        async with conn.transaction():
            yield conn, conn.execute
    finally:
        await conn.close()


@asynccontextmanager
async def of_pooled_asyncpg(url: str) -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as conn, conn.transaction():
        yield conn, conn.execute


@asynccontextmanager
async def of_psycopg(url: str, **options: Any) -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(url, **options) as conn:
        yield conn, lambda statement: conn.execute(statement.encode())


def of_psycopg_without_prepared_statements(url: str) -> AbstractAsyncContextManager[Opened]:
    return of_psycopg(url, prepare_threshold=None)


def _sqlalchemy(kind: str, driver: str) -> Callable[[str], AbstractAsyncContextManager[Opened]]:
    @asynccontextmanager
    async def open_it(url: str) -> AsyncIterator[Opened]:
        engine = create_async_engine(url.replace("://", f"+{driver}://"))
        try:
            if kind == "connection":
                async with engine.begin() as conn:
                    yield conn, lambda statement: conn.execute(text(statement))
                return
            async with AsyncSession(engine) as session, session.begin():
                yield session, lambda statement: session.execute(text(statement))
        finally:
            await engine.dispose()

    return open_it


DRIVERS = {
    "asyncpg": of_asyncpg,
    "asyncpg, from a pool": of_pooled_asyncpg,
    "psycopg": of_psycopg,
    "psycopg, nothing prepared": of_psycopg_without_prepared_statements,
    "SQLAlchemy session on psycopg": _sqlalchemy("session", "psycopg"),
    "SQLAlchemy session on asyncpg": _sqlalchemy("session", "asyncpg"),
    "SQLAlchemy connection on psycopg": _sqlalchemy("connection", "psycopg"),
    "SQLAlchemy connection on asyncpg": _sqlalchemy("connection", "asyncpg"),
}


@pytest.fixture
async def ship(app: App, given: Given) -> Task[..., str]:
    await given.conn.execute("create table orders (customer text)")

    @app.task(lane="shipping")
    async def ship(order: int, note: str = "") -> str:
        return f"order {order}{note}"

    return ship


async def stored(given: Given) -> tuple[int, int]:
    """How many orders and executions there are."""
    [row] = await given.rows("select count(*) as orders from orders")
    return int(row["orders"]), await given.count("executions")


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_row_and_the_submission_are_committed_together(
    app: App, given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    async with working(app):
        async with DRIVERS[driver](database_url) as (conn, execute):
            await execute("insert into orders values ('ada')")
            execution: Execution[str] = await ship.with_options(tags={"a.b": "c"}).submit_in(conn, 1, note=" ü")
            [second] = await ship.submit_many_in(conn, [{"order": 2}])
        assert await execution.result(TIMEOUT) == "order 1 ü"
        assert await second.result(TIMEOUT) == "order 2"
    assert await stored(given) == (1, 2)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_rollback_undoes_both(given: Given, ship: Task[..., str], database_url: str, driver: str) -> None:
    with suppress(ZeroDivisionError):
        async with DRIVERS[driver](database_url) as (conn, execute):
            await execute("insert into orders values ('ada')")
            await ship.submit_in(conn, 1)
            raise ZeroDivisionError

    assert await stored(given) == (0, 0)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_refusal_leaves_the_transaction_usable(
    given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    async with DRIVERS[driver](database_url) as (conn, execute):
        await execute("insert into orders values ('ada')")
        with pytest.raises(BudgetNotFound):
            await ship.with_options(budgets=["nowhere"]).submit_in(conn, 1)
        with pytest.raises(PayloadTooLarge):
            await ship.submit_in(conn, 1, note="x" * 1_048_577)
        await ship.submit_in(conn, 2)

    assert await stored(given) == (1, 1)


async def test_a_savepoint_that_is_rolled_back_takes_its_submission_with_it(
    given: Given, ship: Task[..., str], database_url: str
) -> None:
    for driver in ("SQLAlchemy session on asyncpg", "SQLAlchemy connection on psycopg"):
        async with DRIVERS[driver](database_url) as (conn, _):
            await ship.submit_in(conn, 1)
            with suppress(ZeroDivisionError):
                async with conn.begin_nested():
                    await ship.submit_in(conn, 2)
                    raise ZeroDivisionError

    assert await stored(given) == (0, 2)


@pytest.mark.parametrize("dialect", ["psycopg", "asyncpg"])
async def test_a_connection_in_autocommit_is_refused(
    given: Given, ship: Task[..., str], database_url: str, dialect: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn:
        with pytest.raises(RuntimeError, match=r"no transaction is open .* `with conn\.transaction\(\):`"):
            await ship.submit_in(conn, 1)
    engine = create_async_engine(database_url.replace("://", f"+{dialect}://"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as raw:
        with pytest.raises(RuntimeError, match="an isolation level other than AUTOCOMMIT"):
            await ship.submit_in(raw, 1)
    await engine.dispose()

    assert await stored(given) == (0, 0)


async def test_a_pipeline_of_psycopg_is_joined_if_its_transaction_is_open(
    given: Given, ship: Task[..., str], database_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn, conn.pipeline():
        async with conn.transaction():
            await ship.submit_in(conn, 1)
        await conn.execute("insert into orders values ('ada')")
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await ship.submit_in(conn, 2)

    assert await stored(given) == (1, 1)


async def test_a_closed_connection_is_refused_as_closed(ship: Task[..., str], database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    await conn.close()
    with pytest.raises(DatabaseUnavailable, match="connection is closed"):
        await ship.submit_in(conn, 1)


async def test_workers_are_notified_after_the_commit_of_an_async_session(
    app: App, ship: Task[..., str], database_url: str
) -> None:
    engine = create_async_engine(database_url.replace("://", "+asyncpg://"))
    async with app, AsyncSession(engine) as session:
        heard = await Heard.listening(app)
        for lane in ("shipping", "shipping", "mail"):
            await ship.with_options(lane=lane).submit_in(session, 1)
            assert heard.lanes == []
            await session.commit()
            assert await heard.first() == lane
    await engine.dispose()


async def test_a_scoped_async_session_is_joined(given: Given, ship: Task[..., str], database_url: str) -> None:
    engine = create_async_engine(database_url.replace("://", "+asyncpg://"))
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    execution = await ship.submit_in(session, 1)
    await session.commit()
    await session.remove()
    await engine.dispose()

    assert isinstance(execution, Execution)
    assert await stored(given) == (0, 1)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_database_without_the_schema_says_what_to_do(app: App, empty_url: str, driver: str) -> None:
    @app.task
    def ship(order: int) -> None: ...

    with pytest.raises(SchemaBehind, match="run `ff migrate`"):
        async with DRIVERS[driver](empty_url) as (conn, _):
            await ship.submit_in(conn, 1)
