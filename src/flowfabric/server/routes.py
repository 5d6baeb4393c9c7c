"""The routes of the HTTP API, made from the table of operations and the signatures of the methods of an app.

Importing this module needs no web framework: the reference page and the OpenAPI document come from it too.
"""

import enum
import functools
import inspect
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from flowfabric.app import App, namespaces
from flowfabric.calls.operations import FOLLOWED, NAMESPACES, OF_THE_APP, Operation
from flowfabric.errors import NotFound
from flowfabric.ids import shown
from flowfabric.server import following, results, submissions
from flowfabric.server.parameters import Parameter, read_parameters

ACTOR = "by"
"""The parameter that no request has: the server fills it with the caller, so that every change names who made it."""

INSTEAD: Mapping[str, Callable[..., Any]] = {
    "executions.get_result": results.get_result,
    "executions.submit": submissions.submit,
    "app.log.subscribe": following.follow_log,
    "app.executions.events": following.follow_events,
    "app.executions.frames": following.follow_frames,
}
"""Operations that do more over HTTP than the method of the app."""


class Route(NamedTuple):
    """One operation over HTTP."""

    operation: Operation
    path: str
    name: str
    """As a method of the app: `lanes.pause`."""
    said: str
    parameters: Sequence[Parameter]
    request: type[msgspec.Struct]
    """The query of a `GET`, the body of a `POST`, without the parameters that are in the path."""
    answer: Any
    call: Callable[..., Awaitable[Any]]
    """Takes the app and the parameters."""
    names_actor: bool
    takes_body: bool = False
    """Whether the call takes the whole request, as `given`, instead of its fields."""

    @property
    def in_path(self) -> Sequence[Parameter]:
        """The parameters that are in the path."""
        return [each for each in self.parameters if f"{{{each.name}}}" in self.path]

    @property
    def answers(self) -> Sequence[Any]:
        """The types of its answers, without `None`."""
        is_union = typing.get_origin(self.answer) in (typing.Union, types.UnionType)
        kinds = typing.get_args(self.answer) if is_union else (self.answer,)
        return [each for each in kinds if each is not type(None)]

    @property
    def is_followed(self) -> bool:
        """Whether the answer is items as they come."""
        return typing.get_origin(self.answer) is AsyncIterator

    @property
    def wrapper(self) -> str:
        """The field of the answer that has what the operation returns, unless that has fields of its own."""
        [kind] = self.answers
        if typing.get_origin(kind) is list:
            return "items"
        is_word = typing.get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum))
        return "outcome" if is_word else "value"

    @property
    def is_read(self) -> bool:
        """Whether it only reads."""
        return self.operation.method == "GET"

    def arguments(self, path: Mapping[str, str], request: msgspec.Struct) -> dict[str, Any]:
        """The arguments of the call. Raises what their readers raise, such as `InvalidId` and `InvalidBody`."""
        if not self.parameters:
            return {"given": request} if self.takes_body else {}
        found: dict[str, Any] = {}
        inside: dict[str, tuple[type, dict[str, Any]]] = {}
        for each in self.parameters:
            given = path[each.name] if each.name in path else getattr(request, each.name)
            if given is msgspec.UNSET:
                continue
            value = given if each.read is None or given is None else each.read(given)
            if each.inside is None:
                found[each.name] = value
            else:
                inside.setdefault(each.inside[0], (each.inside[1], {}))[1][each.name] = value
        return found | {name: kind(**fields) for name, (kind, fields) in inside.items()}

    async def run(self, app: App, arguments: Mapping[str, Any]) -> Any:
        """Run the operation. Raises `NotFound` if it answers that there is no such thing."""
        answer = await self.call(app, **arguments)
        if answer is None and self.is_read and all(map(_is_struct, self.answers)):
            [thing] = self.in_path
            raise NotFound(f"{thing.name} {shown(str(arguments[thing.name]))} does not exist")
        return answer


@functools.cache
def routes() -> Sequence[Route]:
    """Every route, in the order of the table."""
    found = []
    for namespace in NAMESPACES:
        kind = getattr(namespaces, namespace.name)
        for operation in namespace.operations:
            method = namespace.method(operation)
            own = getattr(kind, method)
            call = functools.partial(_call_method, namespace.attribute, method)
            found.append(_route(operation, f"{namespace.attribute}.{method}", own, call))
    for method, operation in OF_THE_APP.items():
        found.append(_route(operation, method, getattr(App, method), functools.partial(_call_method, None, method)))
    found += [_route(operation, name, None, following.follow_log) for name, operation in FOLLOWED.items()]
    return [route for route in found if route is not None]


async def _call_method(attribute: str | None, method: str, app: App, **arguments: Any) -> Any:
    return await getattr(app if attribute is None else getattr(app, attribute), method)(**arguments)


def _route(operation: Operation, name: str, function: Any, call: Callable[..., Awaitable[Any]]) -> Route | None:
    if operation.path is None:
        return None
    instead = INSTEAD.get(operation.function)
    function, call = (function, call) if instead is None else (instead, instead)
    hints = typing.get_type_hints(function)
    own = [each for each in inspect.signature(function).parameters.values() if each.name not in ("self", "app")]
    taken = [each for each in own if each.name not in (ACTOR, "given")]
    parameters = read_parameters(taken, hints, in_query=operation.method == "GET")
    in_body = [each for each in parameters if f"{{{each.name}}}" not in operation.path]
    return Route(
        operation=operation,
        path=operation.path,
        name=name,
        said=inspect.getdoc(function) or "",
        parameters=parameters,
        request=hints["given"] if "given" in hints else _struct(name, in_body),
        answer=hints["return"],
        call=call,
        names_actor=any(each.name == ACTOR for each in own),
        takes_body="given" in hints,
    )


def _struct(name: str, parameters: Sequence[Parameter]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "".join(part.capitalize() for part in name.replace(".", "_").split("_")) + "Request",
        [each.field for each in parameters],
        kw_only=True,
        forbid_unknown_fields=True,
        rename={each.name: each.wire_name for each in parameters},
    )


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
