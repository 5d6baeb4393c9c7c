"""Submitting in the transaction of a sync driver: with the caller's rows, or not at all."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.orm import Session

from flowfabric import App, SyncExecution
from flowfabric.app.tasks import Task
from flowfabric.engine import executions
from flowfabric.errors import BudgetNotFound, FlowFabricError, LaneNotFound, PayloadTooLarge, SchemaBehind
from flowfabric.postgres.callers import caller, finish
from tests.app.drivers import SYNC, django_connection, of_django, of_psycopg, of_session
from tests.app.scene import TIMEOUT, Heard, working
from tests.given import Given

ORDERS = "create table orders (id bigint generated always as identity primary key, customer text)"
INSERT = "insert into orders (customer) values ('ada')"


@pytest.fixture
async def ship(app: App, given: Given) -> Task[..., str]:
    await given.conn.execute(ORDERS)

    @app.task(lane="shipping")
    async def ship(order: int, note: str = "") -> str:
        return f"order {order}{note}"

    return ship


async def stored(given: Given) -> tuple[int, int]:
    """How many orders and executions there are."""
    [row] = await given.rows("select count(*) as orders from orders")
    return int(row["orders"]), await given.count("executions")


@pytest.mark.parametrize("driver", SYNC)
async def test_the_row_and_the_submission_are_committed_together(
    app: App, given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    def program() -> str:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            execution: SyncExecution[str] = ship.submit_in(opened.conn, 1, note=' "ü" \\ {%s} :p1 $1')
            opened.commit()
        return execution.result(TIMEOUT)

    async with working(app):
        assert await asyncio.to_thread(program) == 'order 1 "ü" \\ {%s} :p1 $1'
    assert await stored(given) == (1, 1)


class Key(str, Enum):  # noqa: UP042 - as programs have that are older than StrEnum
    """A text of another type, as web frameworks and templates have them too."""

    FIRST = "order-1"


class Rank(int, Enum):
    HIGH = 5


class Moment(datetime):
    """A datetime of another library."""


@pytest.mark.parametrize("driver", SYNC)
async def test_options_may_be_members_of_enums_and_datetimes_of_other_libraries(
    given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    moment = Moment.now(UTC) + timedelta(hours=1)

    def program() -> None:
        with SYNC[driver](database_url) as opened:
            ship.with_options(key=Key.FIRST, priority=Rank.HIGH, delay=moment).submit_in(opened.conn, 1)
            opened.commit()

    await asyncio.to_thread(program)
    [row] = await given.rows(
        "select k.key, t.priority, t.due_at from flowfabric.tickets t "
        "join flowfabric.idempotency_keys k on k.execution = t.id"
    )
    assert tuple(row.values()) == ("order-1", 5, moment)


@pytest.mark.parametrize("driver", SYNC)
async def test_a_rollback_undoes_both(given: Given, ship: Task[..., str], database_url: str, driver: str) -> None:
    def program() -> None:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            ship.submit_in(opened.conn, 1)
            ship.submit_many_in(opened.conn, [(2,), {"order": 3}])
            opened.rollback()

    await asyncio.to_thread(program)
    assert await stored(given) == (0, 0)


@pytest.mark.parametrize("driver", SYNC)
async def test_a_savepoint_that_is_rolled_back_takes_its_submission_with_it(
    given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    def program() -> str:
        with SYNC[driver](database_url) as opened:
            kept = ship.submit_in(opened.conn, 1)
            with suppress(ZeroDivisionError), opened.savepoint():
                opened.execute(INSERT)
                ship.submit_in(opened.conn, 2)
                raise ZeroDivisionError
            opened.commit()
            return str(kept.execution_id)

    kept = await asyncio.to_thread(program)
    assert await stored(given) == (0, 1)
    assert [str(claim.execution_id) for claim in await given.claim(lanes=["shipping"])] == [kept]


@pytest.mark.parametrize("driver", SYNC)
async def test_a_refusal_leaves_the_transaction_usable(
    given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    def program() -> list[type[Exception]]:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            with pytest.raises(BudgetNotFound):
                ship.with_options(budgets=["nowhere"]).submit_in(opened.conn, 1)
            with pytest.raises(ExceptionGroup) as group:
                ship.submit_many_in(opened.conn, [(1, "a"), (2, "b" * 1_048_577), (3, "c")])
            opened.commit()
            return [type(each) for each in group.value.exceptions]

    assert await asyncio.to_thread(program) == [PayloadTooLarge]
    assert await stored(given) == (1, 2)


@pytest.mark.parametrize("driver", SYNC)
async def test_every_option_arrives(given: Given, ship: Task[..., str], database_url: str, driver: str) -> None:
    deadline = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    options: dict[str, Any] = {"key": "o'1", "priority": 7, "tags": {"shop.customer": 'a"d\\a'}, "deadline": deadline}

    def program() -> tuple[SyncExecution[str], SyncExecution[str]]:
        with SYNC[driver](database_url) as opened:
            first = ship.with_options(**options, delay="1h").submit_in(opened.conn, 1)
            again = ship.with_options(**options, delay="1h").submit_in(opened.conn, 1)
            opened.commit()
            return first, again

    first, again = await asyncio.to_thread(program)
    found = await executions.describe(given.conn, first.execution_id, payload=True)
    assert again.execution_id == first.execution_id
    assert (found.priority, found.deadline_at, found.tags) == (7, deadline, options["tags"])
    assert (found.state.public_state, found.payload) == ("delayed", b'{"order":1}')


@pytest.mark.parametrize("driver", ["psycopg", "SQLAlchemy session", "Django"])
async def test_threads_submit_at_once_on_connections_of_their_own(
    given: Given, ship: Task[..., str], database_url: str, driver: str
) -> None:
    def program(order: int) -> None:
        with SYNC[driver](database_url) as opened:
            for number in range(5):
                ship.with_options(key=f"{order}-{number}").submit_in(opened.conn, number)
            opened.execute(INSERT)
            opened.commit()

    await asyncio.gather(*(asyncio.to_thread(program, order) for order in range(2)))
    assert await stored(given) == (2, 10)


async def test_ten_thousand_join_one_transaction(given: Given, ship: Task[..., str], database_url: str) -> None:
    def program() -> int:
        with of_psycopg(database_url) as opened:
            made = ship.submit_many_in(opened.conn, [(number,) for number in range(10_000)])
            assert ship.submit_many_in(opened.conn, []) == []
            opened.commit()
            return len({each.execution_id for each in made})

    assert await asyncio.to_thread(program) == await given.count("executions") == 10_000


def _autocommit_psycopg(url: str, submit: Callable[[Any], object]) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        submit(conn)


def _autocommit_sqlalchemy(url: str, submit: Callable[[Any], object]) -> None:
    engine = sqlalchemy.create_engine(url.replace("://", "+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        submit(conn)
    with Session(engine) as session:
        submit(session)
    engine.dispose()


def _autocommit_django(url: str, submit: Callable[[Any], object]) -> None:
    with django_connection(url) as conn:
        submit(conn)


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (_autocommit_psycopg, r"with conn\.transaction\(\):"),
        (_autocommit_sqlalchemy, "an isolation level other than AUTOCOMMIT"),
        (_autocommit_django, r"with transaction\.atomic\(\):"),
    ],
)
async def test_without_a_transaction_nothing_is_submitted(
    given: Given, ship: Task[..., str], database_url: str, use: Callable[..., None], remedy: str
) -> None:
    def submit(conn: Any) -> None:
        with pytest.raises(RuntimeError, match=f"no transaction is open .* use `?{remedy}"):
            ship.submit_in(conn, 1)
        with pytest.raises(RuntimeError, match="no transaction is open"):
            ship.submit_many_in(conn, [(1,)])

    await asyncio.to_thread(use, database_url, submit)
    assert await stored(given) == (0, 0)


async def test_a_transaction_block_on_an_autocommit_connection_is_joined(
    given: Given, ship: Task[..., str], database_url: str
) -> None:
    def program() -> None:
        with psycopg.connect(database_url, autocommit=True) as conn:
            with suppress(ZeroDivisionError), conn.transaction():
                ship.submit_in(conn, 1)
                raise ZeroDivisionError
            with conn.transaction():
                ship.submit_in(conn, 2)

    await asyncio.to_thread(program)
    assert await stored(given) == (0, 1)


async def test_a_pipeline_of_psycopg_is_joined_if_its_transaction_is_open(
    given: Given, ship: Task[..., str], database_url: str
) -> None:
    def program() -> None:
        with psycopg.connect(database_url) as conn, conn.pipeline():
            conn.execute(INSERT)
            ship.submit_in(conn, 1)
        with psycopg.connect(database_url, autocommit=True) as conn, conn.pipeline():
            with conn.transaction():
                conn.execute(INSERT)
                ship.submit_in(conn, 2)
            conn.execute(INSERT)  # sent, not yet answered: the connection only knows that it is busy
            with pytest.raises(RuntimeError, match="no transaction is open"):
                ship.submit_in(conn, 3)

    await asyncio.to_thread(program)
    assert await stored(given) == (3, 2)


async def test_a_connection_that_is_closed_or_to_another_kind_of_database_is_refused_as_such(
    ship: Task[..., str], database_url: str
) -> None:
    def program() -> None:
        with psycopg.connect(database_url) as conn:
            conn.close()
            with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
                ship.submit_in(conn, 1)
        engine = sqlalchemy.create_engine("sqlite://")
        with Session(engine) as session, pytest.raises(TypeError, match="is to sqlite, not to Postgres"):
            ship.submit_in(session, 1)
        engine.dispose()

    await asyncio.to_thread(program)


@pytest.mark.parametrize("open_driver", [of_session, of_django])
async def test_workers_are_notified_after_the_commit(
    app: App, ship: Task[..., str], database_url: str, open_driver: Any
) -> None:
    def program(heard: Heard) -> list[str]:
        with open_driver(database_url) as opened:
            with opened.savepoint():
                ship.submit_in(opened.conn, 1)
            before = list(heard.lanes)
            opened.commit()
            return before

    async with app:
        heard = await Heard.listening(app)
        assert await asyncio.to_thread(program, heard) == []
        assert await heard.first() == "shipping"


async def test_django_in_a_transaction_of_your_own_submits_and_cannot_notify(
    given: Given, ship: Task[..., str], database_url: str
) -> None:
    def program() -> None:
        with django_connection(database_url) as conn:
            transaction.set_autocommit(False)
            ship.submit_in(conn, 1)
            transaction.commit()
            transaction.set_autocommit(True)

    await asyncio.to_thread(program)
    assert await stored(given) == (0, 1)


async def test_a_handle_made_while_the_app_is_closed_works_when_it_is_open(
    app: App, ship: Task[..., str], database_url: str
) -> None:
    def program() -> SyncExecution[str]:
        with of_psycopg(database_url) as opened:
            execution: SyncExecution[str] = ship.submit_in(opened.conn, 1)
            opened.commit()
            return execution

    execution = await asyncio.to_thread(program)
    with pytest.raises(RuntimeError, match="this app is not open"):
        execution.result()
    async with working(app):
        assert await asyncio.to_thread(execution.result, TIMEOUT) == "order 1"


@pytest.mark.parametrize("open_driver", [of_psycopg, of_session, of_django])
async def test_a_database_without_the_schema_says_what_to_do(app: App, empty_url: str, open_driver: Any) -> None:
    @app.task
    def ship(order: int) -> None: ...

    def program() -> None:
        with open_driver(empty_url) as opened, pytest.raises(SchemaBehind, match="run `ff migrate`"):
            ship.submit_in(opened.conn, 1)

    await asyncio.to_thread(program)


@pytest.mark.parametrize("open_driver", [of_psycopg, of_session, of_django])
async def test_an_error_that_sql_raises_has_its_class_and_fields(database_url: str, open_driver: Any) -> None:
    def program() -> None:
        with open_driver(database_url) as opened:
            refusing = "select * from flowfabric._refuse($1, $2, $3::jsonb)"
            with pytest.raises(LaneNotFound, match="no lane x") as raised:
                finish(caller(opened.conn).fetch(refusing, "lane_not_found", "no lane x", '{"lane": "x"}'))
            assert raised.value.fields == {"lane": "x"}

    await asyncio.to_thread(program)


@pytest.mark.parametrize("open_driver", [of_psycopg, of_session, of_django])
async def test_other_errors_of_the_driver_stay_its_own(database_url: str, open_driver: Any) -> None:
    def program() -> None:
        with open_driver(database_url) as opened, pytest.raises(Exception, match="division by zero") as raised:
            finish(caller(opened.conn).fetch("select 1 / $1", 0))
        assert not isinstance(raised.value, FlowFabricError)

    await asyncio.to_thread(program)


@pytest.mark.parametrize("strange", [3, "postgresql://localhost/shop", object()])
async def test_what_is_no_connection_is_refused_by_name(ship: Task[..., str], strange: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(strange).__name__} is not a connection that can be joined; pass"):
        ship.submit_in(strange, 1)
