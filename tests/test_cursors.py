"""Cursors of events and lists: every test vector, and arbitrary text."""

import base64
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowfabric import cursors, ids
from flowfabric.errors import InvalidCursor
from flowfabric.ids import ExecutionId
from tests.test_ids import FLOW, STAMPED, UUID_TEXT, VECTORS, any_text, fuzz, read_or_refusal

Vector = dict[str, Any]


@pytest.mark.parametrize("vector", VECTORS["event_cursors"]["valid"])
def test_an_event_cursor_is_the_event_id_in_twelve_characters(vector: Vector) -> None:
    event_id = int(vector["event_id"])

    assert cursors.encode_event_cursor(event_id) == vector["text"]
    assert cursors.decode_event_cursor(vector["text"]) == event_id
    assert base64url(vector["hex"]) == vector["text"]


@pytest.mark.parametrize("vector", VECTORS["event_cursors"]["other_cells"])
def test_an_event_cursor_carries_its_cell(vector: Vector, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCursor, match=f"cell {vector['cell']}, and this database is cell 0"):
        cursors.decode_event_cursor(vector["text"])

    monkeypatch.setattr(ids, "CELL", vector["cell"])
    assert cursors.encode_event_cursor(int(vector["event_id"])) == vector["text"] == base64url(vector["hex"])
    assert cursors.decode_event_cursor(vector["text"]) == int(vector["event_id"])
    assert cursors.decode_event_cursor("AgAAAAAAAAAA") == 0, "the cursor before all events is the same in every cell"


def test_an_empty_event_cursor_means_from_now_on() -> None:
    assert cursors.decode_event_cursor("") is None


def base64url(raw_hex: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(raw_hex)).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        *map(base64url, VECTORS["event_cursors"]["invalid_hex"]),
        "An//////////",
        "AgAAAAAAAAAq\n",
        "AgAAAAAAAAAq====",
        "AgAA AAAAAAq",
        "AgAAAAAAAAÄq",
        "42",
    ],
)
def test_any_other_event_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor) as refused:
        cursors.decode_event_cursor(text)

    assert refused.value.fields == {"cause": "malformed"}


@fuzz
@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 255), st.uuids())
@example(datetime.min.replace(tzinfo=UTC), 0, UUID(int=0))
@example(datetime.max.replace(tzinfo=UTC), 255, UUID(int=0))
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), 0, UUID(int=0))
def test_a_newest_cursor_is_exact_to_the_microsecond(created_at: datetime, partition: int, uuid: UUID) -> None:
    execution_id = ExecutionId(partition, uuid)

    assert cursors.parse_newest_cursor(cursors.newest_cursor(created_at, execution_id)) == (created_at, execution_id)


def test_a_newest_cursor_is_the_same_in_every_time_zone() -> None:
    created_at = datetime(2026, 11, 3, 9, 30, 0, 1, UTC)
    elsewhere = created_at.astimezone(timezone(timedelta(hours=-5)))
    execution_id = ExecutionId(24, UUID(UUID_TEXT))

    assert cursors.newest_cursor(created_at, execution_id) == f"1793698200000001,{execution_id}"
    assert cursors.newest_cursor(elsewhere, execution_id) == f"1793698200000001,{execution_id}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        ",",
        f"01,{FLOW}",
        f"-0,{FLOW}",
        f"{10**18 - 1},{FLOW}",
        "1,{fp:07}:" + STAMPED,
        "{fp:7}:" + UUID_TEXT[1:],
    ],
)
def test_any_other_list_cursor_is_refused(text: str) -> None:
    for parse in (cursors.parse_newest_cursor, cursors.parse_id_cursor):
        with pytest.raises(InvalidCursor) as refused:
            parse(text)
        assert refused.value.fields == {"cause": "malformed"}


def test_an_id_cursor_is_the_execution_id() -> None:
    assert cursors.parse_id_cursor("{fp:7}:" + UUID_TEXT) == ExecutionId(7, UUID(UUID_TEXT))
    assert (
        cursors.parse_id_cursor(STAMPED)
        == cursors.parse_id_cursor("{fp:24}:" + STAMPED)
        == ExecutionId(24, UUID(STAMPED))
    )
    assert cursors.parse_newest_cursor(f"1,{STAMPED}") == cursors.parse_newest_cursor("1,{fp:24}:" + STAMPED)


@fuzz
@given(any_text)
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    match read_or_refusal(cursors.decode_event_cursor, text):
        case int(event_id):
            assert cursors.encode_event_cursor(event_id) == text
        case other:
            assert other is None or isinstance(other, InvalidCursor)
    match read_or_refusal(cursors.parse_newest_cursor, text):
        case (datetime() as created_at, ExecutionId() as execution_id):
            assert cursors.newest_cursor(created_at, execution_id).endswith(f",{execution_id}")
            assert text.lower() in (f"{text.partition(',')[0]},{each}" for each in (execution_id, execution_id.wire))
        case other:
            assert isinstance(other, InvalidCursor)


@fuzz
@given(st.integers(0, 2**56 - 1))
def test_every_event_id_reads_back_from_its_cursor(event_id: int) -> None:
    assert cursors.decode_event_cursor(cursors.encode_event_cursor(event_id)) == event_id
