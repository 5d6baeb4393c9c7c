"""A worker whose connections go silent, without an error, while new ones work."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proxy import Proxy, proxied
from flowfabric import App
from flowfabric.engine import claims
from flowfabric.ids import ExecutionId
from tests.given import Given
from tests.worker.scene import Gate, ends, gated, until, worker_process, working, written

SHORT: dict[str, Any] = {"call_timeout": "300ms", "timeout": "2s"}


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as opened:
        yield opened


async def test_a_run_is_reported_on_a_new_connection_and_runs_once(proxy: Proxy, given: Given) -> None:
    app, gate = App(url=proxy.url, **SHORT), Gate()
    wait = gated(app, gate)

    async with working(app, lease="30s"):
        executions = await wait.submit_many([()] * 3)
        await until(lambda: gate.inside == 3)
        proxy.silence()
        gate.open.set()
        for execution in executions:
            await execution.result(10)

    assert gate.came == 3
    assert "lease_expired" not in await given.events()


async def test_a_claim_whose_reply_is_lost_runs_without_waiting_for_its_lease(proxy: Proxy, given: Given) -> None:
    app = App(url=proxy.url, **SHORT)

    @app.task
    async def echo(topic: str) -> str:
        return topic

    async with working(app, lease="1h"):
        proxy.lose(b"low tides")
        execution_id = await given.submitted(task="echo", payload=b'{"topic": "low tides"}')
        assert await app.execution(execution_id).result(10) == "low tides"

    assert not proxy.is_losing
    assert (await given.events(execution_id)).count("lease_acquired") == 1


async def test_a_lease_that_cannot_be_reported_is_not_renewed_by_a_heartbeat_that_works(
    proxy: Proxy, given: Given
) -> None:
    app, gate = App(url=proxy.url, call_timeout="200ms", timeout="200ms"), Gate()
    wait = gated(app, gate)

    async with working(app, lease="1s", drain="0s"):
        execution = await wait.submit()
        await until(lambda: gate.inside == 1)
        proxy.silence(but=b"register_worker")
        proxy.dead = True
        gate.open.set()

        await until(lambda: is_expired(given, execution.execution_id))
        proxy.dead = False
        assert [claim.execution_id for claim in await given.claim()] == [execution.execution_id]


async def test_a_heartbeat_registers_again_when_its_connection_went_silent(proxy: Proxy) -> None:
    app = App(url=proxy.url, **SHORT)
    gated(app, Gate())

    def registered() -> int:
        return sum(b"register_worker" in link.said for link in proxy.links)

    async with working(app, lease="1s"):
        await until(lambda: registered() == 1)
        proxy.silence()
        await until(lambda: registered() == 2)


async def is_expired(given: Given, execution_id: ExecutionId) -> bool:
    await claims.expire_leases(given.conn)
    return "lease_expired" in await given.events(execution_id)


async def test_a_worker_that_is_stopped_ends_whatever_the_network_does(proxy: Proxy) -> None:
    app, gate = App(url=proxy.url, call_timeout="500ms", timeout="500ms"), Gate()
    wait = gated(app, gate)

    async with working(app, drain="100ms", sweeps=True):
        await wait.submit_many([()] * 3)
        await until(lambda: gate.inside == 3)
        proxy.silence()
        proxy.dead = True
        began = time.monotonic()

    assert time.monotonic() - began < 20


async def test_sigterm_ends_a_process_whose_connections_are_silent(proxy: Proxy, given: Given, tmp_path: Path) -> None:
    source = """
from flowfabric import App

app = App(call_timeout="500ms", timeout="500ms")

@app.task
async def hello() -> str:
    return "hello"
"""
    async with worker_process(proxy.url, written(tmp_path, source), "--drain", "100ms") as process:
        proxy.silence()
        proxy.dead = True
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code, err = await ends(process)

    assert code == 0, err
    assert time.monotonic() - began < 20


async def test_a_worker_waits_for_a_database_that_it_cannot_reach_at_its_start(
    proxy: Proxy, given: Given, tmp_path: Path
) -> None:
    source = "from flowfabric import App\napp = App(call_timeout='200ms', timeout='200ms')\n"
    proxy.dead = True

    async def reachable_later() -> None:
        await until(lambda: len(proxy.links) >= 2)
        proxy.dead = False

    later = asyncio.create_task(reachable_later())
    async with worker_process(proxy.url, written(tmp_path, source)):
        await later
        assert await given.count("workers") == 1
