"""The demo, run twice in an empty directory."""

import os
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT


def demo(directory: Path) -> str:
    """Run the demo there. The URL in the environment is unreachable: the demo must use its own database."""
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
    """How many executions are waiting and delayed, by lane."""
    lines = [line.replace(",", "").split() for line in text.partition("What is there now")[2].splitlines()]
    return {line[0]: (int(line[2]), int(line[4])) for line in lines if len(line) == 6}


SENTENCES = [
    "held by demo",
    "lane desk has been paused since",
    "delayed until",
    "lane pictures has {gpu}",
    "worker of lane desk",
    "attempt 1 runs on demo",
    "completed at",
    "the model timed out",
    "execution_not_active: ",
    "cancelled at",
    "execution_ended: ",
]


def test_the_demo_submits_a_thousand_executions_explains_them_and_finds_its_data_again(tmp_path: Path) -> None:
    first, second = demo(tmp_path), demo(tmp_path)

    assert all("1,000 executions submitted in one statement" in run for run in (first, second))
    assert "1 created, 4 duplicates" in first
    assert "0 created, 5 duplicates" in second
    assert counts(first) == {"desk": (601, 1), "mail": (0, 200), "pictures": (99, 0)}
    assert counts(second) == {"desk": (1201, 2), "mail": (0, 400), "pictures": (198, 0)}
    assert [sentence for sentence in SENTENCES if sentence not in first or sentence not in second] == []
