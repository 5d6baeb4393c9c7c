"""Values as text: table cells, JSON, usage bars and durations."""

from datetime import datetime, timedelta, timezone
from uuid import UUID

import msgspec
import pytest

from flowfabric.cli import formatting
from flowfabric.ids import ExecutionId
from flowfabric.model import Failure, LaneChange, Page

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
    assert formatting.cell(value) == shown
    assert formatting.json(value) == document


def test_a_long_value_is_cut_in_a_cell_and_whole_in_json() -> None:
    long = msgspec.json.encode("x" * 10_000)

    assert formatting.cell(long).startswith("x" * 2_000 + "… ")
    assert len(formatting.json(long)) == 10_002


def test_a_page_is_a_document_with_its_cursor() -> None:
    assert formatting.json(Page([AN_ID], "there")) == f'{{"items":["{AN_ID}"],"next_cursor":"there"}}'


def test_a_duration_has_at_most_two_units() -> None:
    shown = [formatting.short_duration(seconds) for seconds in (0.4, 59, 60, 3_700, 90_000)]

    assert shown == ["0s", "59s", "1m", "1h1m", "1d1h"]


@pytest.mark.parametrize(
    ("used", "reserved", "limit", "drawn"),
    [
        (0, 0, 100, "[....................] 0%"),
        (1, 0, 1_000_000, "[#...................] 0%"),
        (50, 25, 100, "[##########=====.....] 75%"),
        (999_999, 0, 1_000_000, "[###################.] 99%"),
        (100, 0, 100, "[####################] 100%"),
        (90, 60, 100, "[##################==] 150%"),
        (0, 2**53 - 1, 2**53 - 1, "[====================] 100%"),
    ],
)
def test_a_bar_is_full_only_at_the_limit(used: int, reserved: int, limit: int, drawn: str) -> None:
    assert formatting.usage_bar(used, limit, reserved) == drawn


def test_without_a_limit_there_is_no_bar() -> None:
    assert formatting.usage_bar(5, None) == ""
