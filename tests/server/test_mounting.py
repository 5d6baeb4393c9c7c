"""The HTTP API inside another ASGI app."""

import base64
import gzip
import sys

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from flowfabric import App
from flowfabric.errors import BadSetting
from flowfabric.server import guard
from flowfabric.server.api import Api


class Gzip:
    """A codec."""

    name = "gzip"

    def encode(self, payload: bytes, owner: str) -> bytes:
        return gzip.compress(payload)

    def decode(self, stored: bytes, owner: str) -> bytes:
        return gzip.decompress(stored)


async def test_a_mounted_api_opens_the_app_with_the_first_request(app: App) -> None:
    outer = FastAPI()
    outer.mount("/durable/jobs", app.asgi())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://shop.example") as client:
        assert (await client.get("/durable/jobs/healthz")).json() == {"status": "ok"}
        opened = [app.is_open]
        created = await client.post("/durable/jobs/v1/executions", json={"task": "report", "lane": "eu/mail"})
        lane = await client.get("/durable/jobs/v1/lanes/eu%2Fmail")
        missing = await client.get("/durable/jobs/v1/nothing")

    assert (created.json()["outcome"], lane.json()["name"]) == ("created", "eu/mail")
    assert (missing.status_code, missing.json()["error"]) == (404, "route_not_found")
    assert [*opened, app.is_open] == [False, True]
    await app.__aexit__(None, None, None)


async def test_a_mounted_api_uses_the_app_that_is_open(app: App) -> None:
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi()), base_url="http://x") as client:
        database = app.database
        assert (await client.get("/readyz")).is_success
        assert app.database is database


async def test_an_app_that_the_api_has_opened_is_closed_at_the_end_of_its_lifespan(app: App) -> None:
    received: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent, was_open = [], []

    async def receive() -> Message:
        was_open.append(app.is_open)
        return received.pop(0)

    async def send(message: Message) -> None:
        sent.append(message["type"])

    await Api(app)({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (was_open, app.is_open) == ([False, True], False)


async def test_a_database_that_is_away_is_a_refusal_and_not_a_crash() -> None:
    away = App(url="postgresql://nobody@127.0.0.1:1/none", timeout="100ms")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(away.asgi()), base_url="http://x") as client:
        healthy, ready, lanes = [await client.get(path) for path in ("/healthz", "/readyz", "/v1/lanes")]

    assert healthy.is_success
    for refused in (ready, lanes):
        assert (refused.status_code, refused.json()["error"]) == (503, "database_unavailable")
        assert (refused.json()["retry_after_ms"], refused.headers["retry-after"]) == (1_000, "1")


def test_without_its_extra_the_error_says_what_to_install(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flowfabric.server.api")
    monkeypatch.setitem(sys.modules, "litestar", None)

    with pytest.raises(BadSetting, match=r"pip install 'flowfabric\[server\]'"):
        app.asgi()


async def test_a_result_is_decoded_by_the_codec_of_the_app_and_otherwise_shown_as_it_is_stored(
    database_url: str,
) -> None:
    sealed, plain = App(url=database_url, codec=Gzip()), App(url=database_url)
    async with sealed, plain:
        execution = await sealed.submit("report")
        await execution.override("success", {"pages": 3}, by="ops", reason="known")
        found = []
        for each in (sealed, plain):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(each.asgi()), base_url="http://x") as client:
                found.append((await client.get(f"/v1/executions/{execution.execution_id}/result")).json())

    assert (found[0]["result"], found[0]["encoding"]) == ({"pages": 3}, "json")
    assert (gzip.decompress(base64.b64decode(found[1]["result"])), found[1]["encoding"]) == (b'{"pages":3}', "gzip")


def test_the_path_below_a_mount_stays_as_it_was_sent() -> None:
    assert guard.own_path({"path": "/v1/a/b", "raw_path": b"/v1/a%2Fb"}) == "/v1/a%2Fb"
    assert guard.own_path({"path": "/m/v1/a/b", "raw_path": b"/m/v1/a%2Fb?x=/", "root_path": "/m"}) == "/v1/a%2Fb"
    assert guard.own_path({"path": "/v1/a b", "raw_path": b"/m/v1/a%20b"}) == "/v1/a%20b"
    assert guard.own_path({"path": "/v1/a b"}) == "/v1/a%20b"
    assert guard.own_path({"path": "/m", "raw_path": b"/m", "root_path": "/m"}) == "/"
