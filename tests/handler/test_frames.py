"""Frames of a handler: appended while it runs, each once, in order, and committed before what is built on them."""

import asyncio
from typing import Any

import pytest

from flowfabric import App, Context, Execution, ExecutionFailed
from flowfabric.engine import streams
from flowfabric.errors import Invalid
from flowfabric.model import Appended, Frame
from tests.app.scene import TIMEOUT, happens, later, working
from tests.given import Given


async def frames(given: Given, execution: Execution[Any], attempt: int | None = None) -> list[Frame]:
    page = await streams.read_frames(given.conn, execution.execution_id, attempt=attempt, limit=10_000)
    assert page.next is None
    return [*page.frames]


async def data(given: Given, execution: Execution[Any], attempt: int | None = None) -> list[Any]:
    return [frame.data for frame in await frames(given, execution, attempt)]


async def says(ctx: Context, text: str) -> None:
    await ctx.append_frame("at", text)


async def test_a_handler_appends_frames_that_others_read(app: App, given: Given) -> None:
    answers: list[Appended | None] = []

    @app.task
    async def report(ctx: Context) -> None:
        answers.append(await ctx.append_frame("tool_call", {"tool": "search"}, correlation_id="call-7"))
        answers.append(await ctx.append_frame("image", b"\0\xff", kind="blob"))
        answers.append(await ctx.append_frame("beat", mode="best_effort", ttl="1s"))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)

    found = await frames(given, execution)
    assert [(it.type, it.kind, it.mode, it.data, it.correlation_id) for it in found] == [
        ("tool_call", "event", "durable", {"tool": "search"}, "call-7"),
        ("image", "blob", "durable", b"\0\xff", None),
        ("beat", "event", "best_effort", None, None),
    ]
    assert [answer and (answer.frame_id, answer.frame_count) for answer in answers] == [
        (frame.id, number) for number, frame in enumerate(found, 1)
    ]


async def test_a_refused_frame_raises_and_the_stream_goes_on(app: App, given: Given) -> None:
    refused: list[str] = []

    @app.task
    async def report(ctx: Context) -> None:
        odd: list[dict[str, Any]] = [
            {"type": "big", "data": b"x" * 65_537},
            {"type": "big", "data": "é" * 40_000},
            {"type": "", "data": 1},
            {"type": "t" * 129, "data": 1},
            {"type": "odd", "data": object()},
            {"type": "odd", "data": float("nan")},
            {"type": "odd", "data": "\ud800"},
            {"type": "\0", "data": 1},
            {"type": "odd", "data": 1, "kind": "stdin"},
            {"type": "odd", "data": 1, "mode": "eternal"},
            {"type": "odd", "data": 1, "ttl": "1s"},
            {"type": "patch", "data": [1], "mode": "summary"},
        ]
        for arguments in odd:
            try:
                await ctx.append_frame(**arguments)
            except Invalid as error:
                refused.append(type(error).__name__)
        await ctx.append_frame("end", b"x" * 65_536)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert len(refused) == 12, refused
    assert [frame.type for frame in await frames(given, execution)] == ["end"]


async def test_the_frames_of_concurrent_calls_keep_the_order_of_the_calls(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        await asyncio.gather(*(ctx.append_frame("n", n) for n in range(50)))

    async with working(app):
        executions = await report.submit_many([() for _ in range(20)])
        for execution in executions:
            await execution.result(TIMEOUT)
    for execution in executions:
        assert await data(given, execution) == [*range(50)]


async def test_what_comes_before_a_step_is_committed_before_the_step_is_saved(app: App, given: Given) -> None:
    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> None:
        async def write() -> None:
            await ctx.stream("answer").write("in the step")

        await ctx.stream("answer").write("before")
        await ctx.step("write", write)
        rows = await given.rows("select f.at <= s.at as is_before from flowfabric.frames f, flowfabric.steps s")
        assert [row["is_before"] for row in rows] == [True, True]

    async with working(app):
        await (await report.submit()).result(TIMEOUT)


async def test_a_run_that_fails_commits_what_it_wrote_before_it_is_reported(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("half of ")
            await out.write("it")
            raise ConnectionError("down")

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed, match="down"):
            await execution.result(TIMEOUT)
    assert "".join(await data(given, execution)) == "half of it"


async def test_a_resumed_run_appends_nothing_again(app: App, given: Given) -> None:
    answers: list[Appended | None] = []

    @app.task
    async def order(ctx: Context) -> None:
        answers.append(await ctx.append_frame("at", "start"))
        async with ctx.stream("log") as out:
            await out.write("a")
            await ctx.step("charge", says, ctx, "in the step")
            await ctx.progress(10)
            await out.write("b")
            await ctx.sleep("1h")
            await out.write("c")
            await ctx.wait_for_signal("paid", timeout="1d")
            await ctx.append_frame("at", "end")
            await ctx.progress(100, "done")

    async with working(app):
        execution = await order.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=1)
        await happens(execution, "execution_suspended")
        await later(app, given, execution, days=1)
        await execution.result(TIMEOUT)

    steps = ["start", "a", "in the step", {"progress": 10}, "b", "c", "end", {"progress": 100, "message": "done"}]
    assert await data(given, execution) == steps
    assert [answer is None for answer in answers] == [False, True, True]


async def test_a_retry_appends_only_what_comes_after_its_last_saved_step(app: App, given: Given) -> None:
    @app.task(retries=1, backoff="1ms")
    async def report(ctx: Context) -> None:
        await ctx.append_frame("at", "start")
        await ctx.step("search", says, ctx, "in the step")
        await ctx.append_frame("at", "after the step")
        if ctx.attempt == 1:
            raise ConnectionError("down")

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert await data(given, execution, 1) == ["start", "in the step", "after the step"]
    assert await data(given, execution, 2) == ["after the step"]


async def test_a_run_that_is_unwound_appends_nothing_in_its_finally_blocks(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        try:
            await ctx.sleep("51ms")
        finally:
            await ctx.append_frame("at", "finally")
            async with ctx.stream("log") as out:
                await out.write("the end")

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert await data(given, execution) == ["finally", "the end"]


async def test_a_task_that_never_appends_has_no_stream(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        await ctx.step("search", lambda: 1)
        await ctx.sleep("51ms")

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert await given.count("streams") == 0
