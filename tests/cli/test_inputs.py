"""Whatever is typed or pasted: a refusal of a few lines, one of the exit codes there are, and never a traceback."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from tests.cli.conftest import Run
from tests.cli.scene import DONE, FLOW
from tests.cli.test_looks import HELP_ALONE, commands
from tests.given import Given

GOOD = {"execution": str(DONE), "executions": str(DONE), "flow": str(FLOW), "priority": "5", "tag": "a.b=c"}
GOOD |= {"arguments": "{}", "payload": "1", "shell": "bash"}
TEXTS = ["\0\udcff", "x" * 100_000]
EMPTY = {
    "executions list": ("--lane", "--namespace", "--kind"),
    "events tail --once": ("--lane", "--namespace", "--by"),
    "flows list": ("--namespace",),
    "waitpoints list": ("--lane", "--namespace", "--reason-code"),
    "workers list": ("--lane", "--namespace"),
    "budgets list": ("--namespace",),
    "quotas list": ("--namespace",),
    "schedules list": ("--namespace",),
}


def calls(bad: str) -> Iterator[list[str]]:
    """Every command that ends by itself, with this text in one place after the other."""
    for path, command in commands():
        if path in HELP_ALONE | {"top"}:
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
async def test_a_text_that_cannot_be_is_refused_in_a_few_lines(here: Run, given: Given, bad: str) -> None:
    async with given.nothing_changes():
        for call in calls(bad):
            code, out, err = await here("", *call)
            shown = [word[:20] for word in call]
            assert len(out + err) < 1_000, shown
            assert (code in (1, 2) and err) or (code == 0 and bad in TEXTS[1:]), (shown, out, err)


async def test_an_empty_name_narrows_no_list(here: Run) -> None:
    for line, options in EMPTY.items():
        for option in options:
            code, out, err = await here(f"{line} {option} ''")
            name = option.removeprefix("--").replace("-", "_")
            assert (code, out, err) == (1, "", f"invalid_name: {name} '' is empty; name one, or leave it out\n")


async def test_who_acts_has_a_name(here: Run, given: Given) -> None:
    await given.submitted(lane="mail")

    async with given.nothing_changes():
        code, _, err = await here("lanes pause mail --by ''")
    assert (code, err) == (1, "invalid_body: by '': a name is 1 to 256 bytes\n")


def test_somebody_whose_user_has_no_name_is_called_by_its_number() -> None:
    nameless = "import os, pwd; os.environ.clear(); pwd.getpwuid = lambda uid: {}[uid]"
    code = f"{nameless}; from flowfabric.cli.options import login_name; print(login_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"uid {os.getuid()}\n"
