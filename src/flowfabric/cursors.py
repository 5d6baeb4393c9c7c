"""Private: cursors, and how they are written as text: where a reader of the event log or of a list continues.

    event cursor       AgAAAAAAAAAq
    frame cursor       1790000000000-3, the id of a frame; with its attempt, 2:1790000000000-3
    list cursor        the id of the last item, or its time in microseconds, a comma and its id

Every parser returns a value or raises `InvalidCursor`, for any text.
"""

import base64
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from flowfabric import ids
from flowfabric.errors import InvalidCursor, InvalidId

_EVENT_CURSOR = re.compile(r"[A-Za-z0-9_-]{12}")
_MICROSECONDS = re.compile(r"0|-?[1-9][0-9]{0,17}")

_FRAME = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,10}))?")
_ATTEMPT = re.compile(r"[1-9][0-9]{0,9}")
_MOST_MS, _MOST_SEQ = 2**63 - 1, 2**31 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def encode_event_cursor(event_id: int) -> str:
    """Return the cursor after an event; the cursor of event 0 is before the oldest event that is kept.

    It is the byte 2, the cell in one byte, and the event id in seven.
    """
    return base64.urlsafe_b64encode(bytes((2, ids.CELL)) + event_id.to_bytes(7)).decode()


def decode_event_cursor(text: str) -> int | None:
    """Return the event id to read after, or `None` for an empty cursor, which reads only new events.

    Raises `InvalidCursor`.
    """
    if text == "":
        return None
    # Nine bytes fill exactly twelve base64 characters, so every cursor has one text only.
    raw = base64.urlsafe_b64decode(text) if _EVENT_CURSOR.fullmatch(text) else b""
    if raw[:1] != b"\x02" or raw[1] >= 0x80:
        raise invalid_cursor(text)
    if raw[1] != ids.CELL and any(raw[1:]):  # the cursor before all events is the same in every cell
        raise InvalidCursor(
            f"cursor {ids.shown(text)} belongs to cell {raw[1]}, and this database is cell {ids.CELL}; "
            "use the database that returned it",
            cause="malformed",
        )
    return int.from_bytes(raw[2:])


def newest_cursor(created_at: datetime, execution_id: ids.ExecutionId) -> str:
    """Return the cursor after an execution in a list ordered by `newest`, exact to the microsecond."""
    return f"{(created_at - _EPOCH) // _MICROSECOND},{execution_id}"


def parse_newest_cursor(text: str) -> tuple[datetime, ids.ExecutionId]:
    """Parse the cursor of a list ordered by `newest`: when its last item was created, and its id.

    Raises `InvalidCursor`.
    """
    microseconds, _, execution_id = text.partition(",")
    if not _MICROSECONDS.fullmatch(microseconds):
        raise invalid_cursor(text)
    try:
        return _EPOCH + int(microseconds) * _MICROSECOND, ids.read_execution_id(execution_id)
    except (OverflowError, InvalidId):
        raise invalid_cursor(text) from None


def parse_id_cursor(text: str) -> ids.ExecutionId:
    """Parse the cursor of a list ordered by `id`, which is the id of its last item. Raises `InvalidCursor`."""
    try:
        return ids.read_execution_id(text)
    except InvalidId:
        raise invalid_cursor(text) from None


def waitpoint_cursor(created_at: datetime, waitpoint_id: UUID) -> str:
    """Return the cursor after a waitpoint in a list of waitpoints."""
    return f"{(created_at - _EPOCH) // _MICROSECOND},{waitpoint_id}"


def parse_waitpoint_cursor(text: str) -> tuple[datetime, UUID]:
    """Parse the cursor of a list of waitpoints: when the last one was created, and its id. Raises `InvalidCursor`."""
    microseconds, _, waitpoint_id = text.partition(",")
    if not (_MICROSECONDS.fullmatch(microseconds) and ids.UUID_TEXT.fullmatch(waitpoint_id)):
        raise invalid_cursor(text)
    try:
        return _EPOCH + int(microseconds) * _MICROSECOND, UUID(waitpoint_id)
    except OverflowError:
        raise invalid_cursor(text) from None


def parse_frame_bound(text: str, *, is_upper: bool) -> tuple[int, int]:
    """Parse one end of a range of frames: `start`, `end`, a millisecond, or the id of a frame.

    Raises `InvalidCursor`.
    """
    match text:
        case "start":
            return 0, 0
        case "end":
            return _MOST_MS, _MOST_SEQ
    ms, seq = _parse_frame(text)
    return ms, seq if seq is not None else _MOST_SEQ if is_upper else 0


def parse_frame_cursor(text: str) -> tuple[int, int]:
    """Parse the id of the frame after which a tail reads; `0-0` is before the first. Raises `InvalidCursor`."""
    if text in ("start", "end"):
        raise _not_concrete(text)
    ms, seq = _parse_frame(text)
    if seq is None:
        raise _not_concrete(text)
    return ms, min(seq, _MOST_SEQ - 1)


def parse_stream_cursor(text: str) -> tuple[int, str]:
    """Parse where a reader of all attempts continues: an attempt, and the id of its last frame that was read.

    Raises `InvalidCursor`.
    """
    attempt, colon, after = text.partition(":")
    if not (colon and _ATTEMPT.fullmatch(attempt)) or int(attempt) >= 1 << 31:
        raise InvalidCursor(
            f"cursor {ids.shown(text)} is invalid; use the cursor of a frame, such as 1:1790000000000-3",
            cause="malformed",
        )
    parse_frame_cursor(after)
    return int(attempt), after


def next_frame_id(frame_id: str) -> str:
    """Return the lowest id above that of a frame."""
    ms, seq = parse_frame_cursor(frame_id)
    return f"{ms}-{seq + 1}"


def _parse_frame(text: str) -> tuple[int, int | None]:
    if text == "":
        raise InvalidCursor("the frame cursor is empty; use the id of a frame, such as 1790000000000-3", cause="empty")
    if text in ("-", "+"):
        raise InvalidCursor(f"frame cursor {ids.shown(text)} is invalid; use start or end", cause="bare_marker")
    found = _FRAME.fullmatch(text)
    ms, seq = (int(found[1]), int(found[2]) if found[2] else None) if found else (-1, None)
    if not 0 <= ms <= _MOST_MS or (seq or 0) > _MOST_SEQ:
        raise InvalidCursor(
            f"frame cursor {ids.shown(text)} is invalid; use the id of a frame, such as 1790000000000-3",
            cause="malformed",
        )
    return ms, seq


def _not_concrete(text: str) -> InvalidCursor:
    return InvalidCursor(
        f"frame cursor {ids.shown(text)} names no frame; use the id of one, or 0-0 for the first", cause="not_concrete"
    )


def invalid_cursor(text: str) -> InvalidCursor:
    """Return the error for a cursor that this call did not return."""
    return InvalidCursor(
        f"cursor {ids.shown(text)} is invalid for this call; use a cursor that it returned, or none to start again",
        cause="malformed",
    )
