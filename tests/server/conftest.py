"""Fixtures for the tests of the HTTP API: a client without a socket, and a face through which an app is used."""

from collections.abc import AsyncIterator

import httpx
import pytest

from flowfabric import App
from flowfabric.server.api import Api
from tests.server.faces import EngineFace, Face, HttpFace

HOSTS = ("localhost", "127.0.0.1", "::1")


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API of the app, which is open."""
    async with (
        app,
        httpx.AsyncClient(transport=httpx.ASGITransport(Api(app, hosts=HOSTS)), base_url="http://localhost") as client,
    ):
        yield client


@pytest.fixture(params=[EngineFace, HttpFace], ids=["engine", "http"])
def face(request: pytest.FixtureRequest, app: App, client: httpx.AsyncClient) -> Face:
    """The app itself, or the same app over HTTP."""
    made: Face = request.param(app, client)
    return made
