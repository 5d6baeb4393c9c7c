"""Serving the HTTP API from a socket, with uvicorn, until it is stopped."""

import ipaddress
import logging
import socket
from collections.abc import Collection
from typing import Any

import uvicorn

from flowfabric.app import App
from flowfabric.server.api import DEFAULT, Api
from flowfabric.server.guard import LOOPBACK
from flowfabric.server.pace import Pace

DRAIN = 10  # seconds that requests may take to end after `stop`
KEEP_ALIVE = 75  # seconds that an idle connection stays open
BACKLOG = 2_048


class HttpServer:
    """Serves the HTTP API of an app on a port of this machine."""

    def __init__(
        self, app: App, listening: socket.socket, *, hosts: Collection[str] = (), pace: Pace = DEFAULT
    ) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self.address = _address(listening)
        self._socket = listening
        own = listening.getsockname()[0]
        self._api: Any = Api(app, hosts=list(dict.fromkeys([*LOOPBACK, own, *hosts])), pace=pace)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._api,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=DRAIN,
            )
        )

        self._api.drop = self._drop

    @property
    def connections(self) -> Collection[Any]:
        """The connections that are open."""
        return [*self._server.server_state.connections]

    def _drop(self, client: Any) -> None:
        """Close the connection of a client, with what it has not taken."""
        for connection in self.connections:
            if connection.client == client and connection.transport is not None:
                connection.transport.abort()

    async def run(self) -> None:
        """Serve until `stop`. Requests that wait for something are answered at once then; others may finish."""
        # Not `serve`, which handles signals itself: the process decides when this server stops.
        try:
            await self._server._serve([self._socket])
        finally:
            self._socket.close()  # uvicorn leaves it open if it is stopped before it has started

    def stop(self) -> None:
        """Stop listening, and end when the requests have been answered."""
        self._api.stop()
        self._server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port; 0 is any free one. An address that cannot be used is an `OSError`."""
    listening = socket.create_server((host, port), family=_family(host), backlog=BACKLOG)
    listening.setblocking(False)
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
