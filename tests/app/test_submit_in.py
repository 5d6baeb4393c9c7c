"""Submitting inside the caller's own transaction: with the caller's rows, or not at all."""

from contextlib import suppress
from typing import Any

import pytest

from flowfabric import App
from flowfabric.engine import executions
from flowfabric.errors import BudgetNotFound, ExecutionNotFound, PayloadTooLarge
from tests.app.scene import TIMEOUT, working
from tests.given import Given


async def test_a_submission_in_the_callers_transaction_runs_after_the_commit(app: App, given: Given) -> None:
    @app.task(lane="shipping")
    async def ship(order: int) -> str:
        return f"order {order}"

    async with working(app):
        async with given.conn.transaction():
            execution = await ship.with_options(priority=3).submit_in(given.conn, order=1)
            with pytest.raises(ExecutionNotFound):
                await execution.describe()  # on another connection
        await app.wake("shipping")
        assert await execution.result(TIMEOUT) == "order 1"
        assert (await execution.describe()).priority == 3


async def test_a_submission_in_a_transaction_that_is_rolled_back_never_existed(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    async with app, given.nothing_changes():
        with suppress(ZeroDivisionError):
            async with given.conn.transaction():
                execution = await ship.submit_in(given.conn, 1)
                raise ZeroDivisionError
        with pytest.raises(ExecutionNotFound):
            await execution.describe()


async def test_an_app_that_is_not_open_submits_in_the_callers_transaction(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> str:
        return f"order {order}"

    async with given.conn.transaction():
        one = await ship.submit_in(given.conn, 1)
        [two] = await ship.submit_many_in(given.conn, [(2,)])

    async with working(app):
        assert [await one.result(TIMEOUT), await two.result(TIMEOUT)] == ["order 1", "order 2"]


async def test_a_key_submitted_again_in_a_transaction_is_answered_with_the_first_id(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    keyed = ship.with_options(key="order-1")
    async with app:
        before = await keyed.submit(1)
        async with given.conn.transaction():
            again = await keyed.submit_in(given.conn, 1)
            first = await ship.with_options(key="order-2").submit_in(given.conn, 2)
            second = await ship.with_options(key="order-2").submit_in(given.conn, 2)

    assert (again.execution_id, second.execution_id) == (before.execution_id, first.execution_id)
    assert await given.count("executions") == 2


async def test_a_refused_submission_leaves_the_callers_transaction_usable(app: App, given: Given) -> None:
    @app.task
    async def ship(order: str) -> None: ...

    await given.conn.execute("create table orders (name text)")
    async with given.conn.transaction():
        await given.conn.execute("insert into orders values ('ada')")
        with pytest.raises(BudgetNotFound):
            await ship.with_options(budgets=["nowhere"]).submit_in(given.conn, "ada")
        with pytest.raises(PayloadTooLarge):
            await ship.submit_in(given.conn, "x" * 1_048_577)
        with pytest.raises(TypeError, match="order"):
            await ship.submit_in(given.conn)  # type: ignore[call-overload]
        await ship.submit_in(given.conn, "ada")

    assert [row["name"] for row in await given.rows("select name from orders")] == ["ada"]
    assert await given.count("executions") == 1


async def test_many_join_the_callers_transaction_in_the_order_of_the_call(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int, express: bool = False) -> None: ...

    calls: list[Any] = [(number,) for number in range(1_200)]  # more than one statement takes
    async with app:
        with suppress(ZeroDivisionError):
            async with given.conn.transaction():
                await ship.submit_many_in(given.conn, calls)
                raise ZeroDivisionError
        assert await given.count("executions") == 0

        async with given.conn.transaction():
            made = await ship.submit_many_in(given.conn, [*calls, {"order": 7, "express": True}])
            assert await ship.submit_many_in(given.conn, []) == []
        last = await executions.describe(given.conn, made[-1].execution_id, payload=True)
        first = (await given.claim())[0]

    assert (len(made), await given.count("executions")) == (1_201, 1_201)
    assert last.payload == b'{"order":7,"express":true}'
    assert first.execution_id == made[0].execution_id


async def test_of_many_in_a_transaction_those_that_are_not_refused_are_part_of_it(app: App, given: Given) -> None:
    @app.task
    async def ship(order: str) -> None: ...

    async with app:
        async with given.conn.transaction():
            with pytest.raises(ExceptionGroup, match="1 of 3 submissions were refused") as group:
                await ship.submit_many_in(given.conn, [("a",), ("b" * 1_048_577,), ("c",)])
            await ship.submit_in(given.conn, "d")
        stored = [
            await executions.describe(given.conn, each.execution_id, payload=True) for each in await given.claim(take=4)
        ]

    assert [type(each) for each in group.value.exceptions] == [PayloadTooLarge]
    assert [each.payload for each in stored] == [b'{"order":"a"}', b'{"order":"c"}', b'{"order":"d"}']


async def test_without_an_open_transaction_nothing_is_submitted(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    async with given.nothing_changes():
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await ship.submit_in(given.conn, 1)
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await ship.submit_many_in(given.conn, [(1,)])
