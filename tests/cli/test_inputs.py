"""Whatever is typed or pasted, a command fails with a short error and exit code 1 or 2, never with a traceback."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from tests.cli.conftest import Run
from tests.cli.scene import DONE, FLOW
from tests.cli.test_looks import HELP_ONLY, commands
from tests.given import Given

GOOD = {"execution": str(DONE), "executions": str(DONE), "flow": str(FLOW), "priority": "5", "tag": "a.b=c"}
GOOD |= {"arguments": "{}", "payload": "1", "shell": "bash"}
TEXTS = ["\0\udcff", "x" * 100_000]
EMPTY = {
    "executions list": ("--lane", "--namespace", "--task"),
    "events tail --once": ("--lane", "--namespace", "--by"),
    "flows list": ("--namespace",),
    "waitpoints list": ("--lane", "--namespace", "--reason-code"),
    "workers list": ("--lane", "--namespace"),
    "budgets list": ("--namespace",),
    "quotas list": ("--namespace",),
    "schedules list": ("--namespace",),
}


def calls(bad: str) -> Iterator[list[str]]:
    """Every command that ends, with this text as each of its arguments and options in turn."""
    for path, command in commands():
        if path in HELP_ONLY | {"top"}:
            continue
        words = [*path.split(), *(["--once"] if path == "events tail" else [])]
        places = [each for each in command.params if isinstance(each, click.Argument)]
        good = [GOOD.get(place.name or "", "x") for place in places]
        for number in range(len(places)):
            yield [*words, "--", *good[:number], bad, *good[number + 1 :]]
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag and option.name != "url":
                yield [*words, option.opts[0], bad, "--", *good]


@pytest.mark.parametrize("bad", TEXTS, ids=["unstorable", "huge"])
async def test_an_invalid_text_is_refused_in_a_few_lines(here: Run, given: Given, bad: str) -> None:
    async with given.nothing_changes():
        for call in calls(bad):
            code, out, err = await here("", *call)
            shown = [word[:20] for word in call]
            assert len(out + err) < 1_000, shown
            assert (code in (1, 2) and err) or (code == 0 and bad in TEXTS[1:]), (shown, out, err)


async def test_an_empty_filter_is_an_error_and_does_not_list_everything(here: Run) -> None:
    for line, options in EMPTY.items():
        for option in options:
            answer = await here(f"{line} {option} '' --json")
            assert (answer.code, answer.out, answer.error["error"]) == (1, "", "invalid_name"), (line, option)


async def test_by_must_not_be_empty(here: Run, given: Given) -> None:
    await given.submitted(lane="mail")

    async with given.nothing_changes():
        answer = await here("lanes pause mail --json --by ''")
    assert (answer.code, answer.error["error"]) == (1, "invalid_body")


def test_a_user_without_a_name_is_recorded_by_its_number() -> None:
    nameless = "import os, pwd; os.environ.clear(); pwd.getpwuid = lambda uid: {}[uid]"
    code = f"{nameless}; from flowfabric.cli.options import login_name; print(login_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"uid {os.getuid()}\n"
