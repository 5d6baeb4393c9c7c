"""A step function that is annotated with the context gets it, as a task does."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, SyncContext
from tests.app.scene import TIMEOUT, working


async def shout(ctx: Context, text: str, *, mark: str = "!") -> str:
    await ctx.append_frame("said", text)
    return f"{text.upper()}{mark} {ctx.attempt}"


def count(text: str, ctx: SyncContext) -> int:
    ctx.append_frame("said", text)
    return len(text) + ctx.attempt


def spell(*letters: str, ctx: SyncContext) -> str:
    ctx.progress(50, "spelling")
    return "-".join(letters)


class Agent:
    def __init__(self, name: str) -> None:
        self.name = name


def agent_of(app: App) -> Any:
    class Speaking(Agent):
        @app.step(retries=1)
        async def greet(self, ctx: Context, whom: str) -> str:
            await ctx.append_frame("said", whom)
            return f"{self.name} greets {whom} in attempt {ctx.attempt}"

        @app.step
        def think(self, about: str) -> str:
            return f"{self.name} thinks about {about}"

    return Speaking


async def test_a_step_gets_the_context_of_its_handler_where_it_is_annotated(app: App) -> None:
    loud = app.step(shout)
    letters: Any = app.step(count)  # type checkers know a context only as the first argument, also as that of a method
    spelled: Any = app.step(spell)

    @app.task
    async def talk(ctx: Context) -> list[object]:
        return [
            await loud(ctx, "hey", mark="?"),
            await letters(ctx, "four"),
            await letters(ctx, text="seven"),
            await spelled(ctx, "a", "b"),
        ]

    @app.task
    def blocked(ctx: SyncContext) -> list[object]:
        return [loud(ctx, "hey"), letters(ctx, "four"), spelled(ctx, "a", "b")]

    async with working(app):
        execution = await talk.submit()
        assert await execution.result(TIMEOUT) == ["HEY? 1", 5, 6, "a-b"]
        frames = [frame.text async for frame in execution.frames()]
        assert frames[:3] == ["hey", "four", "seven"]
        assert await (await blocked.submit()).result(TIMEOUT) == ["HEY! 1", 5, "a-b"]


async def test_a_step_may_be_a_method(app: App) -> None:
    speaking = agent_of(app)

    @app.task
    async def talk(ctx: Context) -> list[str]:
        ann, bob = speaking("Ann"), speaking("Bob")
        return [await ann.greet(ctx, "Eve"), await bob.think(ctx, "Ann"), await bob.greet(ctx, whom="Ann")]

    async with working(app):
        assert await (await talk.submit()).result(TIMEOUT) == [
            "Ann greets Eve in attempt 1",
            "Bob thinks about Ann",
            "Bob greets Ann in attempt 1",
        ]
    assert speaking("Ann").think.function("x") == "Ann thinks about x"
    assert repr(speaking.greet) == "<step greet>"


async def test_a_step_with_the_context_contains_no_steps(app: App) -> None:
    @app.step
    async def nested(ctx: Context) -> None:
        await ctx.step("inner", print)

    @app.task
    async def report(ctx: Context) -> None:
        await nested(ctx)

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"'inner' is inside step 'nested'; a step cannot contain steps"):
            await (await report.submit()).result(TIMEOUT)


def test_a_step_that_takes_the_context_twice_is_refused(app: App) -> None:
    def twice(ctx: Context, other: SyncContext) -> None: ...

    with pytest.raises(TypeError, match="takes the context twice, as ctx and other"):
        app.step(twice)
