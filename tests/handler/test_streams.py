"""Streams of a handler: text and bytes written piece by piece, which share frames while a call is in flight."""

import asyncio
import threading
from typing import Any

import pytest

from flowfabric import App, Context, SyncContext
from flowfabric.engine import attempts
from flowfabric.errors import Fenced, InvalidFrame
from flowfabric.handler import frames as output
from tests.app.scene import TIMEOUT, working
from tests.given import Given, until
from tests.handler.test_frames import data, frames


async def test_the_first_token_is_sent_at_once_and_those_that_follow_share_frames(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            for number in range(1_000):
                await out.write(f"{number} ")
        await ctx.append_frame("end")

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    *found, end = await frames(given, execution)
    assert "".join(frame.data for frame in found) == "".join(f"{number} " for number in range(1_000))
    assert found[0].data == "0 "
    assert {(frame.kind, frame.type, frame.encoding) for frame in found} == {("stdout", "answer", "json")}
    assert len(found) < 300
    assert end.type == "end"


async def test_streams_beside_each_other_keep_their_own_text_in_order(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async def write(name: str) -> None:
            async with ctx.stream(name, correlation_id=name) as out:
                for number in range(100):
                    await out.write(f"{number},")

        await asyncio.gather(*(ctx.step(name, write, name) for name in "abc"))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    found = await frames(given, execution)
    texts = {name: "".join(frame.data for frame in found if frame.type == name) for name in "abc"}
    assert texts == dict.fromkeys("abc", "".join(f"{number}," for number in range(100)))
    assert all(frame.correlation_id == frame.type for frame in found)


@pytest.mark.parametrize("piece", ["\0" * 70_000 + "é💡" * 70_000, "x" * 1_000_000, b"\0\xff" * 100_000, "", b""])
async def test_long_pieces_are_divided_and_nothing_is_lost(app: App, given: Given, piece: str | bytes) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer", kind="blob") as out:
            await out.write(piece)
            await out.write(piece)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    found = await data(given, execution)
    empty = "" if isinstance(piece, str) else b""
    assert empty.join(found) == piece + piece  # type: ignore[operator]
    assert all(len(frame.payload) <= 65_536 for frame in await frames(given, execution))


async def test_a_refused_piece_raises_once_and_the_stream_can_be_used_on(app: App, given: Given) -> None:
    refused: list[type[Exception]] = []

    @app.task
    async def report(ctx: Context) -> None:
        for arguments in ({"kind": "stdin"}, {"mode": "summary"}, {"ttl": "1s"}):
            try:
                async with ctx.stream("odd", **arguments) as out:
                    await out.write("x")
            except InvalidFrame as error:
                refused.append(type(error))
        out = ctx.stream("answer")
        for wrong in (5, "\ud800"):
            with pytest.raises((TypeError, InvalidFrame)):
                await out.write(wrong)  # type: ignore[arg-type]
        await out.write("fine")

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert len(refused) == 3
    assert await data(given, execution) == ["fine"]


async def test_a_writer_waits_while_too_much_has_not_been_sent(app: App, given: Given) -> None:
    sizes: list[int] = []

    @app.task
    async def report(ctx: Context) -> None:
        async def write(name: str) -> None:
            async with ctx.stream(name) as out:
                for _ in range(60):
                    await out.write("x" * 10_000)
                    sizes.append(ctx._output._bytes)

        await asyncio.gather(*(write(name) for name in "abcd"))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert sum(len(text) for text in await data(given, execution)) == 2_400_000
    assert max(sizes) <= output.MOST_BYTES + 10_002


async def test_of_progress_reports_that_wait_only_the_newest_is_sent(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        for percent in range(101):
            await ctx.progress(percent, "indexing" if percent == 50 else None)
        for invalid in (-1, 101, float("nan")):
            with pytest.raises(ValueError, match="percentage from 0 to 100"):
                await ctx.progress(invalid)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    found = await frames(given, execution)
    assert found[0].data == {"progress": 0}
    assert found[-1].data["progress"] == 100
    assert [frame.summary_version for frame in found] == [*range(1, len(found) + 1)]
    assert len(found) < 60
    assert any(frame.data.get("message") == "indexing" for frame in found)


async def test_sync_handlers_write_and_report_progress(app: App, given: Given) -> None:
    @app.task
    def report(ctx: SyncContext) -> None:
        ctx.append_frame("thread", threading.current_thread() is threading.main_thread())
        with ctx.stream("answer") as out:
            out.write("a")
            ctx.step("write", lambda: out.write("b"))
            ctx.sleep("51ms")
            out.write("c")
        ctx.progress(100)

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    first, *texts, last = await data(given, execution)
    assert (first, "".join(texts), last) == (False, "abc", {"progress": 100})


async def test_a_run_that_has_lost_its_lease_can_write_no_more(app: App, given: Given) -> None:
    raised: list[type[BaseException]] = []

    @app.task
    async def report(ctx: Context) -> str:
        if ctx._claim.fence.epoch > 1:
            return "by the next run"
        out = ctx.stream("answer")
        await out.write("before")
        await out.flush()
        await attempts.delay(given.conn, ctx._claim.fence)
        try:
            for _ in range(100_000):
                await out.write("after")
        except Fenced as error:
            raised.append(type(error))
            raise
        return "too late"

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == "by the next run"
    assert len(raised) == 1
    assert await data(given, execution) == ["before"]


async def test_a_handler_that_never_stops_writing_does_not_block_the_end_of_the_worker(app: App, given: Given) -> None:
    began = asyncio.Event()

    @app.task
    async def report(ctx: Context) -> None:
        async with ctx.stream("answer") as out:
            while True:
                await out.write("x" * 1_000)
                began.set()

    async with working(app, drain="0s"):
        execution = await report.submit()
        await began.wait()
    [row] = await given.rows("select phase::text from flowfabric.tickets")
    assert row["phase"] == "runnable"
    assert set("".join(await data(given, execution))) <= {"x"}


async def test_a_run_waits_for_room_while_its_execution_is_locked(app: App, given: Given, connect: Any) -> None:
    other = await connect()

    @app.task
    async def report(ctx: Context) -> None:
        async with other.transaction():
            await other.execute("select from flowfabric.tickets for update")
            writing = asyncio.gather(*(ctx.append_frame("n", n) for n in range(3_000)))
            await until(lambda: len(ctx._output._waiting) == output.MOST_FRAMES)
        await writing

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
    assert await data(given, execution) == [*range(3_000)]
