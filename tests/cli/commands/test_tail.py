"""`ff executions tail` and `ff submit --follow`: what an execution puts out, as it comes."""

import asyncio

import msgspec

from flowfabric import App, Context
from flowfabric.engine import attempts, streams
from tests.app.scene import working
from tests.cli.conftest import Run, Start
from tests.engine.streams.scene import appended
from tests.given import Given, until


async def test_text_is_printed_as_it_comes_and_the_command_ends_with_the_execution(
    start: Start, app: App, given: Given
) -> None:
    claim = await given.claimed()
    process = await start("executions", "tail", str(claim.execution_id))
    assert process.stdout is not None
    async with app:
        for text in (b'"Once "', b'"upon"'):
            await appended(given.conn, claim, text, kind="stdout")
            app.notifier.send(streams=[str(claim.execution_id)])
            async with asyncio.timeout(30):
                assert await process.stdout.readexactly(len(text) - 2) == text[1:-1]
        await attempts.complete(given.conn, claim.fence)
        app.notify(ended=[claim.execution_id])

    async with asyncio.timeout(30):
        assert await process.stdout.read() == b"\n"
        assert await process.wait() == 0


async def test_each_json_line_has_the_cursor_to_continue_with(here: Run, given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b'{"n": 1}', b"2", b"3", type="page")
    await attempts.complete(given.conn, claim.fence)

    _, out, _ = await here(f"executions tail {claim.execution_id} --json")
    lines = [msgspec.json.decode(line) for line in out.splitlines()]
    assert [(line["type"], line["payload"]) for line in lines] == [("page", {"n": 1}), ("page", 2), ("page", 3)]
    _, rest, _ = await here(f"executions tail {claim.execution_id} --json --cursor {lines[0]['cursor']}")
    assert rest.splitlines() == out.splitlines()[1:]


async def test_a_tail_says_that_output_was_deleted(here: Run, given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 1}})
    await appended(given.conn, claim, *(b'"%d"' % n for n in range(100)), kind="stdout")
    await streams.trim_frames(given.conn)
    await attempts.complete(given.conn, claim.fence)

    _, out, err = await here(f"executions tail {claim.execution_id}")
    assert (out, err) == ("99\n", "-- older output of attempt 1 has been deleted: retention --\n")
    _, out, _ = await here(f"executions tail {claim.execution_id} --json")
    mark, last = [msgspec.json.decode(line) for line in out.splitlines()]
    assert (mark["kind"], mark["attempt"], last["payload"]) == ("trimmed", 1, "99")


async def test_submit_follow_prints_the_output_and_then_the_result(here: Run, app: App) -> None:
    @app.task
    async def answer(ctx: Context) -> int:
        await ctx.append_frame("answer", "thinking", kind="stdout")
        await ctx.append_frame("tool_call", {"tool": "search"})
        return 42

    async with working(app):
        code, out, _ = await here("submit answer --follow")
        _, document, _ = await here("submit answer --follow --json")

    assert (code, out) == (0, 'thinking\ntool_call  {"tool":"search"}\n42\n')
    assert [msgspec.json.decode(line).get("result") for line in document.splitlines()] == [None, None, 42]


async def test_submit_follow_stops_at_its_timeout(here: Run, given: Given) -> None:
    code, _, err = await here("submit report --lane default --follow --timeout 1ms")

    assert code == 1
    assert "not_ended" in err


async def test_submit_follow_is_for_one_execution(here: Run) -> None:
    code, _, err = await here("submit report --follow --each -", stdin="{}")

    assert code == 2
    assert "--follow is invalid with --each" in err


async def test_a_tail_can_be_interrupted(start: Start, given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b'"text"', kind="stdout")
    process = await start("executions", "tail", str(claim.execution_id))
    assert process.stdout is not None
    assert await process.stdout.readexactly(4) == b"text"
    process.send_signal(2)

    async with asyncio.timeout(30):
        await process.communicate()
    await until(lambda: process.returncode is not None)
    assert process.returncode == 130


async def test_bytes_of_a_process_are_printed_as_text_even_if_frames_divide_a_character(
    here: Run, given: Given
) -> None:
    claim = await given.claimed()
    pieces = [b"caf\xc3", b"\xa9 \xf0\x9f", b"\x92\xa1 \xff", b"!\n"]
    await appended(given.conn, claim, *pieces, kind="stdout", type="process", encoding="binary")
    await appended(given.conn, claim, b"\x89PNG", kind="blob", type="image", encoding="binary")
    await attempts.complete(given.conn, claim.fence)

    _, out, _ = await here(f"executions tail {claim.execution_id}")
    assert out == "café 💡 \ufffd!\nimage  binary, 4 bytes\n"


async def test_a_pipe_that_is_closed_ends_a_tail_quietly(start: Start, given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, *[b'"line\\n"'] * 3, kind="stdout")
    process = await start("executions", "tail", str(claim.execution_id))
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.readline() == b"line\n"
    transport = process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
    transport.close()  # as head does when it has its lines
    async with asyncio.timeout(30):
        while process.returncode is None:
            await appended(given.conn, claim, b'"more\\n"', kind="stdout")
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=0.1)

        assert await process.stderr.read() == b""
    assert process.returncode != 0


async def test_a_tail_of_nothing_or_from_nowhere_is_refused(here: Run, given: Given) -> None:
    execution_id = (await given.claimed()).execution_id
    unknown = "019df237-3e80-8a31-800c-3f9b71e5d004"

    assert (await here(f"executions tail {unknown} --json")).error["error"] == "execution_not_found"
    for cursor in ("somewhere", "1:start", "9:1-0"):
        answer = await here(f"executions tail {execution_id} --cursor {cursor} --json")
        assert (answer.code, answer.error["error"]) == (1, "invalid_cursor")
