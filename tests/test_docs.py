"""The reference pages match the code."""

import subprocess
import sys
from pathlib import Path

import click

from flowfabric import errors
from flowfabric.config import Config, variable
from tests import sources
from tests.cli.test_looks import commands

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, "-m", "docs.generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_every_error_is_in_the_docs() -> None:
    page = (REFERENCE / "errors.md").read_text()

    assert [code for code, kind in errors.by_code().items() if f"| `{kind.__name__}` | `{code}` |" not in page] == []


def test_every_kind_of_event_is_in_the_docs() -> None:
    page = (REFERENCE / "events.md").read_text()
    kinds = set().union(*(function.says("emits") for function in sources.sql_functions()))

    assert [kind for kind in kinds if f"| `{kind}` |" not in page] == []


def test_every_sql_function_that_is_public_is_in_the_docs_with_its_header() -> None:
    page = (REFERENCE / "sql.md").read_text()
    for function in sources.sql_functions():
        _, heading, section = page.partition(f"\n### {function.name}\n")
        section = section.partition("\n### ")[0]
        assert bool(heading) != function.is_internal, function.name
        assert not heading or {clause for clause in function.clauses if f"- **{clause}** " not in section} == set()


def test_every_command_and_option_is_in_the_docs() -> None:
    page = (REFERENCE / "commands.md").read_text()

    for path, command in commands():
        assert f"`ff {path}" in page, path
        shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        assert [option for each in shown for option in each.opts if f"`{option}" not in page] == [], path


def test_every_setting_is_in_the_docs() -> None:
    page = (REFERENCE / "settings.md").read_text()

    assert [name for name in Config.__struct_fields__ if f"| `{name}` | `{variable(name)}` |" not in page] == []
