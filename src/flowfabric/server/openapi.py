"""The OpenAPI document, made from the routes: what each takes and answers, from the types of its parameters."""

import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from flowfabric.model import Page, Submitted
from flowfabric.payloads.kinds import id_schema
from flowfabric.server.parameters import Parameter
from flowfabric.server.refusals import Refusal
from flowfabric.server.routes import Route, routes

REF = "#/components/schemas/{name}"
JSON = "application/json"

REFUSED = {
    "description": "Refused: nothing was changed.",
    "content": {JSON: {"schema": {"$ref": REF.format(name="Refusal")}}},
}

PROBES = {
    "/healthz": ("healthz", "Whether this process runs.", ["2XX"]),
    "/readyz": ("readyz", "Whether this server reaches its database.", ["2XX", "5XX"]),
    "/v1/openapi.json": ("openapi", "This document.", ["2XX"]),
}


@functools.cache
def text() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {path: {"get": _probe(*probe)} for path, probe in PROBES.items()}
    for route in routes():
        paths.setdefault(route.path, {})[route.operation.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowFabric", "version": "1"},
        "paths": paths,
        "components": {"schemas": _components()},
    }


def _operation(route: Route) -> dict[str, Any]:
    first, _, rest = route.said.partition("\n\n")
    found: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.name.partition(".")[0]],
        "summary": _line(first),
        "description": _line(rest),
        "parameters": [*_parameters(route)],
        "responses": {
            "200": {"description": "The answer.", "content": {JSON: {"schema": _answer(route)}}},
            "4XX": REFUSED,
            "5XX": REFUSED,
        },
    }
    if route.is_followed:
        _follow(found)
    if not route.is_read:
        schema = _schema(route.request)
        required = bool(_required(route.request))
        found["requestBody"] = {"required": required, "content": {JSON: {"schema": schema}}}
    if route.takes_body:
        _take_many(found)
    return found


def _follow(found: dict[str, Any]) -> None:
    """The answer is server-sent events, and a client continues with the id of the last one."""
    found["responses"]["200"] = {
        "description": "Server-sent events: the id is the cursor, the data an object. The last one is named `end`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    found["responses"]["204"] = {"description": "Nothing follows: the client has seen the end."}
    found["parameters"].append(
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "Continue after this one; counts more than `cursor`.",
            "schema": {"type": "string"},
        }
    )


def _take_many(found: dict[str, Any]) -> None:
    """A submission may be one or many, and its key may be in a header."""
    one = found["requestBody"]["content"][JSON]["schema"]
    found["requestBody"]["content"] = {
        JSON: {"schema": {"anyOf": [one, {"type": "array", "items": one}]}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "One submission on each line."}},
    }
    found["parameters"].append(
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "The key of one submission, as its field `key`.",
            "schema": {"type": "string"},
        }
    )
    each = {"anyOf": [_schema(Submitted), _schema(Refusal)]}
    many = {"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": each}}}
    answer = found["responses"]["200"]["content"][JSON]
    answer["schema"] = {"anyOf": [answer["schema"], many]}


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    for each in route.in_path:
        yield {"name": each.name, "in": "path", "required": True, "schema": _schema(each.kind)}
    if route.is_read:
        for each in route.parameters:
            if each not in route.in_path:
                yield _in_query(each)


def _in_query(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.wire_name,
        "in": "query",
        "required": parameter.is_required,
        "schema": _schema(parameter.kind),
    }


def _answer(route: Route) -> dict[str, Any]:
    [kind] = route.answers
    if route.is_followed:
        return {}
    if typing.get_origin(kind) is Page:
        [item] = typing.get_args(kind)
        return _object({"items": {"type": "array", "items": _schema(item)}, "next": {"type": ["string", "null"]}})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _schema(kind)
    return _object({route.wrapper: _schema(route.answer)})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [*properties], "properties": dict(properties)}


def _probe(name: str, said: str, statuses: Sequence[str]) -> dict[str, Any]:
    good = {"description": "Yes.", "content": {JSON: {"schema": {"type": "object"}}}}
    answers = {"2XX": good, "5XX": REFUSED}
    return {"operationId": name, "summary": said, "responses": {each: answers[each] for each in statuses}}


def _required(kind: Any) -> Sequence[str]:
    return [each.name for each in msgspec.structs.fields(kind) if each.required]


def _components() -> dict[str, Any]:
    kinds: list[Any] = [Refusal, Submitted]
    for route in routes():
        kinds += [] if route.is_read else [route.request]
        if route.is_followed:
            kinds += typing.get_args(typing.get_args(route.answer)[0]) or typing.get_args(route.answer)
        else:
            kinds += [typing.get_args(each)[0] if typing.get_origin(each) is Page else each for each in route.answers]
    found = msgspec.json.schema_components(kinds, schema_hook=_custom, ref_template=REF)[1]
    return {name: _as_written(schema) for name, schema in sorted(found.items())}


def _schema(kind: Any) -> dict[str, Any]:
    [schema], _ = msgspec.json.schema_components([kind], schema_hook=_custom, ref_template=REF)
    written: dict[str, Any] = _as_written(schema)
    return written


def _custom(kind: type) -> dict[str, Any]:
    return {"description": "Any JSON."} if kind is object else id_schema(kind)


def _as_written(schema: Any) -> Any:
    """What msgspec says of a type, as this API writes its values."""
    if isinstance(schema, list):
        return [_as_written(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("contentEncoding") == "base64":
        return {"description": "JSON; base64 if it is encoded otherwise."}
    if schema.get("format") == "duration":
        return {"type": "string", "description": "A duration, such as 1h30m."}
    return {"next" if name == "next_cursor" else name: _as_written(each) for name, each in schema.items()}


def _line(said: str) -> str:
    return said.replace("\n\n", "\x00").replace("\n", " ").replace("\x00", "\n\n").strip()
