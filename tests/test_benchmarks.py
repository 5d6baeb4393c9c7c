"""The benchmarks: running, comparing and reporting."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import processors, report
from benchmarks.feeding import rate
from benchmarks.figures import percentiles
from benchmarks.ground import Ground
from benchmarks.peers.listed import PEERS
from benchmarks.peers.plays import PLAYS
from benchmarks.scenario import RAW, Result, Run, Scenario, results
from benchmarks.scenarios import SCENARIOS
from benchmarks.spans import Span, overlapping
from benchmarks.stamps import Stamps
from benchmarks.stolen import ticks
from benchmarks.wal import Written, counted
from tests.sources import ROOT

PLAYED = (
    '{"rate": 10.0, "figures": {}, "versions": {"pgqueuer": "9.9"}, "settings": {"batch_size": 7}, "on_postgres": true}'
)


async def nothing(_: Ground) -> int:
    return 0


BARE = Scenario(name="bare", about="", run=nothing, engine=RAW)
OURS = Scenario(name="ours", about="", run=nothing, against={"bare": 2.0})


def rounds(**values: list[float | None]) -> dict[tuple[str, str], list[Run | None]]:
    """The results of each round, by scenario and engine: `ours_flowfabric=[1.0, 2.0]`."""
    keys = {name: (name.partition("_")[0], name.partition("_")[2]) for name in values}
    return {keys[name]: [None if value is None else Run(value, {}) for value in values[name]] for name in values}


def test_a_result_is_the_median_run_and_the_median_of_the_ratios_within_a_round() -> None:
    found = rounds(bare_postgres=[100, 50, 200], ours_flowfabric=[300, 150, 420])

    _, ours = results([BARE, OURS], found, {})
    assert (ours.value, ours.ratios, ours.spread) == (300, {"bare": 3.0}, 0.9)
    assert ours.missed == []


def test_a_result_names_the_goal_it_missed() -> None:
    _, ours = results([BARE, OURS], rounds(bare_postgres=[100], ours_flowfabric=[199]), {})

    assert ours.missed == ["2x bare"]


def test_flowfabric_is_compared_with_every_peer_and_a_peer_with_the_bare_database() -> None:
    found = rounds(bare_postgres=[100, 100], ours_flowfabric=[300, 400], ours_peer=[50, None], ours_other=[None, None])

    _, ours, peer = results([BARE, OURS], found, {("ours", "peer"): {"versions": {"peer": "1"}}})
    assert (ours.engine, ours.ratios) == ("flowfabric", {"bare": 3.5, "peer": 6.0})
    assert (peer.engine, peer.ratios, peer.missed) == ("peer", {"bare": 0.5}, [])
    assert peer.about == {"versions": {"peer": "1"}}


def test_where_less_is_better_half_of_it_is_twice_as_good() -> None:
    ours = OURS._replace(less_is_better=True)

    assert results([BARE, ours], rounds(bare_postgres=[4], ours_flowfabric=[2]), {})[1].ratios == {"bare": 2.0}


@pytest.mark.parametrize(
    ("less_is_better", "value", "missed"), [(True, 51, ["50 ms"]), (True, 50, []), (False, 49, ["50 ms"])]
)
def test_a_result_names_its_own_goal_if_it_missed_that(less_is_better: bool, value: float, missed: list[str]) -> None:
    scenario = BARE._replace(less_is_better=less_is_better, goal=50, unit="ms")

    [result] = results([scenario], rounds(bare_postgres=[value]), {})
    assert result.missed == missed


def test_runs_of_one_execution_overlap_if_one_begins_before_another_has_ended() -> None:
    runs = [Span("a", 2, 4, True), Span("a", 0, 3, False), Span("b", 1, 2, True), Span("b", 2, 3, True)]

    assert overlapping(runs) == [(runs[1], runs[0])]


def test_a_rate_counts_the_moments_between_two_others() -> None:
    assert rate([0.5, 1, 2, 2.5, 3], 1, 3) == 1.5


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles("start", [number / 1_000 for number in range(101)]) == {"start_p50_ms": 50, "start_p99_ms": 99}


WAL = """\
rmgr: Heap        len (rec/tot):     54/    54, tx: 9, lsn: 0/1, prev 0/0, desc: INSERT off: 3, blkref #0: rel 1663/5/16 blk 0
rmgr: Heap        len (rec/tot):     70/  8260, tx: 9, lsn: 0/2, prev 0/1, desc: HOT_UPDATE old_xmax: 9, blkref #0: rel 1663/5/16 blk 0 FPW
rmgr: Btree       len (rec/tot):     64/    64, tx: 9, lsn: 0/3, prev 0/2, desc: INSERT_LEAF off: 5, blkref #0: rel 1663/5/17 blk 1
rmgr: Btree       len (rec/tot):     64/    64, tx: 8, lsn: 0/4, prev 0/3, desc: INSERT_LEAF off: 5, blkref #0: rel 1663/7/17 blk 1
rmgr: Transaction len (rec/tot):     34/    34, tx: 9, lsn: 0/5, prev 0/4, desc: COMMIT 2026-01-01 00:00:00.0 UTC
"""  # noqa: E501


def test_rows_and_index_entries_are_counted_for_one_database_without_copies_of_pages() -> None:
    assert counted(WAL.splitlines(), 5) == Written(rows=1, versions=2, entries=1, bytes=286)
    assert Written(rows=2, versions=4, entries=6, bytes=8).each(2) == Written(1, 2, 3, 4)


def test_stamps_are_shared_through_their_file(tmp_path: Path) -> None:
    mine = Stamps.make(tmp_path / "stamps", 3)
    theirs = Stamps(tmp_path / "stamps")
    theirs.mark(0)
    theirs.mark(2)

    assert (len(mine), mine.reached(), mine.at(1)) == (3, 1, 0)
    assert mine.moments() == [theirs.at(0), theirs.at(2)]


def test_a_scenario_runs_after_those_it_is_compared_with() -> None:
    names = [scenario.name for scenario in SCENARIOS]

    assert len(set(names)) == len(names)
    assert [s.name for s in SCENARIOS for other in s.against if other not in names[: names.index(s.name)]] == []


def test_every_listed_scenario_of_a_peer_has_its_code() -> None:
    asked = {scenario.name for scenario in SCENARIOS if scenario.for_peers}

    assert {name for peer in PEERS for name in peer.scenarios} == asked == PLAYS.keys()
    assert sorted(file.stem for file in (ROOT / "benchmarks" / "peers" / "adapters").glob("[a-z]*.py")) == sorted(
        peer.name for peer in PEERS
    )


def test_every_scenario_and_peer_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()

    assert [scenario.name for scenario in SCENARIOS if f"`{scenario.name}`" not in page] == []
    assert [peer.name for peer in PEERS if f"`{peer.name}`" not in page] == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which pgqueuer prints a fixed result, and absurd cannot start."""
    directory = tmp_path_factory.mktemp("peers")
    for peer, script in {"pgqueuer": f"echo '{PLAYED}'", "absurd": "echo no database >&2; exit 3"}.items():
        python = directory / peer / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)
    return directory


@pytest.fixture(scope="module")
def run(home: Path) -> subprocess.CompletedProcess[str]:
    """One scenario, with its baseline and these peers."""
    return bench("--repeat", "1", "--scale", "0.1", "--peers", str(home), "submit_one_by_one")


def test_a_run_writes_a_line_of_json_per_result(run: subprocess.CompletedProcess[str]) -> None:
    raw, ours, *_ = [json.loads(line) for line in run.stdout.splitlines()]

    assert (raw["scenario"], raw["engine"]) == ("raw_one_by_one", "postgres")
    assert (ours["scenario"], ours["engine"], ours["scale"]) == ("submit_one_by_one", "flowfabric", 0.1)
    assert ours["runs"] == [ours["value"]]
    assert ours["ratios"]["raw_one_by_one"] == pytest.approx(ours["value"] / raw["value"], rel=0.01)
    assert ours["settings"]["fsync"] == ours["settings"]["synchronous_commit"] == "on"
    assert ours["versions"].keys() >= {"flowfabric", "postgres", "python"}


def test_a_peer_that_fails_is_reported_beside_the_others(run: subprocess.CompletedProcess[str]) -> None:
    _, ours, peer, failure = [json.loads(line) for line in run.stdout.splitlines()]

    assert run.returncode == 1
    assert ours["ratios"]["pgqueuer"] == pytest.approx(ours["value"] / 10, rel=0.01)
    assert (peer["engine"], peer["value"], peer["settings"]["batch_size"]) == ("pgqueuer", 10.0, 7)
    assert peer["versions"].keys() == {"pgqueuer", "postgres"}
    assert failure == {"scenario": "submit_one_by_one", "engine": "absurd", "error": "no database"}


def test_a_peer_that_is_not_installed_is_skipped_with_the_way_to_install_it(
    run: subprocess.CompletedProcess[str], home: Path
) -> None:
    assert f"python -m benchmarks.peers setup {home} dbos" in run.stderr
    assert '"dbos"' not in run.stdout


def test_scenarios_of_every_kind_run() -> None:
    names = ["submit_bulk", "renew", "latency_parts", "signal_latency"]
    run = bench("--no-peers", "--not-durable", "--repeat", "1", "--scale", "0.005", *names)

    rows = {row["scenario"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert (run.returncode, [row for row in rows.values() if "error" in row]) == (0, []), run.stderr
    assert rows.keys() >= {*names, "raw_bulk", "raw_renew", "raw_latency"}
    assert all(rows[name]["value"] > 0 for name in names)
    parts = rows["latency_parts"]["figures"]
    assert sum(parts[name] for name in parts if name != "all_ms") == pytest.approx(parts["all_ms"], rel=0.5, abs=5)


def test_scenarios_that_break_something_run() -> None:
    names = ["killed", "server_killed"]
    run = bench("--no-peers", "--not-durable", "--repeat", "1", "--scale", "0.01", *names)

    rows = {row["scenario"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert (run.returncode, [row for row in rows.values() if "error" in row]) == (0, []), run.stderr
    assert rows["killed"]["value"] > 0
    assert rows["server_killed"]["figures"]["rate_until_then"] > 0


def test_processor_time_is_that_of_the_processes_that_a_process_has_started() -> None:
    before = processors.seconds(os.getpid())
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint('used', flush=True)\ninput()"

    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"used\n"
        assert processors.seconds(os.getpid()) - before >= 0.2
        assert processors.seconds(child.pid, child.pid) == pytest.approx(processors.seconds(child.pid), abs=0.1)
        assert processors.parent(child.pid) == os.getpid()
        child.communicate(b"\n")
    assert processors.seconds(child.pid) == processors.parent(child.pid) == 0


@pytest.mark.parametrize(
    ("stat", "expected"),
    [("cpu  10 0 5 80 1 0 1 3 7 0\ncpu0 1 2 3\n", (3, 100)), ("cpu  10 0 5 80\n", (0, 0)), ("", (0, 0))],
)
def test_stolen_time_is_read_from_the_kernel_if_it_reports_it(stat: str, expected: tuple[int, int]) -> None:
    assert ticks(stat) == expected


def test_the_table_is_written_between_the_markers_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    about = {"versions": {}, "settings": {}, "ours": {"flowfabric": "1"}, "own_settings": {}, "machine": {}, "scale": 1}
    result = Result(OURS, "flowfabric", [Run(1234.5, {"start_p50_ms": 1.5}, stolen=0.09)], {"bare": 2.5})
    kept = tmp_path / "results.jsonl"
    kept.write_text(
        f"{report.line({**report.row(result, about), 'value': 1})}\n{report.line(report.row(result, about))}"
    )

    report.write(page, report.read(kept))

    assert re.fullmatch(
        r"before\n<!--.*-->\n\n\| scenario.*\n\nVersions: .*\n\n<!--.*-->\nafter\n", page.read_text(), re.S
    )
    assert "| ours | flowfabric | 1,234 | executions/s | 0% | 9% | 2.50x bare | start_p50_ms 1.50 |" in page.read_text()
    assert "old" not in page.read_text()


def test_a_page_without_markers_is_not_changed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place\n")

    with pytest.raises(ValueError, match=str(page)):
        report.write(page, [])
    assert page.read_text() == "no place\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit_all"], "submit_all"),
        (["--peer", "nobody"], "nobody"),
        (["--scale", "0"], "--scale"),
        (["--repeat", "0"], "--repeat"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], said: str) -> None:
    run = bench(*arguments)

    assert (run.returncode, run.stdout) == (2, "")
    assert said in run.stderr


def test_peers_are_not_installed_inside_the_project() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "setup", str(ROOT / "peers"), "pgqueuer"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.returncode == 2
    assert str(ROOT / "peers") in run.stderr
    assert not (ROOT / "peers").exists()


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
