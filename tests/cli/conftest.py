"""What the tests of the command stand on: the command itself, as a process of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Awaitable[Answer]]


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
