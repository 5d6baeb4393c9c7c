"""Frames of a handler: appended while it runs, and read by others."""

from flowfabric import App, Context
from flowfabric.engine import streams
from tests.app.scene import TIMEOUT, working
from tests.given import Given


async def test_a_handler_appends_frames_that_others_read(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        first = await ctx.append_frame("tool_call", {"tool": "search"})
        await ctx.append_frame("image", b"\0\xff", kind="blob")
        return first

    async with working(app):
        execution = await report.submit()
        first = await execution.result(TIMEOUT)

    page = await streams.read_frames(given.conn, execution.execution_id)
    assert [(it.type, it.kind, it.data) for it in page.frames] == [
        ("tool_call", "event", {"tool": "search"}),
        ("image", "blob", b"\0\xff"),
    ]
    assert (page.frames[0].id, page.closed_reason) == (first, "attempt_success")
