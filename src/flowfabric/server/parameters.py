"""The parameters of a route: how each is written in a request, and how that is read as the operation takes it."""

import enum
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from flowfabric import durations
from flowfabric.app.tasks import Task
from flowfabric.errors import InvalidBody
from flowfabric.ids import ExecutionId, FlowId, parse_execution_id, parse_flow_id, shown
from flowfabric.model import Submission

IN_QUERY = {"states": "state", "kinds": "kind", "partitions": "partition"}
"""A list in a query is its items, each under the singular: `state=failed&state=expired`."""

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Moment = Annotated[datetime, Meta(tz=True)]
Duration = Annotated[str, Meta(description="A duration, such as 30s, 10m or 1h30m.", examples=["10m"])]
When = Annotated[
    str,
    Meta(description="A duration, such as 10m, or a timestamp, such as 2026-05-04T09:00:00Z.", examples=["10m"]),
]
Id = Annotated[str, Meta(examples=["019df237-3e80-8a31-800c-3f9b71e5d004"])]
Tag = Annotated[str, Meta(description="A tag as name:value.", examples=["customer:acme"])]


class Parameter(NamedTuple):
    """A parameter of an operation, as a request has it."""

    name: str
    wire_name: str
    kind: Any
    is_required: bool
    read: Callable[[Any], Any] | None = None
    inside: tuple[str, type] | None = None
    """The parameter of which it is a field, and its type."""

    @property
    def field(self) -> tuple[str, Any] | tuple[str, Any, Any]:
        """The field of a Struct."""
        return (self.name, self.kind) if self.is_required else (self.name, self.kind | UnsetType, UNSET)


def read_parameters(
    given: Sequence[inspect.Parameter], hints: Mapping[str, Any], *, in_query: bool
) -> Sequence[Parameter]:
    """The parameters of a function; in a query, the fields of a Struct are parameters of their own."""
    found: list[Parameter] = []
    for each in given:
        kind = hints[each.name]
        if in_query and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = typing.get_type_hints(kind).items()
            found += [_parameter(*field, False, in_query)._replace(inside=(each.name, kind)) for field in fields]
        else:
            found.append(_parameter(each.name, kind, each.default is each.empty, in_query))
    return found


def _parameter(name: str, kind: Any, is_required: bool, in_query: bool) -> Parameter:
    wire, read = _wire(name, kind)
    if type(None) in _members(kind) and not in_query:
        wire = wire | None
    return Parameter(name, IN_QUERY.get(name, name) if in_query else name, wire, is_required, read)


def _wire(name: str, kind: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """The type of a parameter in a request, and what reads it."""
    members = [each for each in _members(kind) if each is not type(None)]
    if timedelta in members:
        return (When, _reader(name, read_when)) if datetime in members else (Duration, _reader(name, _duration))
    if ExecutionId in members:
        return Id, parse_execution_id
    if FlowId in members:
        return Id, parse_flow_id
    for each in members:
        if isinstance(each, type) and issubclass(each, enum.Enum):
            return Annotated[str, Meta(extra_json_schema={"enum": [value.value for value in each]})], None
    if str in members or Task in members or Submission in members:
        return str, None
    [member] = members
    origin = typing.get_origin(member)
    if origin is tuple:
        return Tag, _reader(name, _tag)
    if origin is Collection or origin is Sequence:
        return list[_wire(name, typing.get_args(member)[0])[0]], None  # type: ignore[misc]
    return {object: Any, int: Integer, datetime: Moment}.get(member, member), None


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _reader(name: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(given: str) -> Any:
        try:
            return read(given)
        except ValueError as error:
            raise InvalidBody(f"{name}: {error}", field=name) from None

    return checked


def read_when(given: str) -> timedelta | datetime:
    """Read a duration or a timestamp. Raises `ValueError`."""
    if given[:1].isdigit() and "T" in given:
        try:
            return msgspec.convert(given, Moment)
        except msgspec.ValidationError:
            raise ValueError(f"time {shown(given)} is invalid; use one such as 2026-05-04T09:00:00Z") from None
    return durations.read_duration(given)


def _duration(given: str) -> timedelta:
    return durations.read_duration(given)


def _tag(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not (name and colon):
        raise ValueError(f"tag {shown(given)} is invalid; use name:value, such as customer:acme")
    return name, value
