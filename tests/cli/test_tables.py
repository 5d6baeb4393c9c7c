"""Values as texts, and tables of them."""

import asyncio
import os
import pty
import sys
from datetime import datetime, timedelta, timezone
from uuid import UUID

import msgspec
import pytest

from flowfabric.cli import tables, texts
from flowfabric.ids import ExecutionId
from flowfabric.model import Failure, LaneChange, Page
from tests.given import Given

AN_ID = ExecutionId(7, UUID(int=1))
AT = datetime(2026, 5, 4, 11, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("value", "shown", "document"),
    [
        (None, "", "null"),
        (True, "yes", "true"),
        (12, "12", "12"),
        (AN_ID, "{fp:7}:00000000-0000-0000-0000-000000000001", '"{fp:7}:00000000-0000-0000-0000-000000000001"'),
        (AN_ID.uuid, str(AN_ID.uuid), f'"{AN_ID.uuid}"'),
        (AT, "2026-05-04 09:00:00 UTC", '"2026-05-04T11:00:00+02:00"'),
        (LaneChange.PAUSED, "paused", '"paused"'),
        (("a", "b"), "a, b", '["a","b"]'),
        ({"a": "b", "c": 1}, "a=b, c=1", '{"a":"b","c":1}'),
        (b'{"a": [1]}', '{"a":[1]}', '{"a":[1]}'),
        (b"\xff\x00", "/wA=", '"/wA="'),
        ("two\nlines\t\x07", "two lines \\x07", '"two\\nlines\\t\\u0007"'),
        ("half \ud83d", "half ?", '"half ?"'),
        (Failure(class_="timeout"), *['{"class":"timeout","category":null,"reason":null,"traceback":null}'] * 2),
    ],
)
def test_a_value_as_a_cell_and_as_json(value: object, shown: str, document: str) -> None:
    assert texts.cell(value) == shown
    assert texts.json(value) == document


def test_a_long_value_is_cut_for_people_only() -> None:
    long = msgspec.json.encode("x" * 10_000)

    assert texts.cell(long) == "x" * 2_000 + "… (--json shows all of it)"
    assert len(texts.json(long)) == 10_002


def test_a_page_is_a_document_with_its_cursor() -> None:
    assert texts.json(Page([AN_ID], "there")) == f'{{"items":["{AN_ID}"],"next_cursor":"there"}}'


def test_a_column_in_which_nothing_stands_is_left_out() -> None:
    columns = ("name", "state=state.word", "why")
    items = [{"name": "a", "state": {"word": "[red]up"}, "why": None}, {"name": "long", "state": None, "why": None}]

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
async def test_colours_are_for_terminals_that_want_them(
    given: Given, database_url: str, environment: dict[str, str], coloured: bool
) -> None:
    await given.cancelled()
    await given.failed()

    seen = await on_a_terminal(["executions", "list"], {"FLOWFABRIC_URL": database_url, "TERM": "xterm", **environment})

    assert ("\x1b[31mfailed" in seen) is coloured
    assert "failed" in seen
    assert all(len(line) <= 120 for line in seen.splitlines() if "\x1b" not in line)


async def test_long_work_shows_on_a_terminal_how_far_it_is(given: Given, database_url: str) -> None:
    ids = [str(await given.submitted()) for _ in range(3)]

    seen = await on_a_terminal(["executions", "cancel", *ids], {"FLOWFABRIC_URL": database_url, "TERM": "xterm"})

    assert "cancelling" in seen
    assert "100%" in seen
    assert seen.count("cancelled") == 3


async def on_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """What a terminal of 120 columns shows."""
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
        except OSError:  # nobody writes to it any more
            return seen.decode()
        seen += some
