"""`ff top`: the overview printed once, and the screen that refreshes every second."""

import asyncio
import os
import termios
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from rich.console import Console

from flowfabric.cli.top_screen import ago, fitted
from flowfabric.engine.overview import overview
from flowfabric.model import Overview
from tests.cli.conftest import Run
from tests.cli.looks import Looks
from tests.cli.terminal import Terminal
from tests.engine.stuck import everything_stuck
from tests.given import Given


async def test_snapshot_of_many_stuck_executions(look: Looks, given: Given) -> None:
    await everything_stuck(given, later=timedelta(days=3), crew=False)

    await look("top", "--once", "--once --limit 1", "--json")


async def test_its_json_is_the_overview(here: Run, given: Given) -> None:
    await everything_stuck(given)

    code, out, _ = await here("top --json")

    seen = msgspec.json.decode(out, type=Overview)
    assert code == 0
    assert {stuck.reason for stuck in seen.stuck} == {stuck.reason for stuck in (await overview(given.conn)).stuck}
    assert len(seen.stuck) == 8


async def test_an_empty_database_says_what_to_do(here: Run) -> None:
    code, out, _ = await here("top")

    assert code == 0
    assert "\nno lanes yet; " in out
    assert "ff worker FILE.py:app\n" in out
    assert out.endswith("\nnothing is stuck\n")


async def test_control_characters_in_names_are_escaped(here: Run, given: Given) -> None:
    await given.submitted(lane="[red]lane[/red]")
    await given.held(lane="held")
    await given.rows('update flowfabric.tickets set hold = hold || \'{"reason": "\\u001b[2J"}\' where hold is not null')

    _, out, _ = await here("top --once")

    assert out.count("[red]lane[/red]") == 4  # the lane, and the lane, reason and remedy of what is stuck
    assert "\x1b" not in out
    assert r"\x1b[2J" in out


async def test_a_database_that_is_not_migrated_is_an_error(ff: Run, empty_url: str) -> None:
    code, out, err = await ff("top", FLOWFABRIC_URL=empty_url)

    assert (code, out) == (1, "")
    assert err.startswith("schema_behind: ")


@pytest.fixture
async def terminal(database_url: str) -> AsyncIterator[Terminal]:
    opened = Terminal()
    await opened.run(database_url, "top")
    yield opened
    await opened.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
async def test_the_screen_refreshes_until_a_key_quits(given: Given, terminal: Terminal, key: bytes) -> None:
    before = termios.tcgetattr(terminal.inside)
    await terminal.shows("nothing is stuck")
    await given.submitted(lane="fresh")
    await terminal.shows("no live worker serves lane fresh")
    assert termios.tcgetattr(terminal.inside) != before

    os.write(terminal.outside, key)

    async with asyncio.timeout(10):
        assert await terminal.process.wait() == 0
    assert termios.tcgetattr(terminal.inside) == before


@pytest.mark.parametrize("lines", [10, 24, 60])
async def test_reasons_that_do_not_fit_the_screen_are_counted(given: Given, lines: int) -> None:
    await everything_stuck(given)
    screen = Console(width=120, height=lines, force_terminal=False, color_system=None)

    drawn = screen.render_lines(fitted(await overview(given.conn), screen))

    text = "\n".join("".join(part.text for part in line).rstrip() for line in drawn)
    shown = text.count("ff ") - text.count("ff top --once")
    assert (f"and {8 - shown} more reasons; to see all: ff top --once" in text) == (lines < 60)
    assert lines == 10 or len(drawn) <= lines


def test_a_moment_in_the_future_is_0s_ago() -> None:
    now = datetime(2026, 5, 4, 9, tzinfo=UTC)

    assert ago(None, now) == ""
    assert ago(now + timedelta(seconds=5), now) == "0s"
