"""The pages people work from name only what exists."""

import ast
import re
import textwrap
from pathlib import Path

import click
import pytest

from flowfabric import errors
from flowfabric.cli.group import ff
from flowfabric.config import Config, variable
from flowfabric.testing.servers import VARIABLE
from tests.sources import ROOT, shown

DOCS = ROOT / "docs"
PAGES = [DOCS / "quickstart.md", DOCS / "guarantees.md", DOCS / "operating.md", *sorted((DOCS / "how-to").glob("*.md"))]
EXAMPLES = ROOT / "examples"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def test_every_promise_names_a_test_that_exists() -> None:
    page = (DOCS / "guarantees.md").read_text()
    promises, _, _ = page.partition("## Not promised")
    rows = [row for row in re.findall(r"^\| (.*) \|$", promises, re.MULTILINE) if not row.startswith("Promise")]
    assert len(rows) > 20

    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", row)
        assert named, row
        assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


@each_page
def test_every_command_exists(page: Path) -> None:
    context = click.Context(ff)
    for words in re.findall(r"\bff ((?:[a-z-]+ ?)+)", _code(page)):
        command: click.Command | None = ff
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
            assert command is not None, f"ff {words}"


@each_page
def test_every_variable_exists(page: Path) -> None:
    known = {variable(name) for name in Config.__struct_fields__} | {VARIABLE}

    assert set(re.findall(r"\bFLOWFABRIC_\w+", page.read_text())) - known == set()


@each_page
def test_every_refusal_exists(page: Path) -> None:
    said = set(re.findall(r"`((?:schema|waitpoint|approval|execution|shape|database)_[a-z_]+)`", page.read_text()))

    assert said - errors.by_code().keys() - {"execution_id"} == set()


@each_page
def test_python_is_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        # Lines out of a coroutine stand alone on a page.
        ast.parse("async def page():\n" + textwrap.indent(block, "    "))


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("test-your-tasks", "testing/test_orders.py"),
        ("use-from-fastapi", "fastapi_app.py"),
        ("use-from-django", "sync_views.py"),
        ("retry", "retries.py"),
        ("wait-for-a-person", "approval.py"),
        ("limit-what-is-spent", "budget.py"),
        ("submit-in-your-own-transaction", "transaction.py"),
    ],
)
def test_a_page_with_an_example_leads_to_it(page: str, example: str) -> None:
    assert f"(../../examples/{example})" in (DOCS / "how-to" / f"{page}.md").read_text()


def _code(page: Path) -> str:
    """What stands in backticks or in a block."""
    text = page.read_text()
    assert text.count("```") % 2 == 0, shown(page)
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)])
