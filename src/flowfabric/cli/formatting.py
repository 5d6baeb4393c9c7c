"""Values as text: JSON for programs, table cells, timestamps, durations and usage bars for people."""

import base64
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from enum import Enum
from uuid import UUID

import msgspec

from flowfabric import durations
from flowfabric.ids import EntityId

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST = 2_000
_BAR_WIDTH = 20
_MILLISECOND = timedelta(milliseconds=1)


def json(value: object) -> str:
    """A value as one line of JSON: ids as text, payloads as the JSON they contain, other bytes in base64."""
    return msgspec.json.encode(plain(value)).decode()


def plain(value: object) -> object:
    """A value made only of types that JSON has."""
    match value:
        case EntityId():
            return str(value)
        case msgspec.Struct():
            return fields(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case bytes():
            return _decoded(value)
        case str():
            return value.encode(errors="replace").decode() if not isinstance(value, Enum) else value.value
        case Sequence() | Set():
            return [plain(inner) for inner in value]
    return value


def fields(value: msgspec.Struct) -> dict[str, object]:
    """The fields of a value, made only of types that JSON has."""
    return {field.encode_name: plain(getattr(value, field.name)) for field in msgspec.structs.fields(value)}


def payload(value: bytes, encoding: str) -> object:
    """A payload as the JSON it contains, or in base64 if it is something else."""
    return _decoded(value) if encoding == "json" else base64.b64encode(value).decode()


def cell(value: object) -> str:
    """A value on one line of text; `None` is empty."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return timestamp(value)
        case timedelta():
            return lasting(value)
        case Mapping():
            return ", ".join(f"{key}={_word(inner)}" for key, inner in value.items())
        case bytes():
            return _cut(_word(_decoded(value)))
        case str() | EntityId() | UUID():
            return printable(str(value))
        case Sequence() | Set():
            return ", ".join(map(cell, value))
    return _cut(_word(plain(value)))


def timestamp(at: datetime) -> str:
    """A timestamp in the format that explanations use: 2026-05-04 09:00:00 UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_duration(seconds: float) -> str:
    """A duration in at most two units, to fit a column: 45s, 12m, 3h10m."""
    return "".join(f"{count}{unit}" for count, unit in durations.in_two_units(seconds)) or "0s"


def lasting(span: timedelta) -> str:
    """How long something took: 350ms, 12.3s, 12m, 3h10m."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1_000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else short_duration(seconds)


def milliseconds_until(at: datetime | None, now: datetime) -> int | None:
    """How many milliseconds are left until then; 0 if it has passed."""
    return None if at is None else max(at - now, timedelta()) // _MILLISECOND


def usage_bar(used: int, limit: int | None, reserved: int = 0) -> str:
    """A bar in plain ASCII: used (`#`), reserved (`=`) and free (`.`). Without a limit, nothing."""
    if limit is None:
        return ""
    filled = _bar_length(used + reserved, limit)
    solid = min(_bar_length(used, limit), filled)
    drawn = "#" * solid + "=" * (filled - solid)
    return f"[{drawn:.<{_BAR_WIDTH}}] {(used + reserved) * 100 // limit}%"


def printable(text: str, *, lines: bool = False) -> str:
    """A text that is safe on a terminal: control characters are escaped. Without `lines`, on one line."""
    escaped = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text.encode(errors="replace").decode())
    return escaped if lines else " ".join(escaped.split())


def pretty(value: object) -> str:
    """A value as indented JSON."""
    return printable(msgspec.json.format(json(value), indent=2), lines=True)


def _decoded(value: bytes) -> object:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return base64.b64encode(value).decode()


def _word(value: object) -> str:
    return printable(value if isinstance(value, str) and not isinstance(value, Enum) else json(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (use --json to see all of it)"


def _bar_length(amount: int, limit: int) -> int:
    """How many characters to fill: all of them only at the limit, none only at zero."""
    if not 0 < amount < limit:
        return _BAR_WIDTH if amount >= limit else 0
    return min(max(round(_BAR_WIDTH * amount / limit), 1), _BAR_WIDTH - 1)
