"""Tables, cards, colours and progress bars."""

import asyncio
import os
import pty
import sys
from uuid import UUID

import pytest

from flowfabric.cli import tables
from flowfabric.ids import ExecutionId
from tests.given import Given

AN_ID = ExecutionId(7, UUID(int=1))


def test_an_empty_column_is_left_out() -> None:
    columns = ("name", "state=state.word", "why")
    items = [
        {"name": "a", "state": {"word": "[red]up"}, "reason": None},
        {"name": "long", "state": None, "reason": None},
    ]

    assert tables.table(columns, items) == "NAME  STATE\na     [red]up\nlong"
    assert tables.card(columns, items[0]) == "name   a\nstate  [red]up"


def test_on_a_narrow_terminal_columns_on_the_right_are_left_out() -> None:
    headings = ["EXECUTION", "STATE", "WHY", "CREATED"]
    line = [str(AN_ID), "failed", "a reason of some length, which can be broken", "2026-05-04 09:00:00 UTC"]

    assert tables.fitting(headings, [line], 200) == [0, 1, 2, 3]
    assert tables.fitting(headings, [line], 80) == [0, 1, 2]
    assert tables.fitting(headings, [line], 60) == [0, 1]
    assert tables.fitting(headings, [line], 20) == [0, 1]


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
async def test_colours_appear_only_on_a_terminal_and_not_with_no_color(
    given: Given, database_url: str, environment: dict[str, str], coloured: bool
) -> None:
    await given.cancelled()
    await given.failed()

    seen = await on_a_terminal(["executions", "list"], {"FLOWFABRIC_URL": database_url, "TERM": "xterm", **environment})

    assert ("\x1b[31mfailed" in seen) is coloured
    assert "failed" in seen
    assert all(len(line) <= 120 for line in seen.splitlines() if "\x1b" not in line)


async def test_long_work_shows_a_progress_bar_on_a_terminal(given: Given, database_url: str) -> None:
    ids = [str(await given.submitted()) for _ in range(3)]

    seen = await on_a_terminal(["executions", "cancel", *ids], {"FLOWFABRIC_URL": database_url, "TERM": "xterm"})

    assert "cancelling" in seen
    assert "100%" in seen
    assert seen.count("cancelled") == 3


async def on_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """The output on a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", *arguments),
        env=inherited | {"COLUMNS": "120"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = await asyncio.to_thread(_read, ours)
    await process.wait()
    os.close(ours)
    return seen


def _read(terminal: int) -> str:
    seen = b""
    while True:
        try:
            some = os.read(terminal, 65_536)
        except OSError:  # the process has closed the terminal
            return seen.decode()
        seen += some
