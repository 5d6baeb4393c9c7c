"""Replays from a step: what handlers with concurrent steps, approvals and children do again."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flowfabric import App, Context, Execution
from flowfabric.engine import executions
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given, until

Body = Callable[[Context], Coroutine[Any, Any, Any]]


async def replay(app: App, execution: Execution[Any], step: str) -> None:
    async with app.database.connection() as conn:
        await executions.replay(conn, execution.execution_id, by="ops", from_step=step)
    await app.wake("default")


async def wakes(app: App, given: Given, execution: Execution[Any], times: int) -> None:
    """Return when the execution has slept so many times, and the last sleep is over."""
    await happens(execution, "execution_delayed", times)
    await given.time_passes(hours=2)
    await app.wake("default")


@pytest.mark.parametrize(
    ("step", "again"),
    [("a", ["a", "b", "end"]), ("b", ["b", "end"]), ("nap", ["end"]), ("publish", ["end"]), ("end", ["end"])],
)
async def test_steps_of_a_gather_waits_and_approvals_are_places_to_replay_from(
    app: App, given: Given, step: str, again: list[str]
) -> None:
    calls: list[str] = []
    bodies: list[Body] = []

    @app.task
    async def report(ctx: Context) -> str:
        await bodies[-1](ctx)
        return "done"

    async def whole(ctx: Context) -> None:
        await ctx.step("a", lambda: calls.append("a"))
        await asyncio.gather(ctx.step("b", lambda: calls.append("b")), ctx.sleep("1h", name="nap"))
        await ctx.approval("publish", timeout="1ms")
        await ctx.step("end", lambda: calls.append("end"))
        await ctx.sleep("1h", name="rest")

    async def half(ctx: Context) -> None:
        await ctx.step("a", lambda: calls.append("a"))

    bodies.append(whole)
    async with working(app):
        execution = await report.submit()
        await wakes(app, given, execution, 1)
        await happens(execution, "execution_delayed", 2)
        bodies.append(half)
        await wakes(app, given, execution, 2)
        await happens(execution, "execution_held")
        calls.clear()
        bodies.append(whole)
        await replay(app, execution, step)
        for nap in range(3, 5 if step in ("a", "b", "nap") else 4):
            await wakes(app, given, execution, nap)
        assert await execution.result(TIMEOUT) == "done"
    assert calls == again


async def test_a_replay_from_a_child_submits_another_one(app: App, given: Given) -> None:
    ran: list[int] = []

    @app.task
    async def search(number: int) -> int:
        ran.append(number)
        return number

    async def first(ctx: Context) -> None:
        await ctx.step("old", int)
        await (await ctx.submit(search, 1)).result()
        await ctx.sleep("1h")

    async def second(ctx: Context) -> int:
        return await (await ctx.submit(search, 2)).result()

    bodies: list[Body] = [first]

    @app.task(retired=["old"])
    async def report(ctx: Context) -> Any:
        return await bodies[-1](ctx)

    async with working(app):
        execution = await report.submit()
        await until(lambda: given.rows("select from flowfabric.tickets where due_at > clock_timestamp() + '30 min'"))
        bodies.append(second)
        await wakes(app, given, execution, 1)
        await happens(execution, "execution_held")
        await replay(app, execution, "submit:search")
        assert await execution.result(TIMEOUT) == 2
    assert ran == [1, 2]
