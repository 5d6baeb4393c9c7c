"""A call of the context that is not awaited does nothing, and the run says so."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import App, Context
from tests.app.scene import TIMEOUT, working

CALLS: list[tuple[Callable[[Context], object], str]] = [
    (lambda ctx: ctx.sleep("1h"), "ctx.sleep('1h')"),
    (lambda ctx: ctx.wait_for_signal("paid"), "ctx.wait_for_signal('paid')"),
    (lambda ctx: ctx.approval("publish"), "ctx.approval('publish')"),
    (lambda ctx: ctx.step("mail", print, "sent"), "ctx.step('mail')"),
    (lambda ctx: ctx.now(), "ctx.step('now')"),
    (lambda ctx: ctx.submit("forgetful"), "ctx.submit('forgetful')"),
    (lambda ctx: ctx.report_usage("team-a", tokens=3), "ctx.report_usage('team-a')"),
    (lambda ctx: ctx.reserve("team-a", tokens=3), "async with ctx.reserve('team-a')"),
    (lambda ctx: ctx.create_waitpoint("paid"), "ctx.create_waitpoint('paid')"),
    (lambda ctx: ctx.any_of(ctx.sleep("1h")), "ctx.any_of(...)"),
]


@pytest.mark.parametrize(("call", "shown"), CALLS)
async def test_a_call_without_await_is_logged_with_its_task_and_execution(
    app: App, caplog: pytest.LogCaptureFixture, call: Callable[[Context], object], shown: str
) -> None:
    @app.task
    async def forgetful(ctx: Context) -> str:
        call(ctx)
        return "done"

    async with working(app):
        execution = await forgetful.submit()
        assert await execution.result(TIMEOUT) == "done"
    [record] = [record for record in caplog.records if "did not await" in record.message]
    assert record.message.startswith(f"task forgetful did not await {shown}, so the call did nothing; ")
    assert str(execution.execution_id) in record.message


async def test_calls_that_are_awaited_later_or_together_are_not_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def one() -> int:
        return 1

    @app.task
    async def careful(ctx: Context) -> int:
        pause, pauses = ctx.sleep("1ms"), [ctx.sleep("1ms", name="b"), ctx.sleep("1ms", name="c")]
        await ctx.step("first", one)
        await pause
        await ctx.all_of(*pauses)
        won = await ctx.any_of(ctx.sleep("1ms", name="short"), ctx.sleep("1d", name="long"))
        steps: list[Any] = [ctx.step("many", one) for _ in range(200)]
        return won.index + sum([int(each) for each in await asyncio.gather(*steps)])

    async with working(app):
        assert await (await careful.submit()).result(TIMEOUT) == 200
    assert "did not await" not in caplog.text


async def test_of_many_calls_only_the_forgotten_ones_are_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def forgetful(ctx: Context) -> None:
        for number in range(300):
            made = ctx.step(f"step-{number}", int)
            if number not in (7, 290):
                await made

    async with working(app):
        await (await forgetful.submit()).result(TIMEOUT)
    assert "did not await ctx.step('step-7'), ctx.step('step-290'), so" in caplog.text


async def test_a_step_that_is_still_scheduled_is_not_taken_for_a_forgotten_one(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    tasks: list[asyncio.Task[int]] = []

    @app.task
    async def hasty(ctx: Context) -> None:
        tasks.append(asyncio.create_task(ctx.step("late", int)))

    async with working(app):
        await (await hasty.submit()).result(TIMEOUT)
        await asyncio.wait(tasks)
    assert "did not await" not in caplog.text
