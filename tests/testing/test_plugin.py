"""The pytest plugin, in separate runs of pytest: with and without plugins for async tests, in parallel, and killed."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowfabric.testing import Server
from tests.sources import ROOT

EXAMPLE = ROOT / "examples" / "testing"
QUIET = ["-q", "-p", "no:cacheprovider", "--rootdir=.", "-c", os.devnull]
# A test fails if it leaves something open or running.
QUIET += [
    "-W",
    "error::ResourceWarning",
    "-W",
    "error::RuntimeWarning",
    "-W",
    "error::pytest.PytestUnraisableExceptionWarning",
]
NO_PLUGIN = ["-p", "no:asyncio", "-p", "no:anyio"]

BOTH = """
from flowfabric import App

app = App()

@app.task
async def double(n: int) -> int:
    return n * 2

{mark}
async def test_awaiting(app_worker, clock):
    await app_worker(app)
    execution = await double.with_options(delay="1d").submit(2)
    await clock.advance("1d")
    assert await execution.result() == 4

class TestInAClass:
    {mark}
    async def test_awaiting(self, run_now):
        assert await run_now(double, 3) == 6

def test_blocking(run_now):
    assert run_now(double, 4) == 8
"""

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    """Run pytest in a directory, on the server of this run or, with `url=None`, on a new one."""

    def run(*arguments: str, url: str | None = server.url("postgres"), cwd: Path = tmp_path) -> Done:
        command = [sys.executable, "-m", "pytest", *QUIET, *arguments]
        return subprocess.run(command, cwd=cwd, env=environment(url), capture_output=True, text=True, timeout=120)

    return run


def environment(url: str | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWFABRIC_", "PYTEST_"))}
    return {**ours, **({"FLOWFABRIC_TEST_URL": url} if url else {})}


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("@__import__('pytest').mark.asyncio", ["--asyncio-mode=strict"]),
        ("@__import__('pytest').mark.anyio", ["-p", "no:asyncio"]),
    ],
    ids=["asyncio", "anyio"],
)
def test_async_and_synchronous_tests_can_use_it(run: Run, tmp_path: Path, mark: str, options: list[str]) -> None:
    (tmp_path / "test_both.py").write_text(BOTH.format(mark=mark))
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )

    done = run(*options)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_example_passes_on_a_new_server_that_two_processes_share_and_nothing_is_left(
    run: Run, tmp_path: Path
) -> None:
    done = run("-n2", *NO_PLUGIN, f"--basetemp={tmp_path / 'base'}", url=None, cwd=EXAMPLE)

    assert "8 passed" in done.stdout, done.stdout + done.stderr
    [data] = [found.parent for found in (tmp_path / "base").rglob("server.lock")]
    assert data == tmp_path / "base" / "postgres"
    assert not (data / "cluster" / "postmaster.pid").exists()
    with (data / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


KILLED = """
import os, signal

def test_killed(flowfabric_url):
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_the_server_of_a_run_that_was_killed_ends_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)

    done = await asyncio.to_thread(run, f"--basetemp={tmp_path / 'base'}", url=None)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    with (tmp_path / "base" / "postgres" / "server.lock").open("w") as lock:
        async with asyncio.timeout(60):
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)  # held while the server runs


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (
            "postgresql://me:pw@db.example:5433/app?sslmode=require",
            "postgresql://me:pw@db.example:5433/x?sslmode=require",
        ),
        ("postgresql://db.example", "postgresql://db.example/x"),
        ("postgresql:///app", "postgresql:///x"),
        ("postgresql://me@/app?host=/run/a&port=1", "postgresql://me@/x?host=/run/a&port=1"),
    ],
)
def test_the_url_of_another_database_keeps_the_rest_of_the_url(given: str, other: str) -> None:
    assert Server(given).url("x") == other


def test_the_error_for_a_missing_server_names_the_variable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(run_now):\n    pass\n")

    done = run("-p", "no:asyncio", "--tb=line", url=f"postgresql://nobody@/nothing?host={tmp_path}")
    assert "1 error" in done.stdout
    assert "could not connect: " in done.stdout
    assert "The tests use the Postgres that FLOWFABRIC_TEST_URL names." in done.stdout


STUBBORN = """
import asyncio, threading
from flowfabric import App

app = App()
begun = threading.Event()

@app.task
async def hang() -> None:
    begun.set()
    await asyncio.Event().wait()

@app.task
def block() -> None:
    begun.set()
    threading.Event().wait()

def test_hanging(app_worker):
    app_worker(app)(hang).submit()
    assert begun.wait(20)

def test_blocking(app_worker):
    begun.clear()
    app_worker(app)(block).submit()
    assert begun.wait(20)

async def test_failing_with_work_left(app_worker):
    await app_worker(app)
    await hang.submit()
    raise ZeroDivisionError

async def test_working_afterwards(app_worker):
    await app_worker(app)
"""


OWN = """
import pytest

@pytest.fixture
def engine():
    return "of another library"

@pytest.fixture(scope="session")
def flowfabric_tables():
    return "create table orders (customer text); insert into orders values ('ada')"

def test_other(engine, run_now, flowfabric_engine):
    assert engine == "of another library"
    [row] = flowfabric_engine.run(lambda conn: conn.fetch("select customer from orders"))
    assert row["customer"] == "ada"
"""


def test_work_left_running_ends_immediately_and_fixtures_can_be_overridden(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_stubborn.py").write_text(STUBBORN)
    (tmp_path / "test_own.py").write_text(OWN)

    done = run("-p", "no:asyncio", "--durations=0", "--durations-min=4")
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "teardown test_stubborn" not in done.stdout
    assert "Error" not in done.stdout.replace("ZeroDivisionError", "")


UNAWARE = """
import sys

def test_it():
    assert not {"flowfabric", "asyncpg", "msgspec"} & set(sys.modules)

async def test_not_run():
    pass
"""


def test_a_run_that_does_not_use_it_loads_nothing_and_is_not_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_unaware.py").write_text(UNAWARE)

    done = run(*NO_PLUGIN, "--basetemp=base", url=None)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "async def functions are not natively supported" in done.stdout
    assert not list(tmp_path.rglob("server.lock"))
