"""Types of results: what a type checker says of a step, a child or a result is what every run gets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, SyncContext
from flowfabric.errors import InvalidBody
from flowfabric.postgres.driver import Connection
from tests.app.scene import TIMEOUT, working


@dataclass
class Draft:
    title: str
    words: int = 0


async def test_a_step_without_a_known_type_saves_plain_json_only(app: App) -> None:
    calls: list[int] = []

    def write() -> Any:
        calls.append(1)
        return Draft("tides")

    @app.task(retries=3, backoff="1ms")
    async def report(ctx: Context) -> None:
        await ctx.step("write", write, retries=3)

    async with working(app):
        said = r"step 'write' .* type Draft would be read back as plain JSON.*annotate .* or give returns=Draft"
        with pytest.raises(ExecutionFailed, match=said):
            await (await report.submit()).result(TIMEOUT)
    assert calls == [1]


async def test_the_type_of_a_step_can_be_given_where_its_function_has_none(app: App) -> None:
    seen: list[object] = []

    @app.step(returns=Draft)
    def decorated():  # type: ignore[no-untyped-def]
        return Draft("b")

    async def insert(_: Connection) -> Any:
        return Draft("c")

    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> None:
        made = await ctx.step("a", lambda: Draft("a"), returns=Draft)
        several = await ctx.step("several", lambda: [(Draft("x"), 1)], returns=list[tuple[Draft, int]])
        seen.append((made, several, await decorated(ctx), await ctx.transaction_step("c", insert, returns=Draft)))
        if ctx.attempt == 1:
            raise ConnectionError("down")

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert seen == [(Draft("a"), [(Draft("x"), 1)], Draft("b"), Draft("c"))] * 2


async def test_a_sync_handler_gives_the_types_of_its_steps_too(app: App) -> None:
    @app.task
    def report(ctx: SyncContext) -> list[Draft]:
        made = ctx.step("a", lambda: Draft("a"), returns=Draft)
        return [made, ctx.transaction_step("b", lambda _: Draft("b"), returns=Draft)]

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == [Draft("a"), Draft("b")]


async def test_a_step_whose_type_cannot_be_saved_does_not_run(app: App) -> None:
    calls: list[int] = []

    def connect() -> complex:
        calls.append(1)
        return 1j

    @app.task(retries=3, backoff="1ms")
    async def report(ctx: Context) -> None:
        await ctx.step("connect", connect)

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"step 'connect' has the type complex, which cannot be saved"):
            await (await report.submit()).result(TIMEOUT)
    assert calls == []


def test_a_task_or_a_decorated_step_whose_type_cannot_be_saved_is_refused_at_once(app: App) -> None:
    def connect() -> complex:
        return 1j

    for decorator in (app.task, app.step, app.step(returns=complex)):
        with pytest.raises(TypeError, match=r"connect has the type complex, which cannot be saved"):
            decorator(connect)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: 3, "the result of report does not match its type str: Expected `str`, got `int`"),
        (lambda: None, "does not match its type str"),
    ],
)
async def test_a_result_of_another_type_than_annotated_fails(app: App, made: Callable[[], Any], said: str) -> None:
    @app.task(retries=3, backoff="1ms")
    async def report() -> str:
        answer: str = made()
        return answer

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed, match=said):
            await execution.result(TIMEOUT)
        assert (await execution.describe()).counts.attempts == 1


async def test_a_result_without_a_known_type_is_plain_json(app: App) -> None:
    @app.task
    async def plain(ctx: Context):  # type: ignore[no-untyped-def]
        return {"pages": [1, None]}

    @app.task
    async def loose(ctx: Context):  # type: ignore[no-untyped-def]
        return {"pair": (1, 2)}

    async with working(app):
        assert await (await plain.submit()).result(TIMEOUT) == {"pages": [1, None]}
        with pytest.raises(ExecutionFailed, match=r"loose .* type tuple at `\$\.pair` .*annotate the task: -> TYPE"):
            await (await loose.submit()).result(TIMEOUT)


async def test_the_result_of_a_child_submitted_by_name_has_the_type_given(app: App) -> None:
    seen: list[object] = []

    @app.task
    async def write(title: str) -> Draft:
        return Draft(title)

    @app.task
    async def report(ctx: Context) -> None:
        own = await ctx.submit("write", title="a")
        other = await ctx.submit("write", {"lane": "default"}, returns=dict[str, Any], title="b")
        seen[:] = [await own.result(), await other.result()]

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert seen == [Draft("a"), {"title": "b", "words": 0}]


async def test_a_child_whose_result_has_another_type_fails_its_parent_at_once(app: App) -> None:
    @app.task
    async def count() -> int:
        return 3

    @app.task(retries=3, backoff="1ms")
    async def report(ctx: Context) -> None:
        await (await ctx.submit("count", returns=Draft)).result()

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed, match=r"the result of child \S+ does not match the type Draft"):
            await execution.result(TIMEOUT)
        assert (await execution.describe()).counts.attempts == 1


async def test_a_handle_of_an_execution_submitted_elsewhere_reads_the_type_given(app: App) -> None:
    @app.task
    async def write(title: str) -> Draft:
        return Draft(title)

    async with working(app):
        first = await app.submit("write", title="a")
        assert await first.result(TIMEOUT) == Draft("a")
        assert await (await app.submit("write", returns=dict[str, Any], title="a")).result(TIMEOUT) == {
            "title": "a",
            "words": 0,
        }
        execution_id = first.execution_id
        assert await app.execution(execution_id, returns=Draft).result() == Draft("a")
        assert await app.execution(execution_id).result() == {"title": "a", "words": 0}
        with pytest.raises(InvalidBody, match=r"does not match the type list\[int\].*; give its type as returns=TYPE"):
            await app.execution(execution_id, returns=list[int]).result()
        with pytest.raises(InvalidBody, match="the result has the type 5, which cannot be saved"):
            app.execution(execution_id, returns=5)  # type: ignore[call-overload]


async def test_an_argument_named_returns_is_not_taken_for_the_type(app: App) -> None:
    @app.task
    async def book(returns: int) -> int:
        return returns

    async with working(app):
        assert await (await book.submit(returns=3)).result(TIMEOUT) == 3
        with pytest.raises(TypeError, match="task book has an argument named returns; submit the task itself"):
            await app.submit("book", returns=3)  # type: ignore[call-overload]
