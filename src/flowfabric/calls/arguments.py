"""Arguments: values checked before the call for what would make Postgres or the driver refuse a whole batch."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from flowfabric.errors import InvalidBody, InvalidText, InvalidTime
from flowfabric.ids import ExecutionId, check_text, shown
from flowfabric.model import Fence

T = TypeVar("T")


def about(execution_id: ExecutionId) -> dict[str, object]:
    """The arguments that name an execution."""
    return {"partition": execution_id.partition, "id": execution_id.uuid}


def under(fence: Fence) -> dict[str, object]:
    """The arguments of a single call under a lease."""
    return {**about(fence.execution_id), "lease_id": fence.lease_id, "epoch": fence.epoch, "attempt": fence.attempt}


def json_text(value: object, what: str) -> str:
    """A value as JSON text that Postgres can store."""
    text = msgspec.json.encode(value).decode()
    if "\\u0000" in text:
        raise InvalidText(f"{what} holds U+0000; remove it")
    return text


def words(given: object, what: str) -> str:
    """A set of words as JSON text; SQL says what is wrong with it, save what Postgres cannot even store."""
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        return '"not a list"'
    return msgspec.json.encode([check_text(word, what) if isinstance(word, str) else None for word in given]).decode()


def span(given: timedelta | None, what: str) -> int | None:
    """Whole milliseconds. Raises `InvalidTime` for anything but a span."""
    if given is None or isinstance(given, timedelta):
        return None if given is None else given // timedelta(milliseconds=1)
    raise InvalidTime(f"{what} {shown(str(given))} is no span of time; give a timedelta")


def span_or_moment(given: timedelta | datetime | None, what: str) -> tuple[int | None, datetime | None]:
    """Whole milliseconds for a span, a moment as it is: Postgres has its own clock. Raises `InvalidTime`."""
    match given:
        case None:
            return None, None
        case datetime() if given.utcoffset() is None:
            raise InvalidTime(f"{what} {given} has no time zone; give one, such as datetime.now(UTC)")
        case datetime():
            try:
                return None, given.astimezone(UTC)
            except OverflowError:
                raise InvalidTime(f"{what} {given} is no moment in UTC; give one at most ten years ahead") from None
        case timedelta():
            return span(given, what), None
        case _:
            raise InvalidTime(f"{what} {shown(str(given))} is no time; give a timedelta or a datetime")


def expect(kind: type[T], value: T, field: str) -> T:
    """The value itself, if it is what it is said to be: the driver would refuse the whole batch for another."""
    if value is None or isinstance(value, kind):
        return value
    raise InvalidBody(f"{field} {shown(str(value))} is no {kind.__name__}; give one", field=field)
