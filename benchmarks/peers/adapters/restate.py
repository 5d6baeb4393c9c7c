"""Restate: a separate server with its own log on disk, which pushes invocations to handlers over HTTP."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.peers.engine import STEPS, Engine, Mark

CONNECTIONS = 32
SERVICE = "Measured"
COMPLETED = "select count(*) as ended from sys_invocation where status = 'completed'"
SETTINGS = {
    "RESTATE_ADMIN__BIND_ADDRESS": "127.0.0.1:{admin}",
    "RESTATE_ADMIN__DISABLE_WEB_UI": "true",
    "RESTATE_ADVERTISED_ADDRESS": "http://127.0.0.1:{node}",
    "RESTATE_BIND_ADDRESS": "127.0.0.1:{node}",
    "RESTATE_DISABLE_TELEMETRY": "true",
    "RESTATE_INGRESS__BIND_ADDRESS": "127.0.0.1:{ingress}",
    "RESTATE_LISTEN_MODE": "tcp",
    "RESTATE_LOG_FILTER": "error",
    "DO_NOT_TRACK": "1",
}


class Adapter(Engine):
    versions = ("restate-sdk", "hypercorn")
    pushes = True
    _server: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait()

    def settings(self, processes: int) -> dict[str, object]:
        return {"connections": CONNECTIONS, "server": "its defaults, telemetry off"}

    async def install(self) -> None:
        ports = dict(zip(("node", "admin", "ingress", "handlers"), _free_ports(4), strict=True))
        (self.directory / "ports").write_text(json.dumps(ports))
        self._server = _start(self.directory, {name: text.format(**ports) for name, text in SETTINGS.items()})
        await self._until_answers(f"{self._at('admin')}/health")
        await self._until_answers(f"{self._at('ingress')}/restate/health")

    async def ready(self) -> None:
        """Register the workers: the server asks them what they serve."""
        await self._until_answers(f"{self._at('handlers')}/health")
        uri = self._at("handlers")
        await self._post(f"{self._at('admin')}/deployments", {"uri": uri, "force": True, "use_http_11": False})

    async def submit(self, task: str, number: int) -> Any:
        return (await self._post(f"{self._at('ingress')}/{SERVICE}/{task}/send", number))["invocationId"]

    async def call(self, task: str, number: int) -> None:
        """Submit and wait in one request."""
        await self._post(f"{self._at('ingress')}/{SERVICE}/{task}", number)

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Send on all connections at once, because there is no bulk request."""
        await self._at_once([(f"{self._at('ingress')}/{SERVICE}/{task}/send", number) for number in numbers])

    async def ended(self) -> int:
        found = await self._post(f"{self._at('admin')}/query", {"query": COMPLETED})
        return int(found["rows"][0]["ended"])

    async def suspended(self) -> int:
        return len(self._awakeables())

    async def signal(self, number: int) -> None:
        await self.signal_many([number])

    async def signal_many(self, numbers: Sequence[int]) -> None:
        ids, ingress = self._awakeables(), self._at("ingress")
        await self._at_once([(f"{ingress}/restate/awakeables/{ids[number]}/resolve", number) for number in numbers])

    async def work(self, mark: Mark, processes: int) -> None:
        config = Config()
        config.bind = [self._at("handlers").removeprefix("http://")]
        config.loglevel = "ERROR"
        await serve(restate.app([_service(mark, self.directory / f"awakeables-{os.getpid()}")]), config)

    def _at(self, name: str) -> str:
        ports = json.loads((self.directory / "ports").read_text())
        return f"http://127.0.0.1:{ports[name]}"

    def _awakeables(self) -> dict[int, str]:
        lines = [line for file in self.directory.glob("awakeables-*") for line in file.read_text().splitlines()]
        return {int(number): awakeable for number, _, awakeable in (line.partition(" ") for line in lines)}

    async def _at_once(self, requests: Sequence[tuple[str, Any]]) -> None:
        left = iter(requests)

        async def caller() -> None:
            for url, body in left:
                await self._post(url, body)

        await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))

    async def _post(self, url: str, body: Any) -> Any:
        async with self._http.post(url, json=body, headers={"accept": "application/json"}) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RuntimeError(f"{url} returned {answer.status}: {text[:300]}")
            return json.loads(text) if text else None

    async def _until_answers(self, url: str) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    async with self._http.get(url):
                        return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)


def _service(mark: Mark, awakeables: Path) -> Any:
    async def nothing(_: restate.Context, number: int) -> int:
        mark(number)
        return number

    async def step(index: int) -> int:
        return index

    async def steps(ctx: restate.Context, number: int) -> int:
        mark(number)
        return sum([await ctx.run_typed(f"step {index}", step, index=index) for index in range(STEPS)])

    async def waiter(ctx: restate.Context, number: int) -> int:
        awakeable, answer = ctx.awakeable()
        with awakeables.open("a") as file:
            file.write(f"{number} {awakeable}\n")
        await answer
        mark(number)
        return number

    service = restate.Service(SERVICE)
    for handler in (nothing, steps, waiter):
        service.handler()(handler)
    return service


def _start(directory: Path, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the server that npm has installed beside this Python."""
    installed = Path(sys.prefix, "node_modules", "@restatedev")
    program = next(path for path in sorted(installed.glob("*/bin/restate-server")) if os.access(path, os.X_OK))
    command = [str(program), "--base-dir", str(directory / "restate"), "--no-logo"]
    return subprocess.Popen(command, stdout=sys.stderr, cwd=directory, env={**os.environ, **settings})


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
