"""Changed code: renamed and removed steps, and runs that do not fit what earlier runs have saved."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import App, Context, Execution
from flowfabric.app.tasks import Task
from flowfabric.engine import holds
from flowfabric.errors import ExecutionFailed, ShapeChanged
from flowfabric.handler.journal import Places
from flowfabric.model import Description, JournalEntry
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given

Body = Callable[[Context], Coroutine[Any, Any, Any]]


@dataclass
class Notes:
    pages: list[int]


def notes() -> Notes:
    return Notes([])


def changing(app: App, first: Body, second: Body, **options: Any) -> Task[[], Any]:
    """A task whose second attempt runs other code than its first."""

    @app.task(retries=1, backoff="1ms", **options)
    async def report(ctx: Context) -> Any:
        if ctx.attempt == 1:
            await first(ctx)
            raise ConnectionError("down")
        return await second(ctx)

    return report


async def held(execution: Execution[Any]) -> Description:
    """The execution, when it is held because its code has changed."""
    await happens(execution, "execution_held")
    found = await execution.describe()
    assert (found.state.eligibility_state, found.state.blocking_reason) == ("blocked_by_operator", "code_changed")
    return found


def down() -> int:
    """Fail."""
    raise ConnectionError("down")


async def nothing(ctx: Context) -> None:
    """Ask for no step."""


@pytest.mark.parametrize("was", ["one", ("zero", "one"), ["one", "zero"]])
async def test_a_renamed_step_uses_the_result_saved_under_its_earlier_name(app: App, was: str | Sequence[str]) -> None:
    calls: list[str] = []

    async def second(ctx: Context) -> list[int | None]:
        return [await ctx.step("uno", lambda: calls.append("uno"), was=was) for _ in range(2)]

    report = changing(app, lambda ctx: ctx.step("one", lambda: calls.append("one")), second)

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == [None, None]
        steps = [(step.name, step.occurrence) async for step in execution.steps()]
    assert (calls, steps) == (["one", "uno"], [("one", 1), ("uno", 2)])


async def test_renamed_steps_of_every_kind_are_found(app: App) -> None:
    calls: list[str] = []

    @app.step(name="write", was="scribble")
    async def write() -> None:
        calls.append("write")

    async def charge(conn: Any) -> None:
        calls.append("charge")

    async def first(ctx: Context) -> None:
        await ctx.step("scribble", lambda: calls.append("scribble"))
        await ctx.transaction_step("pay", charge)
        await ctx.create_waitpoint("old")

    async def second(ctx: Context) -> str:
        await write(ctx)
        await ctx.transaction_step("charge", charge, was="pay")
        return (await ctx.create_waitpoint("new", was="old")).key

    async with working(app):
        assert await (await changing(app, first, second).submit()).result(TIMEOUT) == "old"
    assert calls == ["scribble", "charge"]


async def test_renamed_waits_and_children_are_found(app: App, given: Given) -> None:
    @app.task
    async def search() -> str:
        return "found"

    find = app.task(name="find")(search.handler)

    async def first(ctx: Context) -> None:
        await ctx.sleep("60ms", name="nap")
        assert await (await ctx.submit(search)).result() == "found"
        await ctx.wait_for_signal("go", timeout="1ms")
        await ctx.approval("publish", timeout="1ms")

    async def second(ctx: Context) -> list[Any]:
        await ctx.sleep("1h", name="rest", was="nap")
        child = await ctx.submit(find.with_options(was="search"))
        signal = await ctx.wait_for_signal("start", was="go")
        verdict = await ctx.approval("release", was="publish")
        return [await child.result(), signal, verdict.timed_out]

    async with working(app):
        assert await (await changing(app, first, second).submit()).result(TIMEOUT) == ["found", None, True]
    tasks = [row["task"] for row in await given.rows("select task from flowfabric.executions order by 1")]
    assert tasks == ["report", "search"]


async def test_a_renamed_sleep_that_is_not_over_continues(app: App, given: Given) -> None:
    body: list[Body] = [lambda ctx: ctx.sleep("1h", name="nap")]

    @app.task
    async def report(ctx: Context) -> int:
        await body[0](ctx)
        return 7

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        body[0] = lambda ctx: ctx.sleep("2h", name="rest", was="nap")
        await given.time_passes(minutes=61)
        await app.wake("default")
        assert await execution.result(TIMEOUT) == 7


async def test_a_renamed_step_without_its_earlier_name_runs_again_and_the_run_is_held(app: App) -> None:
    calls: list[str] = []
    report = changing(
        app,
        lambda ctx: ctx.step("charge", lambda: calls.append("charge")),
        lambda ctx: ctx.step("pay", lambda: calls.append("pay")),
    )

    async with working(app):
        execution = await report.submit()
        found = await held(execution)
        assert "an earlier run saved 'charge'" in found.explanation.sentence
        assert (found.counts.attempts, [step.name async for step in execution.steps()]) == (2, ["charge", "pay"])
    assert calls == ["charge", "pay"]


async def test_a_retry_need_not_take_the_branch_of_a_failure(app: App) -> None:
    @app.task
    def search() -> None: ...

    async def first(ctx: Context) -> None:
        try:
            await ctx.step("call", down)
        except ConnectionError:
            await ctx.step("alert", int)
            await (await ctx.submit(search)).result()
            await ctx.wait_for_signal("go", timeout="1ms")

    report = changing(app, first, lambda ctx: ctx.step("call", int))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        steps = [(step.name, step.result) async for step in execution.steps(results=True)]
    assert [steps[0], steps[1][0], steps[-1][0]] == [("failed:call", b'"ConnectionError: down"'), "alert", "call"]


async def test_a_run_that_waited_after_a_failure_need_not_fail_again(app: App, given: Given) -> None:
    answers: list[Callable[[], int]] = [down, int]

    @app.task
    async def report(ctx: Context) -> int:
        try:
            return await ctx.step("call", answers.pop(0))
        except ConnectionError:
            await ctx.sleep("1h")
        return await ctx.step("call again", int)

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await given.time_passes(hours=2)
        await app.wake("default")
        assert await execution.result(TIMEOUT) == 0


async def test_what_was_saved_before_a_failure_is_still_missed(app: App) -> None:
    async def first(ctx: Context) -> None:
        await ctx.step("charge", int)
        with suppress(ConnectionError):
            await ctx.step("call", down)
        await ctx.step("alert", int)

    async with working(app):
        found = await held(await changing(app, first, nothing).submit())
    assert "saved 'charge', and" in found.explanation.sentence


async def test_a_failure_that_ends_the_run_is_not_saved(app: App) -> None:
    @app.task(retries=0)
    async def report(ctx: Context) -> None:
        await ctx.step("charge", int)
        await ctx.step("call", down)

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed):
            await execution.result(TIMEOUT)
        assert [step.name async for step in execution.steps()] == ["charge"]


async def test_a_step_that_became_a_wait_is_held(app: App) -> None:
    report = changing(app, lambda ctx: ctx.step("publish", int), lambda ctx: ctx.approval("publish"))

    async with working(app):
        assert "'publish' (occurrence 1) was a step" in (await held(await report.submit())).explanation.sentence


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_saved_result_of_another_type_is_held(app: App, wrapped: bool) -> None:
    async def second(ctx: Context) -> None:
        try:
            await ctx.step("search", notes)
        except Exception as error:
            raise (ExceptionGroup("both", [error]) if wrapped else RuntimeError("no notes")) from error

    report = changing(app, lambda ctx: ctx.step("search", int), second)

    async with working(app):
        assert "'search'" in (await held(await report.submit())).explanation.sentence


@pytest.mark.parametrize("then", ["returns", "waits", "fails"])
async def test_a_run_that_does_not_fit_is_held_even_if_the_handler_catches_the_error(app: App, then: str) -> None:
    async def second(ctx: Context) -> str:
        try:
            await ctx.step("search", notes)
        except Exception:
            if then == "waits":
                await ctx.sleep("1h")
            if then == "fails":
                raise ConnectionError("down") from None
        return "found nothing"

    report = changing(app, lambda ctx: ctx.step("search", int), second)

    async with working(app):
        assert "'search'" in (await held(await report.submit())).explanation.sentence


async def test_a_held_run_continues_in_the_same_attempt_when_it_is_unheld_with_fixed_code(app: App) -> None:
    calls: list[str] = []
    body: list[Body] = [nothing]
    report = changing(app, lambda ctx: ctx.step("a", lambda: calls.append("a")), lambda ctx: body[0](ctx))

    async with working(app):
        execution = await report.submit()
        await held(execution)
        body[0] = lambda ctx: ctx.step("b", lambda: calls.append("b"), was="a")
        async with app.database.connection() as conn:
            await holds.unhold(conn, execution.execution_id, by="ops")
        await app.wake("default")
        await execution.result(TIMEOUT)
        assert ((await execution.describe()).counts.attempts, calls) == (2, ["a"])


async def test_an_execution_that_has_started_is_held_if_its_arguments_do_not_fit_any_more(
    database_url: str, given: Given
) -> None:
    old, new = App(url=database_url), App(url=database_url)

    @old.task(name="ship")
    async def before(ctx: Context, order: int, express: bool) -> int:
        await ctx.step("charge", int)
        await ctx.sleep("1h")
        return order

    @new.task(name="ship")
    async def after(ctx: Context, order: int) -> int:
        return order

    async with working(old):
        execution = await before.submit(7, express=True)
        await happens(execution, "execution_delayed")
    await given.time_passes(hours=2)
    async with working(new):
        assert (
            "contains unknown field `express`"
            in (await held(new.execution(execution.execution_id))).explanation.sentence
        )
        await holds.unhold(given.conn, execution.execution_id, by="ops")
        await happens(new.execution(execution.execution_id), "execution_held", times=2)
    await holds.unhold(given.conn, execution.execution_id, by="ops")
    async with working(old):
        assert await old.execution(execution.execution_id).result(TIMEOUT) == 7


async def test_a_retired_step_need_not_be_asked_for(app: App) -> None:
    @app.task
    async def search() -> str:
        return "found"

    async def first(ctx: Context) -> None:
        await ctx.step("one", int)
        await ctx.wait_for_signal("go", timeout="1ms")
        await (await ctx.submit(search)).result()

    report = changing(app, first, nothing, retired=["one", "go", "submit:search", "never"])

    async with working(app):
        await (await report.submit()).result(TIMEOUT)


async def test_the_result_of_a_child_need_not_be_awaited_any_more(app: App) -> None:
    @app.task
    async def search() -> str:
        return "found"

    async def first(ctx: Context) -> None:
        await (await ctx.submit(search)).result()

    async def second(ctx: Context) -> None:
        await ctx.submit(search)

    async with working(app):
        await (await changing(app, first, second).submit()).result(TIMEOUT)


async def test_a_retired_step_that_is_asked_for_works_as_before(app: App) -> None:
    calls: list[int] = []

    async def body(ctx: Context) -> None:
        await ctx.step("one", lambda: calls.append(ctx.attempt))

    async with working(app):
        await (await changing(app, body, body, retired="one").submit()).result(TIMEOUT)
    assert calls == [1]


async def test_other_saved_steps_than_the_retired_ones_are_missed(app: App) -> None:
    async def first(ctx: Context) -> None:
        await ctx.step("one", int)
        await ctx.step("two", int)

    report = changing(app, first, nothing, retired="one")

    async with working(app):
        assert "saved 'two', and" in (await held(await report.submit())).explanation.sentence


def entry(name: str, occurrence: int = 1) -> JournalEntry:
    return JournalEntry(kind="step", name=name, occurrence=occurrence, result=b"1")


def test_an_entry_saved_under_the_new_name_comes_before_one_under_an_earlier_name() -> None:
    places = Places([entry("one"), entry("uno")])

    assert places.ask("step", "uno", "one").entry == entry("uno")
    assert places.unasked() == []


@pytest.mark.parametrize(
    ("asks", "name"),
    [
        ([("uno", "one"), ("one", ())], "one"),
        ([("one", ()), ("uno", "one")], "one"),
        ([("uno", "one"), ("ein", "one")], "one"),
        ([("page-1", "page"), ("page-2", "page")], "page"),
    ],
)
def test_a_saved_result_that_two_names_would_use_is_refused(asks: list[tuple[str, Any]], name: str) -> None:
    places = Places([])
    *before, (last, was) = asks
    for each, earlier in before:
        places.ask("step", each, earlier)

    with pytest.raises(ShapeChanged, match="one of them only") as refused:
        places.ask("step", last, was)
    assert refused.value.fields == {"name": name}


def test_a_step_may_name_itself_and_be_used_many_times() -> None:
    places = Places([entry("one", 1), entry("one", 2)])

    assert [places.ask("step", "uno", ["one", "uno"]).entry is not None for _ in range(3)] == [True, True, False]


def test_an_earlier_name_is_a_text() -> None:
    with pytest.raises(TypeError, match="was='7'"):
        Places([]).ask("step", "uno", [7])  # type: ignore[list-item]


async def test_the_option_was_is_for_children_only(app: App) -> None:
    @app.task
    def search() -> None: ...

    with pytest.raises(ValueError, match="'was'"):
        search.with_options(was="find").submission()
