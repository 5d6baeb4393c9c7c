"""What `ff serve` and `ff dev` share: listening for the HTTP API."""

import importlib.util
from typing import TYPE_CHECKING

from flowfabric.app import App
from flowfabric.cli.errors import CommandError
from flowfabric.ids import shown

if TYPE_CHECKING:
    from flowfabric.server.serving import HttpServer

PORT = 7717
INSTALL = "pip install 'flowfabric[server]'"


class CannotServe(CommandError):
    """The HTTP API cannot be served here."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_serve", message)


def is_installed() -> bool:
    """Whether the extra `server` is installed."""
    return all(importlib.util.find_spec(name) for name in ("litestar", "uvicorn"))


def serving(app: App, host: str, port: int, hosts: tuple[str, ...]) -> "HttpServer":
    """A server that listens already; if it cannot, the command ends with the reason."""
    if not is_installed():
        raise CannotServe(f"the HTTP API needs the extra server; install it: {INSTALL}")
    from flowfabric.server.serving import HttpServer, is_loopback, listen

    if not is_loopback(host):
        raise CannotServe(
            f"host {shown(host)} is not on loopback, and this release has no API keys, so anyone who reaches it could "
            "do anything; use 127.0.0.1 behind a proxy that checks its callers, or mount app.asgi() in your own app"
        )
    try:
        listening = listen(host, port)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror}; use another --port") from None
    return HttpServer(app, listening, hosts=hosts)


def serving_anywhere(app: App, port: int) -> "HttpServer":
    """A server on this port of the loopback address, or on a free one if it is taken."""
    from flowfabric.server.serving import HttpServer, listen

    try:
        listening = listen("127.0.0.1", port)
    except OSError:
        listening = listen("127.0.0.1", 0)
    return HttpServer(app, listening)
