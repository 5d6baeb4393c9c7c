"""The reference page of the HTTP API: every route, and the operation of an app that it calls."""

from collections.abc import Iterator, Sequence

from flowfabric.server.openapi import PROBES
from flowfabric.server.routes import Route, routes

PAGE = """# Routes of the HTTP API

Find the request that does what a method of an app does. [Use the HTTP API](../how-to/use-the-http-api.md) describes
what all requests have in common, and `GET /v1/openapi.json` has their types.

A parameter in braces is part of the path. The others are in the query of a `GET`, or in a JSON object that a `POST`
sends. Those in bold are required.

"""


def page() -> str:
    """The page."""
    parts = [PAGE.rstrip()]
    groups: dict[str, list[Route]] = {}
    for route in routes():
        groups.setdefault(route.name.partition(".")[0] if "." in route.name else "", []).append(route)
    for namespace, found in groups.items():
        title = f"## {namespace}" if namespace else "## The app"
        parts.append("\n".join([title, "", "| Request | Parameters | Operation |", "|---|---|---|", *_rows(found)]))
    probes = [f"| `GET {path}` | {said} |" for path, (_, said, _) in PROBES.items()]
    parts.append("\n".join(["## The server", "", "| Request | Answer |", "|---|---|", *probes]))
    return "\n\n".join(parts) + "\n"


def _rows(found: Sequence[Route]) -> Iterator[str]:
    for route in found:
        own = [each for each in route.parameters if each not in route.in_path]
        names = [f"**`{each.wire_name}`**" if each.is_required else f"`{each.wire_name}`" for each in own]
        if route.takes_body:
            names = ["a submission, or many"]
        said = f"[{route.name}](operations.md#app{route.name.partition('.')[0]})" if "." in route.name else route.name
        said = "server-sent events" if route.is_followed else said
        yield f"| `{route.operation.method} {route.path}` | {', '.join(names)} | {said} |"
