"""What mypy and basedpyright say of programs that use FlowFabric: nothing of good ones, an error on each mistake."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.sources import ROOT

GOOD, WRONG = "programs.py", "wrong_programs.py"
FILES = [f"tests/typing/{name}" for name in (GOOD, WRONG)]
COMMANDS = {
    "mypy": [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", *FILES],
    "basedpyright": [sys.executable, "-m", "basedpyright", "--outputjson", *FILES],
}

Found = dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """The errors that each checker reports, by file and line."""
    runs = {
        checker: subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for checker, command in COMMANDS.items()
    }
    said = {checker: run.communicate()[0] for checker, run in runs.items()}
    return {"mypy": _of_mypy(said["mypy"]), "basedpyright": _of_basedpyright(said["basedpyright"])}


@pytest.mark.parametrize("checker", COMMANDS)
def test_good_programs_are_accepted(found: dict[str, Found], checker: str) -> None:
    assert {line: said for (file, line), said in found[checker].items() if file != WRONG} == {}


@pytest.mark.parametrize("checker", COMMANDS)
def test_an_error_is_reported_on_exactly_the_wrong_lines(found: dict[str, Found], checker: str) -> None:
    reported = {line: said for (file, line), said in found[checker].items() if file == WRONG}

    assert {line: said for line, said in reported.items() if line not in _marked()} == {}
    assert [line for line in _marked() if line not in reported] == []


def test_mypy_says_what_is_wrong(found: dict[str, Found]) -> None:
    said = {line: found["mypy"].get((WRONG, line), "") for line in _marked()}

    assert len(said) > 40
    assert {line: said[line] for line, expected in _marked().items() if expected not in said[line]} == {}


def _marked() -> dict[int, str]:
    """The wrong lines, and what mypy says of each."""
    lines = (Path(__file__).parent / WRONG).read_text().splitlines()
    marks = ((number, re.search(r"  # wrong: (.+)", line)) for number, line in enumerate(lines, 1))
    return {number: mark[1] for number, mark in marks if mark}


def _of_mypy(said: str) -> Found:
    errors: Found = defaultdict(str)
    for file, line, message in re.findall(r"^(\S+?):(\d+): (?:error|note): (.+)$", said, re.MULTILINE):
        errors[Path(file).name, int(line)] += f"{message}\n"
    return dict(errors)


def _of_basedpyright(said: str) -> Found:
    errors: Found = defaultdict(str)
    for each in json.loads(said)["generalDiagnostics"]:
        if each["severity"] == "error":
            errors[Path(each["file"]).name, each["range"]["start"]["line"] + 1] += f"{each['message']}\n"
    return dict(errors)
