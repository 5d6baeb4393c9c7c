"""`ff serve`, as a process of its own."""

import asyncio
import os
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from flowfabric.engine import attempts
from tests.cli.conftest import Run
from tests.given import Given
from tests.worker.scene import TIMEOUT, ends, until, written

SOURCE = """
from flowfabric import App

app = App()

@app.task(lane="reports")
async def report(topic: str) -> str:
    return topic
"""
REPORT = {"task": "report", "payload": {"topic": "tides"}}


@pytest.fixture
async def served(tmp_path: Path, database_url: str) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """`ff serve` on a free port, and a client of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "serve", written(tmp_path, SOURCE), "--port", "0", "--json"),
        env=os.environ | {"FLOWFABRIC_URL": database_url},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        said = msgspec.json.decode(await process.stdout.readline(), type=dict[str, Any])
    assert said["tasks"] == ["report"]
    async with httpx.AsyncClient(base_url=said["address"], timeout=TIMEOUT) as client:
        yield process, client
    if process.returncode is None:
        process.terminate()
    await process.communicate()


async def submitted(client: httpx.AsyncClient) -> str:
    """The path of an execution."""
    answer = await client.post("/v1/executions", json=REPORT)
    return f"/v1/executions/{answer.json()['execution_id']}"


async def test_a_waiting_request_answers_when_the_execution_ends(
    served: tuple[Process, httpx.AsyncClient], given: Given
) -> None:
    _, client = served
    waiting = asyncio.create_task(client.get(f"{await submitted(client)}/result?wait=10m"))
    [claim] = await given.claim(lanes=["reports"])
    await attempts.complete(given.conn, claim.fence, b'"high at noon"')
    answer = await waiting

    assert answer.json() == {"outcome": "success", "result": "high at noon", "encoding": "json", "failure": None}


async def test_sigterm_answers_waiting_requests_and_ends_the_process(
    served: tuple[Process, httpx.AsyncClient],
) -> None:
    process, client = served
    path = await submitted(client)
    sent: list[str] = []

    async def trace(event: str, _: object) -> None:
        sent.extend([event] if event == "http11.send_request_body.complete" else [])

    asked = [client.get(f"{path}/result?wait=10m", extensions={"trace": trace}) for _ in range(20)]
    waiting = [asyncio.create_task(each) for each in asked]
    await until(lambda: len(sent) == 20)
    await client.get("/readyz")  # the server has read the others by then
    process.terminate()
    answers = await asyncio.gather(*waiting)
    await ends(process)

    assert {(each.status_code, each.json()["error"]) for each in answers} == {(503, "shutting_down")}
    assert process.returncode == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
    ids=["noise", "no path", "negative length", "two lengths", "bad chunk", "long header"],
)
async def test_broken_http_is_refused_and_the_server_goes_on(
    served: tuple[Process, httpx.AsyncClient], sent: bytes
) -> None:
    _, client = served
    answer = await exchanged(client, sent)

    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert (await client.get("/readyz")).is_success


async def test_a_body_that_is_announced_as_too_large_is_refused_before_it_is_read(
    served: tuple[Process, httpx.AsyncClient],
) -> None:
    head = b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = await exchanged(served[1], head + b"content-length: 104857600\r\n\r\n{")

    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"body_too_large"' in answer


async def test_a_caller_that_goes_away_in_the_middle_of_a_body_or_a_wait_leaves_nothing_behind(
    served: tuple[Process, httpx.AsyncClient],
) -> None:
    _, client = served
    path = await submitted(client)
    head = b"POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for sent in (
        head + b'content-length: 50\r\n\r\n{"task',
        f"GET {path}/result?wait=10m HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ):
        await exchanged(client, sent if isinstance(sent, bytes) else sent.encode(), reads=False)
    found = await client.get("/v1/executions")

    assert len(found.json()["items"]) == 1
    await ended_at_once(served[0])


async def ended_at_once(process: Process) -> None:
    """The process ends without waiting for the requests of callers that have gone."""
    process.terminate()
    await ends(process)
    assert process.returncode == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com", "192.0.2.1"])
async def test_it_refuses_an_address_that_others_can_reach(ff: Run, database_url: str, host: str) -> None:
    answer = await ff("serve", "--host", host, "--json", FLOWFABRIC_URL=database_url)

    assert (answer.code, answer.error["error"]) == (1, "cannot_serve")
    assert "no API keys" in answer.error["message"]


async def test_it_refuses_a_port_that_is_taken_and_a_directory_without_a_database(ff: Run, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = await ff("serve", "--port", port, "--json", FLOWFABRIC_URL=database_url)
    nowhere = await ff("serve", "--json")

    assert (answer.code, answer.error["error"]) == (1, "cannot_serve")
    assert port in answer.error["message"]
    assert (nowhere.code, nowhere.error["error"]) == (1, "database_missing")


async def exchanged(client: httpx.AsyncClient, sent: bytes, *, reads: bool = True) -> bytes:
    """Send bytes over a socket of its own, and read the refusal, or what comes until the server closes."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(sent)
    answer = b""
    try:
        async with asyncio.timeout(TIMEOUT):
            await writer.drain()
            if reads:
                answer = await reader.readuntil(b"}")
    except asyncio.IncompleteReadError as ended:
        answer = ended.partial
    except ConnectionError:
        pass
    writer.close()
    return answer
