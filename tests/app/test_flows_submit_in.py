"""Submitting a flow in the transaction of a caller, with the drivers people use: with its rows, or not at all."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from flowfabric import App, FlowHandle, SyncFlowHandle
from flowfabric.app.flows import Flow
from flowfabric.errors import BudgetNotFound, SchemaBehind
from tests.app.drivers import SYNC, django_connection, of_django, of_psycopg, of_session
from tests.app.scene import TIMEOUT, Heard, working
from tests.app.test_submit_in_async_drivers import DRIVERS
from tests.given import Given

INSERT = "insert into orders values ('ada')"


@pytest.fixture
async def flow(app: App, given: Given) -> Flow:
    """A flow of three: pick and bill an order, then ship it."""
    await given.conn.execute("create table orders (customer text)")

    @app.task(lane="shipping")
    async def pick(order: int) -> str:
        return f"order {order}"

    @app.task(lane="billing")
    async def bill(order: int) -> None: ...

    @app.task(lane="shipping")
    async def ship(parcel: str) -> str:
        return f"{parcel} is on its way"

    flow = app.flow("order", tags={"shop.name": 'a"b'})
    flow.add(ship, flow.add(pick, 1)).after(flow.add(bill, 1))
    return flow


async def stored(given: Given) -> tuple[int, int, int]:
    """How many orders, flows and executions there are."""
    [row] = await given.rows("select count(*) as orders from orders")
    return int(row["orders"]), await given.count("flows"), await given.count("executions")


@pytest.mark.parametrize("driver", SYNC)
async def test_the_row_and_the_flow_are_committed_together(
    app: App, given: Given, flow: Flow, database_url: str, driver: str
) -> None:
    def program() -> str:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            handle = flow.submit_in(opened.conn)
            opened.commit()
        assert isinstance(handle, SyncFlowHandle)
        answer: str = handle.execution("ship").result(TIMEOUT)
        return answer

    async with working(app):
        assert await asyncio.to_thread(program) == "order 1 is on its way"
    assert await stored(given) == (1, 1, 3)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_row_and_the_flow_are_committed_together_by_async_drivers(
    app: App, given: Given, flow: Flow, database_url: str, driver: str
) -> None:
    async with working(app):
        async with DRIVERS[driver](database_url) as (conn, execute):
            await execute(INSERT)
            handle = await flow.submit_in(conn)
            assert await given.count("flows") == 0
        assert isinstance(handle, FlowHandle)
        assert await handle.execution("ship").result(TIMEOUT) == "order 1 is on its way"
    assert await stored(given) == (1, 1, 3)


@pytest.mark.parametrize("driver", SYNC)
async def test_a_rollback_undoes_both(given: Given, flow: Flow, database_url: str, driver: str) -> None:
    def program() -> None:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            flow.submit_in(opened.conn)
            opened.rollback()

    await asyncio.to_thread(program)
    assert await stored(given) == (0, 0, 0)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_rollback_undoes_both_on_async_drivers(
    given: Given, flow: Flow, database_url: str, driver: str
) -> None:
    with suppress(ZeroDivisionError):
        async with DRIVERS[driver](database_url) as (conn, execute):
            await execute(INSERT)
            await flow.submit_in(conn)
            raise ZeroDivisionError

    assert await stored(given) == (0, 0, 0)


@pytest.mark.parametrize("driver", SYNC)
async def test_a_refused_flow_is_undone_by_the_savepoint_around_it(
    app: App, given: Given, flow: Flow, database_url: str, driver: str
) -> None:
    refused = app.flow("refused")
    refused.add(app.tasks["bill"].with_options(budgets=["nowhere"]), 1)

    def program() -> None:
        with SYNC[driver](database_url) as opened:
            opened.execute(INSERT)
            with pytest.raises(BudgetNotFound), opened.savepoint():
                refused.submit_in(opened.conn)
            flow.submit_in(opened.conn)
            opened.commit()

    await asyncio.to_thread(program)
    assert await stored(given) == (1, 1, 3)


async def test_a_key_submitted_again_is_answered_with_the_first_flow(app: App, given: Given, database_url: str) -> None:
    @app.task
    def pick(order: int) -> None: ...

    def program() -> list[Any]:
        with of_session(database_url) as opened:
            handles = []
            for _ in range(2):
                flow = app.flow("order", key="order-1")
                flow.add(pick, 1)
                handles.append(flow.submit_in(opened.conn))
            opened.commit()
            return [(each.outcome, each.flow_id, each.execution("pick").execution_id) for each in handles]

    first, again = await asyncio.to_thread(program)
    assert (first[0], again[0]) == ("created", "duplicate")
    assert first[1:] == again[1:]
    assert (await given.count("flows"), await given.count("executions")) == (1, 1)


@pytest.mark.parametrize("open_driver", [of_session, of_django])
async def test_workers_of_the_first_lanes_are_notified_after_the_commit(
    app: App, flow: Flow, database_url: str, open_driver: Any
) -> None:
    def program(heard: Heard) -> list[str]:
        with open_driver(database_url) as opened:
            flow.submit_in(opened.conn)
            before = list(heard.lanes)
            opened.commit()
            return before

    async with app:
        heard = await Heard.listening(app)
        assert await asyncio.to_thread(program, heard) == []
        assert {await heard.first(), await heard.first()} == {"shipping", "billing"}


async def test_without_a_transaction_nothing_is_submitted(given: Given, flow: Flow, database_url: str) -> None:
    def program() -> None:
        with django_connection(database_url) as conn:
            with pytest.raises(RuntimeError, match=r"no transaction is open .* `with transaction\.atomic\(\):`"):
                flow.submit_in(conn)
            with suppress(ZeroDivisionError), transaction.atomic(), transaction.atomic():
                flow.submit_in(conn)
                raise ZeroDivisionError

    await asyncio.to_thread(program)
    with pytest.raises(RuntimeError, match="no transaction is open"):
        await flow.submit_in(given.conn)
    with pytest.raises(TypeError, match="str is not a connection that can be joined"):
        flow.submit_in("postgresql://localhost/shop")  # type: ignore[call-overload]
    assert await stored(given) == (0, 0, 0)


@pytest.mark.parametrize("open_driver", [of_psycopg, of_session, of_django])
async def test_a_database_without_the_schema_says_what_to_do(app: App, empty_url: str, open_driver: Any) -> None:
    @app.task
    def pick(order: int) -> None: ...

    flow = app.flow("order")
    flow.add(pick, 1)

    def program() -> None:
        with open_driver(empty_url) as opened, pytest.raises(SchemaBehind, match="run `ff migrate`"):
            flow.submit_in(opened.conn)

    await asyncio.to_thread(program)
