"""The tutorial, step by step: two files, a worker, and an approval."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    *agent, ask = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "agent.py").write_text("\n\n".join(agent))
    (tmp_path / "ask.py").write_text(ask)
    return tmp_path


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    return {**os.environ, "FLOWFABRIC_URL": database_url}


@pytest.fixture
def worker(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "flowfabric.cli", "worker", "agent.py:app"]
    running = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.DEVNULL)
    yield
    running.terminate()
    running.wait(timeout=60)


def ask(directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "ask.py"]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.usefixtures("worker")
def test_the_tutorial_does_what_it_says(directory: Path, environment: dict[str, str]) -> None:
    first = ask(directory, environment)
    assert first.returncode == 0, first.stderr
    waits_for, result = first.stdout.splitlines()
    assert "publish" in waits_for
    assert result == "published: Tides"

    again = ask(directory, environment)
    assert again.returncode == 0, again.stderr
    ended, result = again.stdout.splitlines()
    assert ended.startswith("completed at ")
    assert result == "published: Tides"
