"""The pages of the documentation name only things that exist, and link to each other and to the glossary."""

import ast
import re
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from flowfabric import errors
from flowfabric.cli.group import ff
from flowfabric.config import Config, variable
from flowfabric.model import EventKind
from flowfabric.testing.servers import VARIABLE
from tests.sources import ROOT, shown

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
PAGES += sorted((DOCS / "concepts").glob("*.md"))
PAGES.remove(DOCS / "benchmarks.md")  # the benchmarks have their own environment variables
LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NOT_ERRORS = {"execution_id", "execution_deadline"}  # names that look like the code of an error
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
each_linked_page = pytest.mark.parametrize("page", LINKED, ids=shown)


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
    context = click.Context(ff, **ff.context_settings)
    for words in re.findall(r"\bff ((?:[a-z-]+ ?)+)", _code(page)):
        command: click.Command | None = ff
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
            assert command is not None, f"ff {words}"


@each_page
def test_every_option_exists(page: Path) -> None:
    context = click.Context(ff, **ff.context_settings)
    for line in re.findall(r"\bff [a-z][^\n|;]*", _code(page)):
        command, words = _command(context, line)
        known = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert used - known == set(), line


def _command(context: click.Context, line: str) -> tuple[click.Command, list[str]]:
    """The command that a line calls, and the words after it."""
    command: click.Command = ff
    words = line.split("  #")[0].split()[1:]
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])):
        command, words = found, words[1:]
    return command, words


@each_page
def test_every_extra_exists(page: Path) -> None:
    extras = PROJECT["optional-dependencies"].keys()

    for given in re.findall(r"flowfabric\[([\w,]+)\]", page.read_text()):
        assert set(given.split(",")) <= extras, given


def test_the_readme_names_the_packages_of_the_core_install() -> None:
    [said] = re.findall(r"The core install is four small packages:\n(.*?)\. ", (ROOT / "README.md").read_text())
    [*needed] = (re.split(r"[<>=]", each)[0] for each in PROJECT["dependencies"])

    assert re.findall(r"\w+", said.replace("and, for schedules,", "").replace(" and ", " ")) == needed


@each_page
def test_every_variable_exists(page: Path) -> None:
    known = {variable(name) for name in Config.__struct_fields__} | {VARIABLE}

    assert set(re.findall(r"\bFLOWFABRIC_\w+", page.read_text())) - known == set()


@each_page
def test_every_error_code_exists(page: Path) -> None:
    said = set(re.findall(r"`((?:schema|waitpoint|approval|execution|shape|database)_[a-z_]+)`", page.read_text()))

    assert said - errors.by_code().keys() - set(EventKind) - NOT_ERRORS == set()


@each_page
def test_python_is_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        # A block may be part of a coroutine.
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
        ("show-output", "streaming.py"),
    ],
)
def test_a_page_with_an_example_leads_to_it(page: str, example: str) -> None:
    assert f"(../../examples/{example})" in (DOCS / "how-to" / f"{page}.md").read_text()


@each_linked_page
def test_every_link_leads_to_a_file_and_an_anchor_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", sorted((DOCS / "concepts").glob("*.md")), ids=shown)
def test_every_concept_page_links_to_the_glossary(page: Path) -> None:
    assert "](../glossary.md#" in _prose(page)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page: a repeated heading is numbered."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        names = (slug, *(f"{slug}-{number}" for number in range(1, 100)))
        anchors.add(next(name for name in names if name not in anchors))
    return anchors


def _prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _code(page: Path) -> str:
    """The text of a page in backticks or in a code block."""
    text = page.read_text()
    assert text.count("```") % 2 == 0, shown(page)
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)])
