"""The steps that a worker reports as running: only long ones, with the renewal of their leases."""

import asyncio
from datetime import timedelta

from flowfabric import Context
from flowfabric.app import App
from flowfabric.app.executions import Execution
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect, Server
from tests.given import Given
from tests.worker.scene import Gate, away, until, working


async def running(execution: Execution[None]) -> list[tuple[str, int]]:
    """The names and numbers of the steps that run, as everybody sees them."""
    return [(step.name, step.number) for step in (await execution.describe()).running]


async def test_a_step_that_takes_long_is_seen_while_it_runs_and_its_duration_afterwards(database_url: str) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("search", asyncio.sleep, 0)
        await ctx.step("write", gate)

    async with working(app):  # it renews every ten seconds, so the report does not wait for that
        execution = await report.submit()
        await until(lambda: running(execution))
        assert await running(execution) == [("write", 2)]
        assert ", step 2 'write' for " in (await execution.explain()).sentence
        assert [(step.name, step.state) async for step in execution.steps()] == [
            ("search", "completed"),
            ("write", "running"),
        ]
        gate.open.set()
        await execution.result(20)
        assert await running(execution) == []
        lasted = {step.name: step.lasted or timedelta() async for step in execution.steps()}

    assert lasted["search"] < timedelta(seconds=1) <= lasted["write"]


async def test_steps_that_run_at_once_are_all_seen_also_in_sync_handlers_and_transactions(database_url: str) -> None:
    app, gate = App(url=database_url), Gate()

    async def written(conn: Connection) -> None:
        await gate()

    @app.task
    async def report(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("page", gate), ctx.transaction_step("write", written), ctx.step("page", gate), ctx.sleep("1h")
        )

    async with working(app) as worker:
        execution = await report.submit()
        await until(lambda: running(execution))
        assert sorted(await running(execution)) == [("page", 1), ("page", 3), ("write", 2)]
        gate.open.set()
        await until(lambda: not worker.busy)
        states = [(step.name, step.state) async for step in execution.steps()]

    assert sorted(states) == [
        ("page", "completed"),
        ("page", "completed"),
        ("sleep", "sleeping"),
        ("write", "completed"),
    ]


async def test_a_step_is_reported_again_after_an_outage(server: Server, database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("write", gate)

    async with working(app):
        execution = await report.submit()
        await until(lambda: gate.inside == 1)
        async with away(server, given):
            pass  # no report has been sent yet
        await until(lambda: running(execution))
        gate.open.set()
        await execution.result(20)


async def test_a_step_of_a_locked_execution_is_seen_when_the_lock_is_gone(database_url: str, connect: Connect) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("write", gate)

    other = await connect()
    async with working(app):
        execution = await report.submit()
        await until(lambda: gate.inside == 1)
        async with other.transaction():
            await other.execute("select from flowfabric.tickets for update")
            free = await report.submit()
            await until(lambda: running(free))
            assert await running(execution) == []
        await until(lambda: running(execution))
        gate.open.set()
        await execution.result(20)


async def test_a_failed_step_that_the_handler_survives_does_not_run_any_more(database_url: str) -> None:
    app, gate, end = App(url=database_url), Gate(), Gate()

    async def fails() -> None:
        await gate()
        raise LookupError("no tide")

    @app.task
    async def report(ctx: Context) -> None:
        try:
            await ctx.step("search", fails)
        except LookupError:
            await end()

    async with working(app, lease="3s"):
        execution = await report.submit()
        await until(lambda: running(execution))
        gate.open.set()
        await until(lambda: end.inside == 1)
        await until(lambda: _none(execution))
        end.open.set()
        await execution.result(20)


async def _none(execution: Execution[None]) -> bool:
    return await running(execution) == []
