"""Streams at their edges: cancelled tasks, ended runs, lost connections, odd pieces, and many at once."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flowfabric import App, Context, ExecutionCancelled, SyncContext
from flowfabric.engine import streams
from flowfabric.errors import Fenced
from tests.app.scene import TIMEOUT, happens, later, working
from tests.given import Given, until
from tests.handler.test_frames import data, frames
from tests.handler.test_stopping import shown
from tests.worker.scene import cut, worker_process, written

TASKS = """
from flowfabric import App, Context

app = App()

@app.task
async def report(ctx: Context) -> None:
    async def write() -> None:
        async with ctx.stream("answer") as out:
            for number in range(200):
                await out.write(f"{number} ")
                await out.flush()

    await ctx.step("write", write)
"""


async def test_a_worker_process_that_is_terminated_in_the_middle_shows_nothing_twice(
    database_url: str, given: Given, tmp_path: Path
) -> None:
    place = written(tmp_path, TASKS)
    execution_id = await given.submitted(task="report")
    async with App(url=database_url) as app:
        execution = app.execution(execution_id)
        reading = asyncio.create_task(shown(execution))
        async with worker_process(database_url, place, "--drain", "0s") as first:
            async for frame in execution.frames():
                if "20 " in (frame.text or ""):
                    break
            first.send_signal(signal.SIGTERM)
            await first.wait()
        async with worker_process(database_url, place):
            assert await reading == "".join(f"{number} " for number in range(200))
        assert (await execution.describe()).counts.attempts == 1


async def test_what_was_written_is_committed_before_the_run_suspends(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("before")
            await ctx.sleep("1h")
            await out.write(" after")

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        assert await data(given, execution) == ["before"]
        await later(app, given, execution, hours=1)
        await execution.result(TIMEOUT)
    assert await data(given, execution) == ["before", " after"]


async def test_a_stream_whose_task_is_cancelled_keeps_what_was_written(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        async def write() -> None:
            async with ctx.stream("answer") as out:
                await out.write("so far")
                await asyncio.Event().wait()

        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await write()
        writing = asyncio.create_task(write())
        await asyncio.sleep(0)
        writing.cancel()
        return "went on"

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == "went on"
    assert "".join(await data(given, execution)) == "so farso far"


async def test_a_stream_can_be_written_after_its_block_but_not_after_its_run(app: App, given: Given) -> None:
    left: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("in the block, ")
        await out.write("after it")

        async def too_late() -> None:
            await ended.wait()
            await out.write("too late")
            await out.flush()
            await ctx.progress(100)
            assert await ctx.append_frame("late") is None

        left.append(asyncio.create_task(too_late()))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        ended.set()
        await left[0]
    assert "".join(await data(given, execution)) == "in the block, after it"


async def test_an_empty_piece_is_no_frame(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("")
            await out.write(b"")
        async with ctx.stream("never written"):
            pass

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert await given.count("streams") == 0
    assert await frames(given, execution) == []


async def test_text_and_bytes_mix_and_a_character_may_be_divided(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            await out.write("text ")
            for byte in "é💡".encode():
                await out.write(bytes([byte]))
            await out.write("")
            await out.write(bytearray(b"\xff"))  # type: ignore[arg-type]
            await out.write(memoryview(b"\0"))  # type: ignore[arg-type]
            await out.write(" text")

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    found = await data(given, execution)
    parts = [part.encode() if isinstance(part, str) else part for part in found]
    assert b"".join(parts) == "text é💡".encode() + b"\xff\0 text"
    assert (found[0], found[-1]) == ("text ", " text")


async def test_a_run_whose_execution_is_cancelled_can_append_no_more(app: App, given: Given) -> None:
    raised: list[str] = []
    cancelled = asyncio.Event()

    @app.task
    async def report(ctx: Context) -> None:
        out = ctx.stream("answer")
        await out.write("before")
        await out.flush()
        await cancelled.wait()
        try:
            await ctx.append_frame("after")
        except Fenced as error:
            raised.append(error.code)
            raise

    async with working(app):
        execution = await report.submit()
        await until(lambda: given.count("frames"))
        await execution.cancel("not wanted", by="ops")
        cancelled.set()
        with pytest.raises(ExecutionCancelled):
            await execution.result(TIMEOUT)
        page = await streams.read_frames(given.conn, execution.execution_id)
    assert [frame.data for frame in page.frames] == ["before"]
    assert page.closed_reason == "attempt_cancelled"
    assert raised in (["execution_not_active"], [])  # the worker may have cancelled the handler before that


async def test_cut_connections_neither_lose_nor_repeat_a_frame(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context, name: str) -> None:
        async with ctx.stream("answer") as out:
            for number in range(300):
                await out.write(f"{name}{number} ")
                if name == "a" and number % 100 == 50:
                    await cut(given)
                    await out.flush()

    async with working(app):
        executions = await report.submit_many([(name,) for name in "abc"])
        for execution in executions:
            await execution.result(TIMEOUT)
    for name, execution in zip("abc", executions, strict=True):
        assert "".join(await data(given, execution)) == "".join(f"{name}{number} " for number in range(300))


async def test_a_hundred_runs_stream_at_once(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context, name: int) -> None:
        async with ctx.stream("answer") as out:
            for number in range(50):
                await out.write(f"{name}.{number} ")
                await ctx.progress(2 * number)

    async with working(app):
        executions = await report.submit_many([(name,) for name in range(100)])
        for execution in executions:
            await execution.result(TIMEOUT)
    for name, execution in enumerate(executions):
        texts = [frame.data for frame in await frames(given, execution) if frame.type == "answer"]
        assert "".join(texts) == "".join(f"{name}.{number} " for number in range(50))


async def test_threads_of_a_sync_handler_write_at_once(app: App, given: Given) -> None:
    @app.task
    def report(ctx: SyncContext) -> int:
        def write(name: str) -> int:
            with ctx.stream(name) as out:
                for number in range(20):
                    out.write(f"{number} ")
                    together.write(f"{name}{number} ")
                    ctx.progress(number)
            appended = ctx.append_frame("event", name)
            assert appended is not None
            return 1

        together = ctx.stream("together")
        with ThreadPoolExecutor(8) as pool:
            return sum(pool.map(write, "abcdefgh"))

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == 8
    found = await frames(given, execution)
    numbers = [str(number) for number in range(20)]
    together = "".join(frame.data for frame in found if frame.type == "together").split()
    for name in "abcdefgh":
        assert "".join(frame.data for frame in found if frame.type == name).split() == numbers
        assert [word[1:] for word in together if word[0] == name] == numbers
    assert sorted(frame.data for frame in found if frame.type == "event") == [*"abcdefgh"]


async def test_a_sync_block_that_fails_keeps_what_was_written_and_a_sync_step_writes(app: App, given: Given) -> None:
    @app.task
    def report(ctx: SyncContext) -> None:
        def step() -> None:
            with ctx.stream("answer") as out:
                out.write("b ")
                ctx.progress(50, "half")

        try:
            with ctx.stream("answer") as out:
                out.write("a ")
                raise ConnectionError("down")
        except ConnectionError:
            ctx.step("write", step)
        ctx.sleep("51ms")
        with ctx.stream("answer") as out:
            out.write("c")
        with pytest.raises(TypeError):
            out.write(5)  # type: ignore[arg-type]

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        progress = await execution.progress()
        assert await shown(execution) == "a b c"
    assert progress is not None
    assert (progress.percent, progress.message) == (50, "half")
