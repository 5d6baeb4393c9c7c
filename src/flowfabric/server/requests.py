"""Reading requests: the query and the body, each as a Struct."""

import re
from collections.abc import Collection
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from flowfabric.errors import InvalidBody, InvalidText
from flowfabric.ids import shown

T = TypeVar("T")

MOST_PARAMETERS = 1_000

_FIELD = re.compile(r"`(\w+)`$|at `\$\.(\w+)")


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a body. Raises `InvalidBody`, with the field if one is wrong."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"the body is not JSON: {error}", field="body") from None
    except RecursionError:
        raise InvalidBody("the body is nested too deeply", field="body") from None


def from_value(value: Any, kind: type[T]) -> T:
    """Convert a query, whose values are text. Raises `InvalidBody`."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


def query(raw: bytes, lists: Collection[str]) -> dict[str, object]:
    """Read the parameters of a query by name; those in `lists` may be repeated.

    Raises `InvalidText`, and `InvalidBody` for another one that is given twice.
    """
    found: dict[str, Any] = {}
    for name, value in _pairs(raw):
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise InvalidBody(f"parameter {shown(name)} is given twice; give it once", field=name)
        else:
            found[name] = value
    return found


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except UnicodeDecodeError:
        raise InvalidText("the query is not UTF-8; encode it as UTF-8, then percent-encode it") from None
    except ValueError:
        raise InvalidBody(f"the query has more than {MOST_PARAMETERS} parameters; use fewer", field="query") from None


def unquoted(part: str, what: str) -> str:
    """Decode the percent-encoding of a part of a path. Raises `InvalidText` if that is not UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidText(f"{what} {shown(part)} is not UTF-8; encode it as UTF-8, then percent-encode it") from None


def _invalid(error: msgspec.ValidationError) -> InvalidBody:
    message = str(error)
    found = _FIELD.search(message)
    fields = {"field": found[1] or found[2]} if found else {}
    return InvalidBody(message[:1].lower() + message[1:], **fields)
