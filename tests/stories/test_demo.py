"""The demo, run twice as a newcomer runs it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources import ROOT


class Told(NamedTuple):
    """What two runs in one directory printed."""

    first: str
    second: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    directory = tmp_path_factory.mktemp("newcomer")
    return Told(demo(directory), demo(directory))


def demo(directory: Path) -> str:
    """Run it there. The environment names a database that nobody can reach: the demo must want none but its own."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=directory,
        env={**os.environ, "FLOWFABRIC_URL": "postgresql://nobody@nowhere.invalid/nothing"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def counts(text: str) -> dict[str, tuple[int, int]]:
    """How many wait and how many are delayed, lane by lane."""
    lines = [line.replace(",", "").split() for line in text.partition("What is there now")[2].splitlines()]
    return {line[0]: (int(line[2]), int(line[4])) for line in lines if len(line) == 6}


def test_the_demo_submits_a_thousand_executions_and_a_key_only_once(told: Told) -> None:
    assert "1,000 executions submitted in one statement" in told.first
    assert "1 created, 4 duplicates" in told.first
    assert counts(told.first) == {"research": (601, 1), "mail": (0, 200), "pictures": (99, 0)}


def test_the_demo_goes_on_from_the_data_it_left(told: Told) -> None:
    assert "1,000 executions submitted in one statement" in told.second
    assert "0 created, 5 duplicates" in told.second
    assert counts(told.second) == {"research": (1201, 2), "mail": (0, 400), "pictures": (198, 0)}


@pytest.mark.parametrize(
    "sentence",
    [
        "held by demo since",
        "lane research has been paused since",
        "delayed until",
        "no live worker of lane pictures has {gpu}; start a worker that has them",
        "waits for a worker of lane research;",
        "attempt 1 runs on demo",
        "completed at",
        "after: the model timed out",
        "to complete it now is refused: execution_not_active: ",
        "cancelled at",
        "to hold it now is refused: execution_ended: ",
    ],
)
def test_the_demo_explains_what_each_execution_waits_for(told: Told, sentence: str) -> None:
    assert sentence in told.first
    assert sentence in told.second
