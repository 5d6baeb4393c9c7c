"""Fixtures for the tests of `ff`: the command as a process of its own, or in this process, which is faster."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner

from flowfabric import App
from flowfabric.cli.group import ff as group
from tests.cli.looks import Looks


class Answer(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed with `--json`."""
        return msgspec.json.decode(self.out)

    @property
    def error(self) -> Any:
        """The error that it printed with `--json`."""
        return msgspec.json.decode(self.err)


Run = Callable[..., Awaitable[Answer]]
Start = Callable[..., Awaitable[Process]]


@pytest.fixture
def ff(tmp_path: Path) -> Run:
    """Run `ff` in an empty directory: `await ff("migrate", "--json", FLOWFABRIC_URL=url)`."""

    async def run(*arguments: str, **environment: str) -> Answer:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLOWFABRIC_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", *arguments),
            env=inherited | environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return Answer(process.returncode, out.decode(), err.decode())

    return run


@pytest.fixture
async def start(database_url: str) -> AsyncIterator[Start]:
    """Start `ff` on this test's database: `process = await start("sweep")`. It is killed at the end of the test."""
    started: list[Process] = []

    async def run(*arguments: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric.cli", *arguments),
            env=os.environ | {"FLOWFABRIC_URL": database_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # As at a terminal: a shell starts background processes with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
def here(database_url: str) -> Run:
    """Run `ff` in this process, as ada, on this test's database: `await here("lanes pause mail --reason", "smoke")`.

    The first argument is split as a shell would; the others are passed unchanged.
    """

    async def run(line: str, *arguments: str, stdin: str | bytes = "") -> Answer:
        done = await asyncio.to_thread(
            CliRunner().invoke,
            group,
            [*shlex.split(line), *arguments],
            input=stdin,
            env={"FLOWFABRIC_URL": database_url, "LOGNAME": "ada"},
            prog_name="ff",
            catch_exceptions=False,
        )
        return Answer(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def look(here: Run) -> Looks:
    """Compare the output of a command with its snapshot."""
    return Looks(here)


@pytest.fixture
def app(database_url: str) -> App:
    """An app on this test's database, not open yet."""
    return App(url=database_url)
