"""Two faces of one app, so that a test is written once: `await face.do("lanes.pause", name="mail", reason="...")`.

Both return what the HTTP API answers, and raise the errors of the engine. Changes are made by `http`.
"""

import typing
from typing import Any, Protocol
from urllib.parse import quote

import httpx
import msgspec

from flowfabric import App, errors
from flowfabric.server import answers
from flowfabric.server.parameters import Parameter
from flowfabric.server.routes import Route, routes

ROUTES = {route.name: route for route in routes()}
ACTOR = "http"


class Face(Protocol):
    """A way to use an app."""

    async def do(self, name: str, /, **arguments: Any) -> Any:
        """Call an operation, by the name that it has in an app."""
        ...


class EngineFace:
    """Calls the methods of the app."""

    def __init__(self, app: App, client: httpx.AsyncClient) -> None:
        self._app = app

    async def do(self, name: str, /, **arguments: Any) -> Any:
        if name == "submit":
            task, payload = arguments.pop("task"), arguments.pop("payload", {})
            execution = await self._app.submit(task, typing.cast("Any", arguments), **payload)
            return {"execution_id": str(execution.execution_id)}
        namespace, _, method = name.partition(".")
        actor = {"by": ACTOR} if ROUTES[name].names_actor else {}
        given = _gathered(ROUTES[name], arguments)
        answer = await getattr(getattr(self._app, namespace), method)(**given, **actor)
        return msgspec.json.decode(answers.encode(answer, ROUTES[name].wrapper))


class HttpFace:
    """Sends requests."""

    def __init__(self, app: App, client: httpx.AsyncClient) -> None:
        self._client = client

    async def do(self, name: str, /, **arguments: Any) -> Any:
        route = ROUTES[name]
        path = route.path.format(**{each.name: quote(str(arguments.pop(each.name)), safe="") for each in route.in_path})
        if route.is_read:
            answer = await self._client.get(path, params=_query(route, arguments))
        else:
            answer = await self._client.post(path, json=msgspec.to_builtins(arguments, enc_hook=str))
        document = answer.json()
        if answer.status_code == 200:
            return document
        refused = errors.from_code(document["error"], document["message"], document["detail"])
        assert refused.status == answer.status_code
        raise refused


def _gathered(route: Route, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the fields of a filter as one."""
    found, fields = dict[str, Any](), dict[str, Any]()
    for each in route.parameters:
        if each.name in arguments and each.inside is None:
            found[each.name] = arguments[each.name]
        elif each.name in arguments and each.read is not None:
            fields[each.name] = each.read(arguments[each.name])
    filters = {each.inside[0]: each.inside[1](**fields) for each in route.parameters if each.inside and fields}
    return found | filters


def _query(route: Route, arguments: dict[str, Any]) -> dict[str, Any]:
    wire: dict[str, Parameter] = {each.name: each for each in route.parameters}
    return {wire[name].wire_name: _written(value) for name, value in arguments.items() if value is not None}


def _written(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return ":".join(value) if isinstance(value, tuple) else value
