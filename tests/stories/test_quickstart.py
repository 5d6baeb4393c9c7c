"""The quickstart, step by step: one file, `ff dev`, and an approval answered from another terminal."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import App
from tests.app.scene import happens
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
[PROGRAM] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^ff (?!dev).*$", PAGE, re.MULTILINE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    return {**os.environ, "FLOWFABRIC_URL": database_url, "COLUMNS": "200"}


@pytest.fixture
def dev(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "flowfabric.cli", "dev", "hello.py:app"]
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "FlowFabric is up; ctrl-c ends it.\n"
        yield
        running.terminate()
        running.communicate(timeout=60)


@pytest.mark.usefixtures("dev")
async def test_the_quickstart_does_what_it_says(
    database_url: str, directory: Path, environment: dict[str, str]
) -> None:
    def said(line: str, *more: str) -> str:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "flowfabric.cli", *words, *more],
            cwd=directory, env=environment, input="y\n", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    submit, waiting, approve, show, events = COMMANDS
    async with App(url=database_url) as app:
        execution = app.execution(said(submit).strip())
        name = str(execution.execution_id)
        await happens(execution, "execution_suspended")
        assert name in said(waiting)
        assert "approve by ann" in said(approve.replace("ID", name), "--by", "ann")
        await happens(execution, "execution_completed")
    assert "Hello, Ada, says ann" in said(show.replace("ID", name))
    assert "execution_completed" in said(events.replace("ID", name))
