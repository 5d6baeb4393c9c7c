"""Statements for any driver: every argument is sent as text and cast by Postgres to the type that its value needs.

So a call does not depend on the placeholders of a driver, nor on the types and codecs that a program has registered.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

PLACE = re.compile(r"\$(\d+)")

SMALLEST, LARGEST = -(2**31), 2**31 - 1

TYPES = {bool: "boolean", str: "text", UUID: "uuid", bytes: "bytea", datetime: "timestamptz"}


def statement(text: str, arguments: Sequence[object], placeholder: Callable[[int], str]) -> tuple[str, list[str]]:
    """Return a statement with another driver's placeholders, and the arguments as text; null is written out."""
    values: list[str] = []

    def placed(found: re.Match[str]) -> str:
        value = arguments[int(found[1]) - 1]
        if value is None:
            return "null"
        if isinstance(value, list) and all(each is None for each in value):
            return f"'{_text(value)}'"  # without a type: nothing here tells of which type the elements would be
        values.append(_text(value))
        return f"cast(cast({placeholder(len(values))} as text) as {_type(value)})"

    return PLACE.sub(placed, text), values


def _type(value: object) -> str:
    if isinstance(value, list):
        kinds = {_type(each) for each in value if each is not None}
        return f"{'bigint' if 'bigint' in kinds else next(iter(kinds))}[]"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if SMALLEST <= value <= LARGEST else "bigint"
    return next(name for kind, name in TYPES.items() if isinstance(value, kind))


def _text(value: object) -> str:
    match value:
        case list():
            return "{" + ",".join("NULL" if each is None else _quoted(_text(each)) for each in value) + "}"
        case bytes():
            return f"\\x{value.hex()}"
        case datetime():
            return datetime.isoformat(value)
        case str():
            return str.__str__(value)  # the value of a member of an enum, and not its name
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
