"""Sharing a task: handlers that never await run in one task, and no run notices the others."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from flowfabric.app import App
from flowfabric.errors import ExecutionFailed
from flowfabric.handler.context import Context
from tests.worker.scene import Gate, at_work, gated, until, working

customer: ContextVar[str] = ContextVar("customer", default="none")


async def test_handlers_that_never_await_need_no_task_each(database_url: str) -> None:
    app, created, runs = App(url=database_url), 0, 0

    @app.task
    async def count() -> None:
        nonlocal runs
        runs += 1

    def counting(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        nonlocal created
        created += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    async with app:
        await count.submit_many([()] * 300)
        asyncio.get_running_loop().set_task_factory(counting)
        async with at_work(app):
            await until(lambda: runs == 300)

    assert created < 150


async def test_a_run_does_not_see_the_context_variables_of_another(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def serve(name: str, awaits: bool) -> str:
        before = customer.get()
        customer.set(name)
        if awaits:
            await asyncio.sleep(0)
        return f"{before} {customer.get()}"

    async with working(app, concurrency=1):
        for awaits in (False, True):
            executions = await serve.submit_many([(name, awaits) for name in "abc"])
            assert [await execution.result(20) for execution in executions] == ["none a", "none b", "none c"]


async def test_a_handler_that_cancels_its_task_cancels_no_other_run(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def cancel(awaits: bool) -> str:
        if not awaits:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)
        return "done"

    async with working(app, concurrency=1):
        executions = await cancel.submit_many([(False,), (True,), (False,), (True,)])
        assert [await execution.result(20) for execution in executions] == ["done"] * 4


async def test_timeouts_and_task_groups_work_in_a_task_that_ran_other_handlers(database_url: str) -> None:
    app, names = App(url=database_url), set()

    @app.task
    async def run(ctx: Context, number: int) -> str:
        task = asyncio.current_task()
        assert task is not None
        names.add(task.get_name() == f"run {ctx.execution_id}")
        if number % 3 == 0:
            return "at once"
        try:
            async with asyncio.timeout(0.001 if number % 3 == 1 else 60), asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait() if number % 3 == 1 else asyncio.sleep(0))
        except TimeoutError:
            return "too late"
        return await ctx.step("say", lambda: "in time")

    async with working(app, concurrency=4):
        executions = await run.submit_many([(number,) for number in range(30)])
        assert [await execution.result(20) for execution in executions] == ["at once", "too late", "in time"] * 10

    assert names == {True}


async def test_handlers_that_await_start_while_others_wait(database_url: str) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    @app.task
    async def quick() -> str:
        return "done"

    async with working(app, concurrency=20):
        waiting = await wait.submit_many([()] * 19)
        await until(lambda: gate.came == 19)
        others = await quick.submit_many([()] * 50)
        assert [await execution.result(20) for execution in others] == ["done"] * 50
        assert gate.inside == 19
        gate.open.set()
        await asyncio.gather(*(execution.result(20) for execution in waiting))


async def test_a_handler_that_raises_a_base_exception_stops_no_other_run(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url=database_url)

    class Odd(BaseException):
        pass

    @app.task
    async def run(number: int) -> int:
        if number == 0:
            raise Odd
        if number == 1:
            raise ValueError
        return number

    async with working(app, concurrency=1):
        _, failing, *others = await run.submit_many([(number,) for number in range(5)])
        assert [await execution.result(20) for execution in others] == [2, 3, 4]
        with pytest.raises(ExecutionFailed):
            await failing.result(20)

    assert "could not run run 0" in caplog.text
