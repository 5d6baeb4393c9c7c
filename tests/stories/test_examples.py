"""The examples, each run in an empty directory with its own embedded Postgres."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "FLOWFABRIC_URL": ""}


def run(directory: Path, name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LINES = {
    "submitted": r".* lane research.*",
    "kill -9": r".* attempt 1 .* worker .*",
    "waits": r".* publish.*",
    "approved": r"by ann, .*",
    "result": r"published: Tides, in 3 chapters, translated",
    "spent": r"2,700 tokens, .* 997,300 left",
    "its life": r"execution_submitted, lease_acquired, lease_expired, lease_acquired, .*, execution_completed",
}


def test_the_agent_searches_and_publishes_once_although_its_worker_was_killed(tmp_path: Path) -> None:
    story = run(tmp_path, "agent.py")
    calls = re.findall(r"^ +\[process (\d+)\] (.*)$", story, re.MULTILINE)

    assert [what for _, what in calls] == [
        *("search 'tides: what'", "search 'tides: why'", "search 'tides: how'"),
        *("write about tides, from 3 notes", "write about tides, from 3 notes"),
        *("translate 'Tides, in 3 chapters'", "publish 'Tides, in 3 chapters, translated'"),
    ]
    assert len({process for process, _ in calls}) == 3
    assert calls[3][0] != calls[4][0]
    missing = [what for what, line in LINES.items() if not re.search(rf"^{what:12}{line}$", story, re.MULTILINE)]
    assert missing == [], story


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Path]:
    """A directory in which `ff dev examples/hello.py:app` runs."""
    command = [sys.executable, "-m", "flowfabric.cli", "dev", f"{EXAMPLES / 'hello.py'}:app"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "FlowFabric is up; ctrl-c ends it.\n"
        yield tmp_path
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_hello_is_answered_by_the_worker_of_another_process(dev: Path) -> None:
    assert run(dev, "hello.py", "world") == "hello world\n"


def test_schedules_tick_automatically_and_by_hand(tmp_path: Path) -> None:
    *pulses, by_hand, pulse, report = run(tmp_path, "schedule.py").splitlines()

    assert pulses == ["pulse 1", "pulse 2", "pulse 3"]
    assert by_hand == "report by hand: all about tides"
    assert re.fullmatch(r"pulse \(every 1s\): active, next .* UTC", pulse)
    assert re.fullmatch(r"report \(0 9 \* \* 1-5 Europe/Berlin\): active, next .*0[78]:00, .*0[78]:00 UTC", report)


def test_a_book_is_counted_by_as_many_children_as_it_has_pages(tmp_path: Path) -> None:
    assert run(tmp_path, "fan_out.py", "500") == "126241 words on 499 pages; not read: [13]\n"


def test_tasks_of_a_flow_get_the_results_of_their_upstreams(tmp_path: Path) -> None:
    page, state = run(tmp_path, "flow.py", "tides").splitlines()

    assert page == "TIDES COME IN: tides come in; tides go out (6 words)"
    assert state == "the flow: failed"  # one of the models was down


def test_make_demo_runs_the_agent_and_the_tour() -> None:
    said = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert re.findall(r"examples/\w+\.py", said) == ["examples/agent.py", "examples/demo.py"]
