"""Server-sent events, over a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from flowfabric import App, Context
from flowfabric.server import following
from flowfabric.server.serving import HttpServer, listen
from tests.given import until
from tests.worker.scene import TIMEOUT, at_work


class Sent(NamedTuple):
    """One server-sent event."""

    id: str | None
    name: str
    data: Any


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API on a socket; the app is open."""
    async with app:
        server = HttpServer(app, listen("127.0.0.1", 0))
        running = asyncio.create_task(server.run())
        async with httpx.AsyncClient(base_url=server.address, timeout=TIMEOUT) as client:
            yield client
            server.stop()
            await running


@asynccontextmanager
async def followed(http: httpx.AsyncClient, path: str, last: str | None = None) -> AsyncIterator[AsyncIterator[Sent]]:
    """The server-sent events of a path, without heartbeats."""
    headers = {} if last is None else {"last-event-id": last}
    async with asyncio.timeout(TIMEOUT), http.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _read(answer)


async def _read(answer: httpx.Response) -> AsyncIterator[Sent]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield Sent(
                fields.get("id"), fields.get("event", "message"), httpx.Response(200, text=fields["data"]).json()
            )
            fields = {}


def talking(app: App) -> Any:
    @app.task
    async def report(ctx: Context) -> str:
        for word in ("high", "at", "noon"):
            await ctx.append_frame("token", {"text": word})
        return "done"

    return report


async def test_an_execution_is_followed_until_it_has_ended(app: App, http: httpx.AsyncClient) -> None:
    execution = await talking(app).submit()
    path = f"/v1/executions/{execution.execution_id}"
    async with at_work(app), followed(http, f"{path}/events/follow") as events:
        seen = [each async for each in events]
    async with followed(http, f"{path}/frames/follow?attempts=all") as frames:
        words = [each async for each in frames]

    assert [each.data["kind"] for each in seen[:-1]][0::2][:1] == ["execution_submitted"]
    assert seen[-2].data["kind"] == "execution_completed"
    assert [each.data["payload"]["text"] for each in words[:-1]] == ["high", "at", "noon"]
    assert seen[-1] == words[-1] == Sent("end", "end", {})


async def test_a_client_that_connects_again_continues_after_what_it_has_seen(app: App, http: httpx.AsyncClient) -> None:
    execution = await talking(app).submit()
    async with at_work(app):
        await execution.result(TIMEOUT)
    for kind, count in (("frames", 4), ("events", 0)):
        path = f"/v1/executions/{execution.execution_id}/{kind}/follow"
        async with followed(http, path) as items:
            whole = [each async for each in items]
        for number, each in enumerate(whole[:-1]):
            async with followed(http, path, each.id) as items:
                assert [each async for each in items] == whole[number + 1 :]
        assert (await http.get(path, headers={"last-event-id": "end"})).status_code == 204
        assert len(whole) == count or kind == "events"


async def test_the_log_is_followed_with_a_filter_from_now_on(app: App, http: httpx.AsyncClient) -> None:
    await app.submit("report", {"lane": "mail"})
    async with followed(http, "/v1/events/follow?lane=reports&kind=execution_submitted") as events:
        following_one = asyncio.ensure_future(anext(aiter(events)))
        await until(lambda: app.log.waiting_count == 1)
        for lane in ("mail", "reports"):
            await app.submit("report", {"lane": lane})
        first = await following_one

    assert (first.name, first.data["lane"], first.id) == ("message", "reports", first.data["cursor"])


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/v1/executions/019df237-3e80-8a31-800c-3f9b71e5d004/frames/follow", (404, "execution_not_found")),
        ("/v1/executions/019df237-3e80-8a31-800c-3f9b71e5d004/events/follow", (404, "execution_not_found")),
        ("/v1/executions/nonsense/events/follow", (422, "invalid_id")),
        ("/v1/executions/019df237-3e80-8a31-800c-3f9b71e5d004/frames/follow?cursor=nonsense", (422, "invalid_cursor")),
        ("/v1/events/follow?cursor=nonsense", (422, "invalid_cursor")),
        ("/v1/events/follow?kind=nonsense", (422, "invalid_body")),
        ("/v1/events/follow?nonsense=1", (422, "invalid_body")),
    ],
)
async def test_what_cannot_be_followed_is_refused(http: httpx.AsyncClient, path: str, refused: tuple[int, str]) -> None:
    answer = await http.get(path)

    assert (answer.status_code, answer.json()["error"]) == refused


async def test_a_client_that_leaves_and_a_server_that_stops_leave_no_reader_behind(
    app: App, http: httpx.AsyncClient
) -> None:
    execution = await talking(app).submit()
    async with followed(http, f"/v1/executions/{execution.execution_id}/frames/follow"):
        await until(lambda: app.tails.waiting_count == 1)
    await until(lambda: app.tails.waiting_count == 0)


async def test_a_heartbeat_keeps_a_quiet_connection_open(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(following), "HEARTBEAT", 0.01)
    async with asyncio.timeout(TIMEOUT), http.stream("GET", "/v1/events/follow") as answer:
        lines = aiter(answer.aiter_lines())
        beats = [await anext(lines) for _ in range(6)]

    assert beats == ["retry: 1000", "", ": ", "", ": ", ""]
