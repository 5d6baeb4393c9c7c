"""The HTTP API inside another ASGI app."""

import httpx
from fastapi import FastAPI
from starlette.types import Message

from flowfabric import App
from flowfabric.server import guard
from flowfabric.server.api import Api


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


def test_the_path_below_a_mount_stays_as_it_was_sent() -> None:
    assert guard.own_path({"path": "/v1/a/b", "raw_path": b"/v1/a%2Fb"}) == "/v1/a%2Fb"
    assert guard.own_path({"path": "/m/v1/a/b", "raw_path": b"/m/v1/a%2Fb?x=/", "root_path": "/m"}) == "/v1/a%2Fb"
    assert guard.own_path({"path": "/v1/a b", "raw_path": b"/m/v1/a%20b"}) == "/v1/a%20b"
    assert guard.own_path({"path": "/v1/a b"}) == "/v1/a%20b"
    assert guard.own_path({"path": "/m", "raw_path": b"/m", "root_path": "/m"}) == "/"
