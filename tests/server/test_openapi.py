"""The OpenAPI document: it covers every route and only those, and what is in it never goes away."""

import os
from pathlib import Path
from typing import Any

import httpx
import msgspec
from litestar.routes import HTTPRoute

from flowfabric import App
from flowfabric.calls.operations import operations
from flowfabric.server import openapi
from flowfabric.server.api import Api

SNAPSHOT = Path(__file__).parent / "v1.txt"
HEAD = "# What programs may rely on: lines are added, never changed or removed. SNAPSHOTS=write adds the new ones.\n"


def paths(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, found in document["paths"].items() for method in found}


def promises(document: dict[str, Any]) -> set[str]:
    """What a program may rely on: routes, their parameters, and the fields of bodies and answers."""
    found = {f"{method} {path}" for method, path in paths(document)}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for each in operation.get("parameters", ()):
                found.add(f"{method.upper()} {path}: {each['in']} {each['name']}")
    for name, schema in document["components"]["schemas"].items():
        found |= {f"{name}.{field}" for field in schema.get("properties", ())}
        found |= {f"{name}: {value}" for value in schema.get("enum", ())}
    return found


async def test_the_document_has_every_route_and_only_those(app: App, client: httpx.AsyncClient) -> None:
    document = (await client.get("/v1/openapi.json")).json()
    served = {
        (method, route.path_format)
        for route in Api(app)._framework.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
    }

    assert document == msgspec.json.decode(openapi.text())
    assert paths(document) == {(method, path) for method, path in served if method != "OPTIONS"}
    assert paths(document) >= {(each.method, each.path) for each in operations() if each.path is not None}


def test_everything_that_the_document_refers_to_is_in_it() -> None:
    document = openapi.document()
    text = msgspec.json.encode(document).decode()
    referred = {each.partition('"')[0] for each in text.split('"#/components/schemas/')[1:]}

    assert referred - document["components"]["schemas"].keys() == set()


def test_what_a_program_relies_on_does_not_go_away() -> None:
    promised, now = {*SNAPSHOT.read_text().removeprefix(HEAD).splitlines()}, promises(openapi.document())
    if os.environ.get("SNAPSHOTS") == "write":
        SNAPSHOT.write_text(HEAD + "".join(f"{each}\n" for each in sorted(promised | now)))
        promised = now

    assert promised - now == set(), "a program that uses these would break"
    assert now - promised == set(), "new: SNAPSHOTS=write make test ARGS=tests/server/test_openapi.py"


def test_every_request_that_changes_something_takes_an_object_and_has_no_actor() -> None:
    document = openapi.document()

    for path, methods in document["paths"].items():
        for operation in methods.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = body.get("$ref", "").rpartition("/")[2]
            assert "by" not in document["components"]["schemas"].get(name, {}).get("properties", {}), path
