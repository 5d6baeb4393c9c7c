"""The root command: help, version, exit codes, and suggestions for mistyped commands."""

import inspect
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version

import click
import pytest

from flowfabric.cli.group import ff as group
from tests.cli.conftest import Answer, Run
from tests.cli.test_looks import commands


async def test_it_prints_its_version(ff: Run) -> None:
    assert await ff("--version") == Answer(0, f"ff, version {version('flowfabric')}\n", "")


async def test_it_lists_its_commands(here: Run) -> None:
    code, out, _ = await here("--help")

    assert code == 0
    assert out.startswith("Usage: ff [OPTIONS] COMMAND [ARGS]...\n")
    assert "FLOWFABRIC_URL" in out
    assert [name for name in group.commands if not re.search(rf"^  {name} +[A-Z]", out, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ["", "executions ", "waitpoints ", "budgets "])
async def test_a_list_of_commands_cuts_no_sentence_short(here: Run, name: str) -> None:
    _, out, _ = await here(f"{name}--help")

    listed = out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


def test_every_command_has_help_with_an_example_and_takes_json_and_url() -> None:
    for path, command in commands():
        options = {option for each in command.params for option in each.opts}
        text, *examples = re.split(r"\x08\nExamples?:\n", inspect.cleandoc(command.help or ""))
        assert text, path
        assert f"ff {path}" in "".join(examples), path
        assert "--json" in options, path
        assert "--url" in options or path == "completion", path


async def test_the_option_url_overrides_the_variable(ff: Run, database_url: str) -> None:
    away = "postgresql://127.0.0.1:1/x"

    assert (await ff("lanes", "list", "--url", database_url, FLOWFABRIC_URL=away)).code == 0
    assert (await ff("lanes", "list", "--url", away, FLOWFABRIC_URL=database_url)).code == 1


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o"), ("zsh", "#compdef ff"), ("fish", "complete --no")]
)
async def test_a_shell_can_complete_commands(ff: Run, here: Run, shell: str, part: str) -> None:
    assert part in (await here(f"completion {shell}")).out

    word = "p" if shell == "fish" else "2"
    code, out, _ = await ff(_FF_COMPLETE=f"{shell}_complete", COMP_WORDS="ff lanes p", COMP_CWORD=word)
    assert code == 0
    assert "pause" in out


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("migrat", "migrate"),
        ("lanes puase", "pause"),
        ("executions show", "describe"),
        ("executions retry", "replay"),
        ("lanes register", "configure"),
        ("keys", "signing-keys"),
        ("schedules rm", "delete"),
    ],
)
async def test_an_unknown_command_is_wrong_usage_with_a_suggestion(here: Run, line: str, meant: str) -> None:
    code, out, err = await here(line)

    assert (code, out) == (2, "")
    assert f"No such command '{line.split()[-1]}'. Did you mean '{meant}'?" in err


async def test_a_suggestion_is_made_only_if_a_command_is_similar(here: Run) -> None:
    code, _, err = await here("events show")

    assert code == 2
    assert err.endswith("No such command 'show'.\n")


async def test_every_group_suggests_describe_for_show(here: Run) -> None:
    for name, each in group.commands.items():
        if isinstance(each, click.Group) and "describe" in each.commands:
            assert "Did you mean 'describe'?" in (await here(f"{name} show")).err, name


def test_options_of_one_meaning_have_one_help_text() -> None:
    texts = defaultdict(set)
    for path, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not path.endswith(" tail"):
                texts[option.opts[0]].add(option.help)

    for name in ("--by", "--cursor", "--json", "--reason", "--url"):
        assert len(texts[name]) == 1, name
    assert texts["--limit"] == {"Show at most this many.", _option("top", "--limit").help}
    assert all("(tenant)" in (text or "") for text in texts["--namespace"])


def _option(path: str, name: str) -> click.Option:
    [command] = [each for found, each in commands() if found == path]
    [option] = [each for each in command.params if name in each.opts]
    assert isinstance(option, click.Option)
    return option


@pytest.mark.parametrize("url", ["mysql://me:hunter2@h/x", "postgresql://me:hunter2@h:port/x"])
async def test_a_bad_url_is_one_line_without_the_password(ff: Run, url: str) -> None:
    code, out, err = await ff("migrate", FLOWFABRIC_URL=url)

    assert (code, out) == (1, "")
    assert err.startswith("bad_setting: FLOWFABRIC_URL ")
    assert "hunter2" not in err
    assert err.count("\n") == 1


async def test_a_bad_setting_is_one_line(ff: Run) -> None:
    code, out, err = await ff("migrate", FLOWFABRIC_POOL_SIZE="many")

    assert (code, out) == (1, "")
    assert err.startswith("bad_setting: FLOWFABRIC_POOL_SIZE ")
    assert "'many'" in err
    assert err.count("\n") == 1


async def test_an_unreachable_server_is_one_line(ff: Run) -> None:
    code, out, err = await ff("migrate", FLOWFABRIC_URL="postgresql://me:hunter2@127.0.0.1:1/x")

    assert (code, out) == (1, "")
    assert err.startswith("database_unavailable: ")
    assert err.count("\n") == 1
    assert "hunter2" not in err


def test_without_its_packages_it_says_how_to_install_them() -> None:
    without = "import sys; sys.modules['click'] = None; from flowfabric.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ff needs the package click: pip install 'flowfabric[cli]'\n"
