"""The small examples: each runs as a program, and a worker in this process runs its tasks."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from flowfabric import App
from flowfabric.testing.engine import Engine
from tests.sources import ROOT, TESTS

EXAMPLES = ROOT / "examples"

AppWorker = Callable[..., Awaitable[App]]
Run = Callable[..., Awaitable[str]]


def loaded(name: str) -> ModuleType:
    """Import an example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(engine: Engine) -> Run:
    """Run an example as a program on the database of this test, and return its output."""

    async def run(name: str, *arguments: str) -> str:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / f"{name}.py"), *arguments),
            env={**os.environ, "FLOWFABRIC_URL": engine.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await program.communicate()
        assert program.returncode == 0, err.decode()
        return out.decode()

    return run


async def test_retries(app_worker: AppWorker, run: Run) -> None:
    await app_worker(loaded("retries").app)

    assert (await run("retries")).splitlines() == [
        *("it rains in Paris", "  after 3 attempts"),
        *("failed: LookupError: there is no Atlantis", "  after 1 attempts"),
    ]


async def test_approval(app_worker: AppWorker, engine: Engine, run: Run) -> None:
    await app_worker(loaded("approval").app)
    execution_id = (await run("approval", "ask", "tides")).strip()
    await engine.settle()

    assert await run("approval", "list") == f"{execution_id} asks to publish 'Tides': All about tides.\n"
    assert await run("approval", "approve", execution_id, "ann") == "published: Tides\n"
    assert await run("approval", "list") == ""


async def test_budget(app_worker: AppWorker, run: Run) -> None:
    await app_worker(loaded("budget").app)

    tides, moon, stars, used = (await run("budget")).splitlines()
    assert (tides, moon) == ("all about tides", "all about the moon")
    assert "BudgetExhausted" in stars
    assert used == "used 85 of 100 tokens, 2 requests"


async def test_transaction(app_worker: AppWorker, run: Run) -> None:
    await app_worker(loaded("transaction").app)

    assert (await run("transaction")).splitlines() == [
        "order 1 is on its way",
        "'---' is not a customer: neither the order nor the shipping was stored",
        "1 order, 1 execution",
    ]


async def test_sync_views(app_worker: AppWorker, run: Run) -> None:
    await app_worker(loaded("sync_views").app)

    once, sent, ended = (await run("sync_views")).splitlines()
    assert (once, sent) == ("signed up once", "sent to ada@example.org: Welcome, ada!")
    assert ended.startswith("completed at ")


def test_sync_views_leaves_the_embedded_postgres_when_its_process_ends(tmp_path: Path) -> None:
    program = "import sync_views; print(sync_views.sign_up('bob@example.org'))"
    environment = {**os.environ, "FLOWFABRIC_URL": "", "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".flowfabric" / "cluster" / "postmaster.pid").exists()


def test_every_example_is_run_by_a_test() -> None:
    tests = "\n".join(file.read_text() for file in sorted(TESTS.rglob("test_*.py")))

    assert [file.name for file in EXAMPLES.glob("*.py") if not re.search(rf"\b{file.stem}\b", tests)] == []


async def test_fastapi_app(app_worker: AppWorker, engine: Engine) -> None:
    example = loaded("fastapi_app")
    await app_worker(example.app, opens=False)
    transport = httpx.ASGITransport(app=example.api)
    async with (
        example.api.router.lifespan_context(example.api),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        asked, again = [(await client.post("/reports", params={"topic": "tides"})).json() for _ in range(2)]
        assert asked == again
        await engine.settle()
        where = f"/reports/{asked['id']}"
        waits = (await client.get(where)).json()
        assert waits["state"] == "suspended"
        assert "publish" in waits["reason"]

        other = await client.post(f"{where}/approval", params={"shown": "All about ebb.", "person": "ann"})
        assert (other.status_code, other.json()["error"]) == (409, "approval_digest_mismatch")
        await client.post(f"{where}/approval", params={"shown": "All about tides.", "person": "ann"})
        await engine.settle()
        assert (await client.get(where)).json() == {"state": "completed", "report": "All about tides."}
        assert (await client.get("/reports/nonsense")).status_code == 422
