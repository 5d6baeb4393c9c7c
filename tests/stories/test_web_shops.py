"""The web shops of the examples: an order and its shipping are stored in one transaction."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import httpx
import pytest

from flowfabric import App
from flowfabric.testing.engine import Engine
from tests.given import Given
from tests.stories.test_examples_small import EXAMPLES, loaded
from tests.worker.scene import worker_process

AppWorker = Callable[..., Awaitable[App]]


async def test_the_shop_on_fastapi(app_worker: AppWorker, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWFABRIC_URL", engine.url)
    shop = loaded("web_shop")
    await app_worker(shop.app, opens=False)
    transport = httpx.ASGITransport(app=shop.api)
    async with (
        shop.api.router.lifespan_context(shop.api),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        placed = (await client.post("/orders", params={"customer": "ada"})).json()
        refused = await client.post("/orders", params={"customer": "---"})
        await engine.settle()
        found = (await client.get(f"/orders/{placed['order']}")).json()
        missing = await client.get(f"/orders/{placed['order'] + 1}")

    assert (refused.status_code, missing.status_code) == (422, 404)
    assert found["parcel"] == f"parcel {placed['order']}"
    assert found["shipping"].startswith("completed at ")


async def test_the_shop_on_django(database_url: str, given: Given) -> None:
    async with worker_process(database_url, f"{EXAMPLES / 'django_shop.py'}:app"):
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / "django_shop.py")),
            env={**os.environ, "FLOWFABRIC_URL": database_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await program.communicate()

    assert program.returncode == 0, err.decode()
    assert out.decode().splitlines() == ["'---' is not a customer", "parcel 1", "parcel 1", "1 order"]
    assert await given.count("executions") == 1
