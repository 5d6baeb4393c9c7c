"""Maps: a task for each of many items, a bounded number at once, and all results in order."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import App, ChildFailed, Context, ExecutionFailed, SyncContext, Worker
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given


class Watched:
    """A task that counts how many of its executions run at the same time."""

    def __init__(self, app: App) -> None:
        self.running = self.most = self.runs = 0

        @app.task
        async def double(number: int) -> int:
            self.running += 1
            self.runs += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            if number < 0:
                raise ValueError(f"{number} is below zero")
            return 2 * number

        self.task = double


async def test_a_map_returns_the_results_in_the_order_of_the_items(app: App, given: Given) -> None:
    watched, runs = Watched(app), []

    @app.task
    async def total(ctx: Context) -> list[int]:
        runs.append(1)
        return await ctx.map(watched.task, range(100), max_running=7)

    async with working(app, concurrency=30):
        execution = await total.submit()
        assert await execution.result(TIMEOUT) == [2 * number for number in range(100)]
        kinds = [event.kind async for event in execution.events()]
    assert (kinds.count("execution_suspended"), len(runs), watched.runs) == (1, 2, 100)
    assert watched.most <= 7
    assert await given.count("maps") == await given.count("map_children") == 0


@pytest.mark.parametrize("most", [None, 1, 3, 4, 10**30])
async def test_a_map_takes_any_iterable_and_any_bound(app: App, most: int | None) -> None:
    watched = Watched(app)

    def items() -> Iterator[int]:
        yield from (3, 1, 2)

    @app.task
    async def total(ctx: Context) -> list[list[int]]:
        one, none = await asyncio.gather(
            ctx.map(watched.task, [5], max_running=most), ctx.map(watched.task, [], max_running=most)
        )
        return [await ctx.map(watched.task, items(), max_running=most), one, none]

    async with working(app):
        assert await (await total.submit()).result(TIMEOUT) == [[6, 2, 4], [10], []]


async def test_a_child_that_fails_raises_its_failure_and_names_the_item(app: App) -> None:
    watched = Watched(app)

    @app.task(retries=5)
    async def total(ctx: Context) -> list[int]:
        return await ctx.map(watched.task, [1, -2, 3], max_running=2)

    async with working(app):
        execution = await total.submit()
        with pytest.raises(ExecutionFailed, match=r"ChildFailed: items\[1\]: child \S+ failed: ValueError: -2 is"):
            await execution.result(TIMEOUT)
        kinds = [event.kind async for event in execution.events()]
    assert kinds.count("execution_suspended") == 1
    assert "execution_retried" not in kinds


async def test_all_settled_returns_failures_of_a_map_in_their_places(app: App) -> None:
    watched = Watched(app)

    @app.task
    async def total(ctx: Context) -> list[Any]:
        outcomes = await ctx.all_settled(ctx.map(watched.task, [1, -2, 3], max_running=2))
        return [each.state if isinstance(each, ChildFailed) else each for each in outcomes]

    @app.task
    def blocked(ctx: SyncContext) -> list[Any]:
        outcomes = ctx.all_settled(ctx.unwaited.map(watched.task, [1, -2, 3]))
        assert ctx.map(watched.task, [5], max_running=1) == [10]
        return [each.state if isinstance(each, ChildFailed) else each for each in outcomes]

    async with working(app):
        for task in (total, blocked):
            assert await (await task.submit()).result(TIMEOUT) == [2, "failed", 6]


async def test_a_task_given_by_name_takes_its_arguments_by_name(app: App) -> None:
    Watched(app)

    @app.task(lane="other")
    async def repeated(text: str, *, times: int = 2) -> str:
        return text * times

    app.tasks.pop("repeated")  # as if it belonged to another program

    @app.task
    async def total(ctx: Context) -> list[Any]:
        options: Any = {"lane": "other"}
        doubled = await ctx.map("double", [{"number": 1}, {"number": 2}], {"priority": 5}, max_running=1)
        waiting = ctx.map("repeated", [{"text": "a"}, {"text": "b", "times": 3}], options, returns=str)
        assert repr(waiting) == "<map of repeated>"
        return [doubled, await waiting]

    async with working(app, lanes=["default"]):
        execution = await total.submit()
        await happens(execution, "execution_suspended", 2)
        app.tasks["repeated"] = repeated
        other = Worker(app, lanes=["other"])
        running = asyncio.create_task(other.run())
        assert await execution.result(TIMEOUT) == [[2, 4], ["aa", "bbb"]]
        other.stop()
        await running


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda ctx, task: ctx.map(task, [1, "two"]), r"items\[1\] of ctx.map: the arguments do not fit .*`int`"),
        (lambda ctx, task: ctx.map(task, [1, 2j]), r"items\[1\] of ctx.map: .*complex"),
        (lambda ctx, task: ctx.map("double", [1]), r"items\[0\] of ctx.map: use the arguments of double by name"),
        (lambda ctx, task: ctx.map("double", [{"returns": 1}]), r"items\[0\] of ctx.map: .* without returns"),
        (lambda ctx, task: ctx.map("double", [{}]), r"items\[0\] of ctx.map: missing a required argument: 'number'"),
        (lambda ctx, task: ctx.map("dubble", [{"number": 1}]), "task 'dubble' does not exist in this app; use double"),
        (lambda ctx, task: ctx.map(task, [1], max_running=0), "max_running 0 is invalid; use 1 or more"),
        (lambda ctx, task: ctx.map(task, [1], max_running=-1), "max_running -1 is invalid"),
        (lambda ctx, task: ctx.map(task, [1], max_running=True), "max_running True is invalid"),
        (lambda ctx, task: ctx.map(task, range(10_001)), "got 10,001 items; use at most 10,000"),
        (lambda ctx, task: ctx.all_settled(ctx.map(task, [1]), ctx.sleep("1h")), "all_settled got <map of double>"),
        (lambda ctx, task: ctx.any_of(ctx.map(task, [1]), ctx.sleep("1h")), "any_of got Mapped"),
    ],
)
async def test_a_wrong_map_is_refused_before_anything_is_submitted(
    app: App, given: Given, wrong: Any, said: str
) -> None:
    watched = Watched(app)

    @app.task
    async def total(ctx: Context) -> None:
        await wrong(ctx, watched.task)

    async with working(app):
        with pytest.raises(ExecutionFailed, match=said):
            await (await total.submit()).result(TIMEOUT)
    assert await given.count("executions") == 1
