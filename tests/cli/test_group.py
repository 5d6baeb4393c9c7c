"""The command itself: help, version, and how it fails."""

import inspect
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.cli.conftest import Answer, Run
from tests.cli.test_looks import commands


async def test_it_knows_its_version(ff: Run) -> None:
    assert await ff("--version") == Answer(0, f"ff, version {version('flowfabric')}\n", "")


async def test_it_lists_its_commands(here: Run) -> None:
    code, out, _ = await here("--help")

    assert code == 0
    assert out.startswith("Usage: ff [OPTIONS] COMMAND [ARGS]...\n")
    assert "FLOWFABRIC_URL" in out
    assert re.search(r"^  migrate +Bring the database to this version\.$", out, re.MULTILINE)


@pytest.mark.parametrize("group", ["", "executions ", "waitpoints ", "budgets "])
async def test_a_list_of_commands_cuts_no_sentence_short(here: Run, group: str) -> None:
    _, out, _ = await here(f"{group}--help")

    listed = out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


def test_every_command_has_help_with_an_example_and_answers_in_json() -> None:
    for path, command in commands():
        options = {option for each in command.params for option in each.opts}
        said, _, example = inspect.cleandoc(command.help or "").partition("\b\nExample:\n")
        assert said, path
        assert f"ff {path}" in example, path
        assert "--json" in options, path
        assert "--url" in options or path == "completion", path


async def test_a_url_as_an_option_counts_before_the_variable(ff: Run, database_url: str) -> None:
    away = "postgresql://127.0.0.1:1/x"

    assert (await ff("lanes", "list", "--url", database_url, FLOWFABRIC_URL=away)).code == 0
    assert (await ff("lanes", "list", "--url", away, FLOWFABRIC_URL=database_url)).code == 1


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o"), ("zsh", "#compdef ff"), ("fish", "complete --no")]
)
async def test_a_shell_can_learn_to_complete_it(ff: Run, here: Run, shell: str, part: str) -> None:
    assert part in (await here(f"completion {shell}")).out

    word = "p" if shell == "fish" else "2"
    code, out, _ = await ff(_FF_COMPLETE=f"{shell}_complete", COMP_WORDS="ff lanes p", COMP_CWORD=word)
    assert code == 0
    assert "pause" in out


async def test_a_command_that_does_not_exist_is_a_mistake_of_the_caller(ff: Run) -> None:
    code, out, err = await ff("migrat")

    assert (code, out) == (2, "")
    assert "No such command 'migrat'" in err


@pytest.mark.parametrize("url", ["mysql://me:hunter2@h/x", "postgresql://me:hunter2@h:port/x"])
async def test_a_bad_url_is_one_line_without_the_password(ff: Run, url: str) -> None:
    code, out, err = await ff("migrate", FLOWFABRIC_URL=url)

    assert (code, out) == (1, "")
    assert err.startswith("bad_setting: FLOWFABRIC_URL cannot be read; it reads postgresql://")
    assert "hunter2" not in err
    assert err.count("\n") == 1


async def test_a_bad_setting_is_one_line(ff: Run) -> None:
    assert await ff("migrate", FLOWFABRIC_POOL_SIZE="many") == Answer(
        1, "", "bad_setting: FLOWFABRIC_POOL_SIZE is 'many': Expected `int`, got `str`\n"
    )


async def test_a_server_that_is_not_there_is_one_line(ff: Run) -> None:
    code, out, err = await ff("migrate", FLOWFABRIC_URL="postgresql://me:hunter2@127.0.0.1:1/x")

    assert (code, out) == (1, "")
    assert err.startswith("database_unavailable: cannot connect to 127.0.0.1: ")
    assert err.endswith("; check FLOWFABRIC_URL\n")
    assert "hunter2" not in err


def test_without_its_packages_it_says_how_to_get_them() -> None:
    without = "import sys; sys.modules['click'] = None; from flowfabric.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ff needs the package click: pip install 'flowfabric[cli]'\n"
