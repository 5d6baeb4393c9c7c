"""Server-sent events, over a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from flowfabric import App, Context
from flowfabric.model import Options, Submission
from flowfabric.server.pace import Pace
from flowfabric.server.serving import HttpServer, listen
from tests.given import until
from tests.worker.scene import TIMEOUT, at_work


class Sent(NamedTuple):
    """One server-sent event."""

    id: str | None
    name: str
    data: Any


def started(app: App, **options: Any) -> tuple[HttpServer, asyncio.Task[None]]:
    """A server of an open app, on a socket that buffers little."""
    listening = listen("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    server = HttpServer(app, listening, **options)
    return server, asyncio.create_task(server.run())


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API of an open app, over a socket."""
    server, running = started(app, **options)
    async with httpx.AsyncClient(base_url=server.address, timeout=TIMEOUT) as client:
        yield client
    server.stop()
    await running


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API; the app is open."""
    async with app, serving(app) as client:
        yield client


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


async def test_a_client_that_leaves_leaves_no_reader_behind(app: App, http: httpx.AsyncClient) -> None:
    execution = await talking(app).submit()
    async with followed(http, f"/v1/executions/{execution.execution_id}/frames/follow"):
        await until(lambda: app.tails.waiting_count == 1)
    await until(lambda: app.tails.waiting_count == 0)


async def test_a_server_that_stops_ends_what_is_followed(app: App) -> None:
    async with app:
        execution = await talking(app).submit()
        server, running = started(app)
        path = f"/v1/executions/{execution.execution_id}/frames/follow"
        async with httpx.AsyncClient(timeout=TIMEOUT) as client, client.stream("GET", server.address + path) as answer:
            await until(lambda: app.tails.waiting_count == 1)
            server.stop()
            said = await answer.aread()
        await running

    assert said == b"retry: 1000\n\n"


async def test_a_quiet_connection_gets_heartbeats(app: App) -> None:
    path = "/v1/events/follow"
    async with app, serving(app, pace=Pace(heartbeat=0.01)) as client, client.stream("GET", path) as answer:
        lines = aiter(answer.aiter_lines())
        beats = [await anext(lines) for _ in range(6)]

    assert beats == ["retry: 1000", "", ": ", "", ": ", ""]


async def test_a_client_that_takes_nothing_is_disconnected(app: App) -> None:
    async with app:
        many = Submission(options=Options(task="report"), payload=b"1", tags={"customer": "x" * 200})
        await app.client.submit_many([many] * 2_000)
        server, running = started(app, pace=Pace(taken=0.2))
        writer = await slow(server.address, "/v1/events/follow?cursor=AgAAAAAAAAAA")
        await until(lambda: len(server.connections) == 1)
        await until(lambda: len(server.connections) == 0)
        writer.close()
        server.stop()
        await running


async def test_a_body_that_does_not_arrive_in_time_is_refused(app: App) -> None:
    head = "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
    async with app, serving(app, pace=Pace(body=0.05)) as client, asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(head.encode())
        answer = await reader.readuntil(b"}")
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_timed_out"' in answer


async def slow(address: str, path: str) -> asyncio.StreamWriter:
    """A connection that sends a request, takes nothing of the answer, and buffers little of it."""
    url = httpx.URL(address)
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, (url.host, url.port))
    _, writer = await asyncio.open_connection(sock=own, limit=1_024)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return writer
