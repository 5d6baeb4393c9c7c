"""`ff dev`: from an empty directory to a running execution."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from flowfabric import App
from flowfabric.cli.serving import serving_anywhere
from tests.cli.conftest import Run
from tests.worker.scene import TIMEOUT, ends, until, written

SOURCE = """
from flowfabric import App

app = App()

@app.task
async def hello(name: str) -> str:
    return f"hello {name}"
"""
CLIENT = """
import asyncio
from hello import app, hello

async def main():
    async with app:
        print(await (await hello.submit("world")).result(20))

asyncio.run(main())
"""


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`ff dev` in a directory that has only a file of ten lines."""
    written(tmp_path, SOURCE, "hello.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWFABRIC_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "dev", "hello.py:app"),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    if process.returncode is None:
        process.terminate()
    await process.communicate()


async def test_a_file_of_ten_lines_becomes_a_running_execution(dev: asyncio.subprocess.Process, tmp_path: Path) -> None:
    began = time.monotonic()
    banner = await lines(dev, 8)
    client = await asyncio.create_subprocess_exec(*(sys.executable, "-c", CLIENT), cwd=tmp_path, stdout=subprocess.PIPE)
    async with asyncio.timeout(TIMEOUT):
        out, _ = await client.communicate()
    print(f"from an empty directory to a result in {time.monotonic() - began:.1f} s")

    assert out == b"hello world\n"
    assert banner[0].startswith("FlowFabric is up")
    assert [line.split()[0] for line in banner[1:]] == ["Postgres", "worker", "lanes", "tasks", "sweeps", "HTTP", "try"]
    assert banner[1].endswith(f"embedded, data in {tmp_path / '.flowfabric'}")
    assert banner[4].endswith(" hello")
    assert re.search(r"http://127\.0\.0\.1:\d+$", banner[6])
    assert ' ff submit hello \'{"name": "..."}\' --app hello.py:app ' in banner[7]


async def test_it_serves_the_http_api_also_if_its_port_is_taken(
    dev: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    address = (await lines(dev, 8))[6].split()[-1]
    async with httpx.AsyncClient(base_url=address, timeout=TIMEOUT) as client:
        answer = await client.post("/v1/executions", json={"task": "hello", "payload": {"name": "world"}})
        result = await client.get(f"/v1/executions/{answer.json()['execution_id']}/result?wait=30s")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        elsewhere = serving_anywhere(App(), port)
    elsewhere.stop()
    await elsewhere.run()  # closes its socket

    assert result.json()["result"] == "hello world"
    assert elsewhere.address.startswith("http://127.0.0.1:")
    assert not elsewhere.address.endswith(f":{port}")


async def test_other_commands_use_its_postgres_and_start_their_own_without_it(
    dev: asyncio.subprocess.Process, ff: Run, tmp_path: Path
) -> None:
    await lines(dev, 8)
    joined = await ff("submit", "hello", '{"name": "world"}', "--wait")
    dev.terminate()
    await ends(dev)
    alone = await ff("executions", "list", "--json")

    assert joined == (0, '"hello world"\n', "")
    assert alone.code == 0
    assert [item["state"]["public_state"] for item in msgspec.json.decode(alone.out)["items"]] == ["completed"]
    assert not (tmp_path / ".flowfabric" / "cluster" / "postmaster.pid").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_and_its_postgres(
    dev: asyncio.subprocess.Process, tmp_path: Path, number: signal.Signals
) -> None:
    await lines(dev, 8)
    dev.send_signal(number)
    code, err = await ends(dev)

    assert code == 0, err
    assert not (tmp_path / ".flowfabric" / "cluster" / "postmaster.pid").exists()


async def test_it_starts_its_postgres_again_when_that_is_killed(
    dev: asyncio.subprocess.Process, ff: Run, tmp_path: Path
) -> None:
    await lines(dev, 8)
    assert (await ff("submit", "hello", '{"name": "world"}', "--wait")).code == 0
    pid_file = tmp_path / ".flowfabric" / "cluster" / "postmaster.pid"
    killed = pid_file.read_text().splitlines()[0]
    os.kill(int(killed), signal.SIGKILL)

    await until(lambda: pid_file.exists() and pid_file.read_text().splitlines()[:1] != [killed])
    assert (await ff("submit", "hello", '{"name": "again"}', "--wait")).out == '"hello again"\n'
    dev.terminate()
    assert (await ends(dev))[0] == 0
    assert not pid_file.exists()


async def test_it_uses_the_database_at_the_url(tmp_path: Path, empty_url: str, ff: Run) -> None:
    written(tmp_path, SOURCE, "hello.py")

    code, _, err = await ff("dev", "hello.py:app", FLOWFABRIC_URL=empty_url)

    assert code == 1
    assert err.startswith("schema_behind: ")
    assert not (tmp_path / ".flowfabric").exists()


async def test_it_describes_itself_in_json(tmp_path: Path, database_url: str) -> None:
    written(tmp_path, SOURCE, "hello.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli", "dev", "hello.py:app", "--json", "--no-sweeps"),
        cwd=tmp_path,
        env=os.environ | {"FLOWFABRIC_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    [line] = await lines(process, 1)
    process.terminate()
    await ends(process)

    document = msgspec.json.decode(line)
    assert (document["data"], document["tasks"], document["sweeps"]) == (None, ["hello"], False)


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """The first lines that it prints."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        return [(await process.stdout.readline()).decode().rstrip("\n") for _ in range(count)]
