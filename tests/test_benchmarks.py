"""The frame of the benchmarks: what is run, what is compared, what is written down."""

import json
import subprocess
import sys

import pytest

from benchmarks.ground import Ground
from benchmarks.scenario import Scenario, results
from benchmarks.scenarios import SCENARIOS
from tests.sources import ROOT


async def nothing(_: Ground) -> int:
    return 0


RAW = Scenario(name="raw", about="", run=nothing)
OURS = Scenario(name="ours", about="", run=nothing, against={"raw": 2.0})


def test_a_result_is_the_middle_run_and_the_middle_of_the_ratios_within_a_round() -> None:
    _, ours = results([RAW, OURS], {"raw": [100, 50, 200], "ours": [300, 150, 420]})

    assert (ours.rate, ours.ratios, ours.spread) == (300, {"raw": 3.0}, 0.9)
    assert ours.missed == []


def test_a_result_says_which_goal_it_missed() -> None:
    _, ours = results([RAW, OURS], {"raw": [100], "ours": [199]})

    assert ours.missed == ["2x raw"]


def test_a_scenario_comes_behind_those_it_is_compared_with() -> None:
    names = [scenario.name for scenario in SCENARIOS]

    assert len(set(names)) == len(names)
    assert [s.name for s in SCENARIOS for other in s.against if other not in names[: names.index(s.name)]] == []


def test_a_run_writes_a_line_of_json_per_result() -> None:
    run = bench("--repeat", "1", "submit_one_by_one")

    assert run.returncode == 0, run.stderr
    raw, ours = [json.loads(line) for line in run.stdout.splitlines()]
    assert (raw["scenario"], ours["scenario"]) == ("raw_one_by_one", "submit_one_by_one")
    assert ours["runs"] == [ours["rate"]]
    assert ours["ratios"]["raw_one_by_one"] == pytest.approx(ours["rate"] / raw["rate"], rel=0.01)
    assert ours["settings"]["fsync"] == ours["settings"]["synchronous_commit"] == "on"
    assert ours["versions"].keys() >= {"flowfabric", "postgres", "python"}


def test_a_scenario_that_is_not_there_is_refused_with_those_that_are() -> None:
    run = bench("submit_all")

    assert (run.returncode, run.stdout) == (2, "")
    assert "no scenario submit_all; there are raw_one_by_one, submit_one_by_one" in run.stderr


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
