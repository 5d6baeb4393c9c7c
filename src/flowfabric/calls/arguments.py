"""Arguments of calls, checked first: a value that Postgres or the driver rejects would fail the whole batch."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TypeVar

import msgspec

from flowfabric.calls.items import MOST_BYTES
from flowfabric.errors import InvalidBody, InvalidText, InvalidTime, PayloadTooLarge
from flowfabric.ids import ExecutionId, FlowId, check_text, expect_id, shown
from flowfabric.model import Fence

T = TypeVar("T")

HIGHEST_PRIORITY = 9_000


def about(execution_id: ExecutionId) -> dict[str, object]:
    """Return the arguments that identify an execution. Raises `InvalidId` for the text of an id."""
    asked = expect_id(ExecutionId, execution_id, "execution id")
    return {"partition": asked.partition, "id": asked.uuid}


def about_flow(flow_id: FlowId) -> dict[str, object]:
    """Return the arguments that identify a flow. Raises `InvalidId` for the text of an id."""
    asked = expect_id(FlowId, flow_id, "flow id")
    return {"partition": asked.partition, "id": asked.uuid}


def under(fence: Fence) -> dict[str, object]:
    """Return the arguments of a single call under a lease."""
    return {**about(fence.execution_id), "lease_id": fence.lease_id, "epoch": fence.epoch, "attempt": fence.attempt}


def json_text(value: object, what: str) -> str:
    """Encode a value as JSON that Postgres can store.

    Raises `InvalidText`, and `InvalidBody` for NaN and infinity, which would be written as null.
    """
    text = msgspec.json.encode(value).decode()
    if "null" in text and not all(map(isfinite, _floats(msgspec.to_builtins(value)))):
        raise InvalidBody(f"{what} contains NaN or infinity, which JSON cannot hold; use finite numbers", field=what)
    if "\\u0000" in text:
        raise InvalidText(f"{what} contains U+0000, which Postgres cannot store; remove it")
    return text


def _floats(value: object) -> Iterator[float]:
    match value:
        case float():
            yield value
        case Mapping():
            for part in value.values():
                yield from _floats(part)
        case list() | tuple():
            for part in value:
                yield from _floats(part)


def words(given: object, what: str) -> str:
    """Encode a list of words as JSON. SQL validates them; only text that Postgres cannot store is refused here."""
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        return '"not a list"'
    return msgspec.json.encode([check_text(word, what) if isinstance(word, str) else None for word in given]).decode()


def span(given: timedelta | None, what: str) -> int | None:
    """Convert a duration to whole milliseconds. Raises `InvalidTime` for any other type."""
    if given is None or isinstance(given, timedelta):
        return None if given is None else given // timedelta(milliseconds=1)
    raise InvalidTime(f"{what} {shown(str(given))} is invalid; use a timedelta")


def span_or_moment(given: timedelta | datetime | None, what: str) -> tuple[int | None, datetime | None]:
    """Convert a duration to whole milliseconds; keep a timestamp, because only the database's clock counts.

    Raises `InvalidTime`.
    """
    match given:
        case None:
            return None, None
        case datetime() if given.utcoffset() is None:
            raise InvalidTime(f"{what} {given} is invalid; use a datetime with a time zone, such as datetime.now(UTC)")
        case datetime():
            try:
                return None, given.astimezone(UTC)
            except OverflowError:
                raise InvalidTime(f"{what} {given} is invalid; use a time at most ten years ahead") from None
        case timedelta():
            return span(given, what), None
        case _:
            raise InvalidTime(f"{what} {shown(str(given))} is invalid; use a timedelta or a datetime")


def check_result(result: bytes | None, encoding: str | None, limit: int) -> tuple[int, str | None]:
    """Return the size of a result, and its encoding as it is stored: JSON, the default, as null.

    Raises `PayloadTooLarge` for a result that is too large for any statement; SQL checks smaller ones.
    """
    size = len(expect(bytes, result, "result") or b"")
    if size > max(limit, MOST_BYTES):
        raise PayloadTooLarge(
            f"the result has {size:,} bytes, more than the limit of {limit:,}; store it elsewhere and pass a reference",
            limit=limit,
        )
    given = expect(str, encoding, "encoding")
    return size, check_text(given, "encoding") if given not in (None, "json") else None


def priority(given: int | None) -> int:
    """Return a priority as a plain number; no priority is 0. Raises `InvalidBody` for one Postgres could not store."""
    number = int(expect(int, given, "priority") or 0)
    if not 0 <= number <= HIGHEST_PRIORITY:
        raise InvalidBody(f"priority {number} is invalid; use 0 to {HIGHEST_PRIORITY}", field="priority")
    return number


def version(given: int | None) -> int | None:
    """Return the version of a task, or none. Raises `InvalidBody` for one Postgres could not store."""
    number = expect(int, given, "version")
    if number is not None and not 1 <= number < 1 << 31:
        raise InvalidBody(f"version {number} is invalid; use 1 or more", field="version")
    return number


def expect(kind: type[T], value: T, field: str) -> T:
    """Return a value that has the expected type or is `None`; the driver would reject the whole batch for another type.

    Raises `InvalidBody`.
    """
    if value is None or isinstance(value, kind):
        return value
    raise InvalidBody(f"{field} {shown(str(value))} is invalid; use a value of type {kind.__name__}", field=field)
