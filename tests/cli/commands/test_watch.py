"""`--watch` of `ff executions list` and `describe`: a screen that refreshes, or plain lines."""

import asyncio
import os
import signal
import termios
from collections.abc import AsyncIterator

import msgspec
import pytest

from flowfabric.engine import attempts
from tests.cli import scene
from tests.cli.conftest import Run, Start
from tests.cli.scene import CHILDREN, PARENT
from tests.cli.terminal import Terminal
from tests.conftest import Server
from tests.given import Given
from tests.worker.scene import away


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    opened = Terminal()
    yield opened
    await opened.close()


async def ends(terminal: Terminal) -> int:
    async with asyncio.timeout(20):
        return await terminal.process.wait()


async def test_an_execution_is_watched_until_it_ends(database_url: str, given: Given, terminal: Terminal) -> None:
    before = termios.tcgetattr(terminal.inside)
    claim = await given.claimed(task="report")
    await terminal.run(database_url, "executions", "describe", str(claim.execution_id), "--watch")
    await terminal.shows("attempt 1 runs on pool")
    await attempts.complete(given.conn, claim.fence, b'{"pages":3}')

    assert await ends(terminal) == 0
    after = terminal.seen.rpartition("\x1b[?1049l")[2]  # what stays when the screen is left
    assert '{"pages":3}' in after
    assert termios.tcgetattr(terminal.inside) == before


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
async def test_a_list_is_watched_until_a_key_quits(
    database_url: str, given: Given, terminal: Terminal, key: bytes
) -> None:
    await terminal.run(database_url, "executions", "list", "--watch")
    await terminal.shows("no executions match")
    await given.submitted(task="fresh")
    await terminal.shows("fresh")
    os.write(terminal.outside, key)

    assert await ends(terminal) == 0


async def test_more_lines_than_the_screen_has_are_counted(database_url: str, given: Given, terminal: Terminal) -> None:
    for _ in range(60):
        await given.submitted()
    await terminal.run(database_url, "executions", "list", "--watch", "--limit", "60")

    await terminal.shows(" more lines; press q to quit")


async def test_an_outage_is_shown_and_over_when_the_database_is_back(
    database_url: str, given: Given, server: Server, terminal: Terminal
) -> None:
    claim = await given.claimed()
    await terminal.run(database_url, "executions", "describe", str(claim.execution_id), "--watch")
    await terminal.shows("attempt 1 runs on")
    async with away(server, given):
        await terminal.shows("retrying; press q to quit")
    await attempts.complete(given.conn, claim.fence, b"1")

    assert await ends(terminal) == 0


async def test_without_a_terminal_every_change_of_state_is_printed(start: Start, given: Given) -> None:
    execution_id = await given.submitted()
    process = await start("executions", "describe", str(execution_id), "--watch")
    assert process.stdout is not None
    waiting = await asyncio.wait_for(process.stdout.readuntil(b"state      waiting"), 20)
    [claim] = await given.claim()
    active = await asyncio.wait_for(process.stdout.readuntil(b"active"), 20)
    await attempts.complete(given.conn, claim.fence, b"1")
    completed, err = await asyncio.wait_for(process.communicate(), 20)

    assert (process.returncode, err) == (0, b"")
    assert completed.count(b"state ") == 1
    assert b"\x1b" not in waiting + active + completed


async def test_with_json_every_change_is_a_document_and_a_signal_ends_it(start: Start, given: Given) -> None:
    process = await start("executions", "list", "--watch", "--json")
    assert process.stdout is not None
    first = await asyncio.wait_for(process.stdout.readline(), 20)
    await given.submitted()
    second = await asyncio.wait_for(process.stdout.readline(), 20)
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.wait_for(process.communicate(), 20)

    assert (process.returncode, err) == (0, b"")
    assert [len(msgspec.json.decode(each)["items"]) for each in (first, second)] == [0, 1]


async def test_a_tree_is_watched_until_all_of_it_has_ended(start: Start, given: Given) -> None:
    runs = await scene.family(given)
    process = await start("executions", "describe", str(PARENT), "--tree", "--watch")
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(str(CHILDREN[3]).encode()), 20)
    for claim in [runs, *await given.claim(lanes=["pages"], take=100)]:
        await attempts.complete(given.conn, claim.fence, b"1")
    out, err = await asyncio.wait_for(process.communicate(), 30)

    assert (process.returncode, err) == (0, b"")
    assert b"active" not in out.rpartition(str(PARENT).encode())[2]


async def test_ids_are_not_watched(ff: Run, database_url: str) -> None:
    code, _, err = await ff("executions", "list", "--watch", "--ids", FLOWFABRIC_URL=database_url)

    assert (code, "--ids cannot be combined with --watch" in err) == (2, True)
