"""Streams of runs that are interrupted without an end of their attempt: stopped workers, suspended budgets."""

import asyncio
from typing import Any

from flowfabric import App, Context, Execution
from flowfabric.engine import budgets
from flowfabric.model import Frame, Superseded
from flowfabric.worker import Worker
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given


async def shown(execution: Execution[Any], attempts: Any = "valid") -> str:
    kept: list[Frame] = []
    async for frame in execution.frames(attempts=attempts):
        if isinstance(frame, Superseded):
            kept = [old for old in kept if frame.keeps(old)]
        elif isinstance(frame, Frame):
            kept.append(frame)
    return "".join(frame.text or "" for frame in kept)


async def test_text_of_a_worker_that_stops_is_not_shown_twice(app: App, given: Given) -> None:
    written = asyncio.Event()

    @app.task
    async def report(ctx: Context) -> None:
        async def write(name: str) -> None:
            out = ctx.stream("answer")
            for token in "abc":
                await out.write(f"{name}{token} ")
            await out.flush()

        async def interrupted() -> None:
            await write("2")
            if not written.is_set():
                written.set()
                await asyncio.Event().wait()

        await ctx.step("one", write, "1")
        await write("between")
        await ctx.step("two", interrupted)
        await write("end")

    async with app:
        execution = await report.submit()
        worker = Worker(app, drain="0s")
        running = asyncio.create_task(worker.run())
        await written.wait()
        worker.stop()
        await running
        worker = Worker(app, drain="0s")
        running = asyncio.create_task(worker.run())
        await execution.result(TIMEOUT)
        worker.stop()
        await running
        assert (await execution.describe()).counts.attempts == 1
        assert await shown(execution) == "1a 1b 1c betweena betweenb betweenc 2a 2b 2c enda endb endc "


async def test_text_of_a_run_that_a_budget_suspends_is_not_shown_twice(app: App, given: Given) -> None:
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 10}, on_hard_limit="suspend")

    @app.task(budgets=["team"])
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("a ")
        await ctx.report_usage("team", tokens=10)

        async def write() -> None:
            async with ctx.stream("answer") as out:
                await out.write("b ")
            await ctx.report_usage("team", tokens=5)

        await ctx.step("write", write)

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_suspended")
        await budgets.change_budget(given.conn, "team", hard_limits={"tokens": 100}, by="ops")
        await app.wake("default")
        await execution.result(TIMEOUT)
        assert await shown(execution) == "a b "
