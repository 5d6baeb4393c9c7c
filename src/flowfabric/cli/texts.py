"""Values as texts: JSON for programs, cells for people. The same value, whichever way it is asked for."""

import base64
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from enum import Enum
from uuid import UUID

import msgspec

from flowfabric.ids import EntityId

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MOST = 2_000


def json(value: object) -> str:
    """A value as one line of JSON: ids as they are written, payloads as the JSON they hold, other bytes in base64."""
    return msgspec.json.encode(plain(value)).decode()


def plain(value: object) -> object:
    """A value made of what JSON has."""
    match value:
        case EntityId():
            return str(value)
        case msgspec.Struct():
            fields = msgspec.structs.fields(value)
            return {field.encode_name: plain(getattr(value, field.name)) for field in fields}
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case bytes():
            return _held(value)
        case str():
            return value.encode(errors="replace").decode() if not isinstance(value, Enum) else value.value
        case Sequence() | Set():
            return [plain(inner) for inner in value]
    return value


def cell(value: object) -> str:
    """A value in a line of text; nothing for what is not there."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return moment(value)
        case Mapping():
            return ", ".join(f"{key}={_word(inner)}" for key, inner in value.items())
        case bytes():
            return _cut(_word(_held(value)))
        case str() | EntityId() | UUID():
            return printable(str(value))
        case Sequence() | Set():
            return ", ".join(map(cell, value))
    return _cut(_word(plain(value)))


def moment(at: datetime) -> str:
    """A moment as the explanations write it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def printable(text: str, *, lines: bool = False) -> str:
    """A text that does nothing to a terminal but appear there: control characters are written out."""
    shown = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text.encode(errors="replace").decode())
    return shown if lines else " ".join(shown.split())


def pretty(value: object) -> str:
    """A value as JSON that people read, on several lines."""
    return printable(msgspec.json.format(json(value), indent=2), lines=True)


def _held(value: bytes) -> object:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return base64.b64encode(value).decode()


def _word(value: object) -> str:
    return printable(value if isinstance(value, str) and not isinstance(value, Enum) else json(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}… (--json shows all of it)"
