"""Children: executions that a handler submits and waits for."""

import asyncio
from typing import Any

import pytest

from flowfabric import App, Child, ChildFailed, Context, Execution, ExecutionFailed, SyncContext
from flowfabric.app.tasks import Task
from flowfabric.engine import children, executions
from flowfabric.ids import ExecutionId
from tests.app.scene import TIMEOUT, happens, later, working
from tests.conftest import SOAK
from tests.given import Given


def squares(app: App) -> Task[[int], int]:
    @app.task
    async def square(number: int) -> int:
        return number * number

    task: Task[[int], int] = square
    return task


def failing(app: App) -> Task[[], None]:
    @app.task
    async def fail() -> None:
        raise ValueError("no luck")

    task: Task[[], None] = fail
    return task


def idle(app: App, **options: Any) -> Task[[], None]:
    """A task in a lane without a worker."""

    @app.task(**{"lane": "idle", **options})
    async def wait() -> None: ...

    task: Task[[], None] = wait
    return task


async def family(given: Given, parent: Execution[Any]) -> list[ExecutionId]:
    found = await given.rows(
        "select partition, id from flowfabric.executions e where (parent_partition, parent) = ($1, $2) "
        "order by created_at",
        parent.execution_id.partition,
        parent.execution_id.uuid,
    )
    return [ExecutionId(row["partition"], row["id"]) for row in found]


async def swept(app: App, given: Given) -> None:
    """Deliver the ends of children now, instead of waiting for the sweep of a worker."""
    await children.deliver_child_ends(given.conn)
    await app.wake("default")


async def test_a_parent_gets_the_results_of_its_children(app: App, given: Given) -> None:
    square = squares(app)

    @app.task
    async def total(ctx: Context) -> list[int]:
        first = await ctx.submit(square, 2)
        second = await ctx.submit("square", {"priority": 7}, number=3)
        return [await first.result(), await second.result()]

    async with working(app):
        execution = await total.submit()
        assert await execution.result(TIMEOUT) == [4, 9]
        second = (await family(given, execution))[1]
        assert (await app.execution(second).describe()).priority == 7


async def test_a_child_with_an_unknown_name_fails_its_parent_at_once(app: App, given: Given) -> None:
    squares(app)

    @app.task(retries=3)
    async def parent(ctx: Context) -> None:
        await ctx.submit("sqaure", number=3)

    async with working(app):
        execution = await parent.submit()
        with pytest.raises(ExecutionFailed, match=r"task 'sqaure' does not exist in this app; use square"):
            await execution.result(TIMEOUT)
    assert await given.count("executions") == 1


async def test_many_children_are_one_suspension_and_the_parent_runs_twice(app: App, given: Given) -> None:
    runs, many, is_suspended = [], 1_000 if SOAK else 200, asyncio.Event()

    @app.task
    async def square(number: int) -> int:
        await is_suspended.wait()
        return number * number

    @app.task
    async def total(ctx: Context) -> int:
        runs.append(1)
        asked = await asyncio.gather(*(ctx.submit(square, number) for number in range(many)))
        return sum(await asyncio.gather(*(child.result() for child in asked)))

    async with working(app, concurrency=50):
        execution = await total.submit()
        await happens(execution, "execution_suspended")
        is_suspended.set()
        assert await execution.result(TIMEOUT) == sum(number * number for number in range(many))
        kinds = [event.kind async for event in execution.events()]
    assert (kinds.count("execution_suspended"), kinds.count("signal_delivered"), len(runs)) == (1, many, 2)
    await children.deliver_child_ends(given.conn)
    assert await given.count("child_ends") == 0


@pytest.mark.parametrize(
    ("how", "state", "why"),
    [
        ("fail", "failed", "ValueError: no luck"),
        ("cancel", "cancelled", "not wanted"),
        ("expire", "expired", "deadline"),
    ],
)
async def test_a_child_that_does_not_complete_raises_an_error_that_a_handler_can_catch(
    app: App, given: Given, how: str, state: str, why: str
) -> None:
    fail, wait = failing(app), idle(app)

    @app.task
    async def parent(ctx: Context) -> tuple[str, str]:
        child = await (ctx.submit(fail) if how == "fail" else ctx.submit(wait.with_options(deadline="1h")))
        try:
            await child.result()
        except ChildFailed as failed:
            return failed.state, str(failed)
        return "completed", ""

    async with working(app, lanes=["default"]):
        execution = await parent.submit()
        if how != "fail":
            await happens(execution, "execution_suspended")
            [child] = await family(given, execution)
            if how == "cancel":
                await app.execution(child).cancel("not wanted")
            else:
                await given.time_passes(hours=2)
                await executions.expire_executions(given.conn)
            await swept(app, given)
        found, said = await execution.result(TIMEOUT)
    assert found == state
    assert why in said


async def test_a_failed_child_fails_its_parent_permanently_unless_it_is_caught(app: App) -> None:
    fail = failing(app)

    @app.task(retries=5)
    async def parent(ctx: Context) -> None:
        await (await ctx.submit(fail)).result()

    async with working(app):
        execution = await parent.submit()
        with pytest.raises(ExecutionFailed, match=r"ChildFailed: .*ValueError: no luck"):
            await execution.result(TIMEOUT)
        assert (await execution.describe()).counts.attempts == 1


async def test_a_retried_run_finds_the_same_child(app: App, given: Given) -> None:
    square, tries = squares(app), []

    @app.task(retries=3, backoff="1ms")
    async def parent(ctx: Context) -> str:
        child = await ctx.submit(square, 2)
        tries.append(str(child.execution_id))
        if len(tries) < 3:
            raise ConnectionError
        return f"{await child.result()}"

    async with working(app):
        execution = await parent.submit()
        assert await execution.result(TIMEOUT) == "4"
        assert (len(await family(given, execution)), len(set(tries))) == (1, 1)


async def test_children_have_children(app: App) -> None:
    @app.task
    async def factorial(ctx: Context, number: int) -> int:
        if number == 0:
            return 1
        below: int = await (await ctx.submit("factorial", number=number - 1)).result()
        return number * below

    async with working(app):
        assert await (await factorial.submit(5)).result(TIMEOUT) == 120


async def test_waiting_for_a_child_that_has_ended_does_not_suspend(app: App, given: Given) -> None:
    square = squares(app)

    @app.task
    async def parent(ctx: Context) -> int:
        child = await ctx.submit(square, 3)

        async def ended() -> None:
            await app.execution(child.execution_id).result(TIMEOUT)

        await ctx.step("look", ended)
        return await child.result()

    async with working(app):
        execution = await parent.submit()
        assert await execution.result(TIMEOUT) == 9
        assert "execution_suspended" not in [event.kind async for event in execution.events()]


async def test_a_synchronous_handler_can_submit_children(app: App) -> None:
    square = squares(app)

    @app.task
    def parent(ctx: SyncContext) -> list[int]:
        asked = [ctx.submit(square, number) for number in (2, 3)]
        first = ctx.any_of(ctx.unwaited.sleep("10d"), asked[1].unwaited.result())
        return [asked[0].result(), first.index, first.value or 0]

    async with working(app):
        assert await (await parent.submit()).result(TIMEOUT) == [4, 1, 9]


@pytest.mark.parametrize("ending", ["cancel", "let_run"])
async def test_children_of_a_parent_that_did_not_complete_are_cancelled_unless_they_may_continue(
    app: App, given: Given, ending: Any
) -> None:
    wait = idle(app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.submit(wait.with_options(on_parent_end=ending))
        raise ValueError("no luck")

    async with working(app, lanes=["default"], sweeps=False):
        execution = await parent.submit()
        with pytest.raises(ExecutionFailed):
            await execution.result(TIMEOUT)
        await children.deliver_child_ends(given.conn)
        [child] = await family(given, execution)
        assert await app.execution(child).state() == ("cancelled" if ending == "cancel" else "waiting")


async def test_a_parent_that_completes_leaves_its_children_running(app: App, given: Given) -> None:
    wait = idle(app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.submit(wait)

    async with working(app, lanes=["default"]):
        execution = await parent.submit()
        await execution.result(TIMEOUT)
        assert (await children.deliver_child_ends(given.conn)).moved == 0
        [child] = await family(given, execution)
        assert await app.execution(child).state() == "waiting"


async def test_a_replay_submits_children_again_that_were_cancelled_with_their_parent(app: App, given: Given) -> None:
    square, fails = squares(app), [True]

    @app.task
    async def parent(ctx: Context) -> int:
        child = await ctx.submit(square.with_options(delay="1h"), 3)
        if fails and fails.pop():
            raise ValueError("no paper")
        return await child.result()

    async with working(app):
        execution = await parent.submit()
        with pytest.raises(ExecutionFailed, match="no paper"):
            await execution.result(TIMEOUT)
        [child] = await family(given, execution)
        await swept(app, given)
        await happens(app.execution(child), "execution_cancelled")
        await execution.replay(by="ops")
        await happens(execution, "execution_suspended")
        await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == 9
    ends = await given.rows("select outcome from flowfabric.executions where task = 'square' order by created_at")
    assert [row["outcome"] for row in ends] == ["cancelled", "success"]


async def test_a_replay_without_saved_steps_submits_new_children(app: App, given: Given) -> None:
    square = squares(app)

    @app.task
    async def parent(ctx: Context) -> int:
        return await (await ctx.submit(square, 3)).result()

    async with working(app):
        execution = await parent.submit()
        await execution.result(TIMEOUT)
        for keep in (True, False):
            await execution.replay(by="ops", from_scratch=not keep)
            await happens(execution, "execution_completed", times=2 if keep else 3)
            assert len(await family(given, execution)) == (1 if keep else 2)


async def test_options_that_a_child_cannot_have_are_refused_before_anything_is_submitted(
    app: App, given: Given
) -> None:
    square = squares(app)

    @app.task(retries=5)
    async def parent(ctx: Context, which: str) -> None:
        options: Any = {"key": {"key": "k"}, "id": {"execution_id": "x"}, "end": {"on_parent_end": "later"}}[which]
        await ctx.submit(square.with_options(**options), 2)

    async with working(app):
        for which, field in [("key", "key"), ("id", "execution_id"), ("end", "on_parent_end")]:
            execution = await parent.submit(which)
            with pytest.raises(ExecutionFailed, match=f"InvalidBody: .*{field}"):
                await execution.result(TIMEOUT)
    assert await given.count("executions") == 3
    with pytest.raises(ValueError, match=r"on_parent_end.* is invalid .*use ctx\.submit"):
        square.with_options(on_parent_end="cancel").submission(2)


async def test_a_child_that_cannot_be_submitted_fails_alone(app: App, given: Given) -> None:
    square = squares(app)

    @app.task
    async def parent(ctx: Context) -> int:
        good, bad = await asyncio.gather(
            ctx.submit(square, 2), ctx.submit("unknown", {"lane": "x" * 999}), return_exceptions=True
        )
        assert not isinstance(good, BaseException)
        assert isinstance(bad, Exception)
        four: int = await good.result()
        return four

    async with working(app):
        assert await (await parent.submit()).result(TIMEOUT) == 4


async def test_all_settled_returns_the_outcome_of_every_child_and_raises_nothing(app: App, given: Given) -> None:
    square, fail, wait = squares(app), failing(app), idle(app)

    @app.task
    async def parent(ctx: Context) -> list[str]:
        asked: list[Child[Any]] = [await ctx.submit(square, 3), await ctx.submit(fail), await ctx.submit(wait)]
        outcomes = await ctx.all_settled(*(child.result() for child in asked))
        return [each.state if isinstance(each, ChildFailed) else str(each) for each in outcomes]

    async with working(app, lanes=["default"]):
        execution = await parent.submit()
        await happens(execution, "execution_suspended")
        await app.executions.cancel((await family(given, execution))[2], by="ops")
        assert await execution.result(TIMEOUT) == ["9", "failed", "cancelled"]


async def test_all_settled_of_nothing_is_an_empty_list(app: App) -> None:
    @app.task
    async def parent(ctx: Context) -> list[Any]:
        return await ctx.all_settled()

    async with working(app):
        assert await (await parent.submit()).result(TIMEOUT) == []
