"""Answers as JSON: ids as text, durations as `1h30m`, payloads and results as the JSON that they are."""

import base64
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from flowfabric.durations import format_duration
from flowfabric.ids import EntityId
from flowfabric.model import Page, Schedule
from flowfabric.payloads.codecs import PLAIN


def encode(answer: Any, wrapper: str = "items") -> bytes:
    """Encode an answer: an object in any case, if need be with the answer as its only field."""
    document = answer if isinstance(answer, msgspec.Struct | Mapping) else {wrapper: answer}
    return msgspec.json.encode(plain(document), enc_hook=str)


def plain(value: Any) -> Any:
    """Replace what JSON would write otherwise: bytes, durations, and the cursor of a page."""
    match value:
        case Page():
            return {"items": plain(value.items), "next": value.next_cursor}
        case msgspec.Struct():
            return _fields(value) if _needs_work(type(value)) else value
        case bytes():
            return stored(value, PLAIN)
        case timedelta():
            return format_duration(value)
        case str() | EntityId():
            return value
        case Mapping():
            return {key: plain(each) for key, each in value.items()}
        case Sequence():
            return [plain(each) for each in value]
    return value


def stored(value: bytes, encoding: str) -> object:
    """A payload or a result: JSON as it is, anything else in base64."""
    if encoding == PLAIN:
        try:
            msgspec.json.decode(value)
            return msgspec.Raw(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return base64.b64encode(value).decode()


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    found = {}
    for field in msgspec.structs.fields(value):
        own = getattr(value, field.name)
        name = "next" if field.name == "next_cursor" else field.encode_name
        found[name] = stored(own, _encoding(value, field.name)) if isinstance(own, bytes) else plain(own)
    return found


def _encoding(value: Any, name: str) -> str:
    """The encoding of a field with bytes."""
    if isinstance(value, Schedule):
        return value.options.encoding
    own: str | None = getattr(value, f"{name}_encoding", None)
    return own or str(getattr(value, "encoding", PLAIN))


@functools.cache
def _needs_work(kind: type[msgspec.Struct]) -> bool:
    """Whether a value of this type may contain something that `plain` replaces."""
    return any(each in (bytes, timedelta, Page) or each == "next_cursor" for each in _parts(kind, set()))


def _parts(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield a type, the types inside it, and the names of its fields."""
    yield kind
    inner: Iterable[Any] = typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        hints = typing.get_type_hints(kind)
        yield from hints
        inner = hints.values()
    for each in inner:
        yield from _parts(each, seen)
