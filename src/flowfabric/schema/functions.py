"""The SQL functions as they are installed: with the declarations that all of them share."""

import functools
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

FUNCTION = re.compile(
    r"^create or replace function flowfabric\.(?P<name>\w+)(?P<signature>\((?:(?!\nlanguage ).)*)\nlanguage "
    r"(?P<language>\w+)(?P<declared>[^$]*) as \$\$",
    re.DOTALL | re.MULTILINE,
)

KEEPS_ITS_PLANS = " set plan_cache_mode = force_generic_plan"
"""What is set for the calls of an operation that changes something: see docs/decisions/0005-kept-plans.md."""

USES_INDEXES = " set enable_seqscan = off"
"""What is set for the calls of every operation. The clock reads nothing, and is called by all the others."""

BARE_NAMES_ARE_COLUMNS = "#variable_conflict use_column"
"""A parameter is written with the name of its function, so a bare name that is also a column is the column."""


@functools.cache
def functions() -> Sequence[str]:
    """Return the text of every SQL file with functions, as it is installed, in order."""
    return [installed(file.read_text()) for file in files("engine") if file.name.endswith(".sql")]


def installed(text: str) -> str:
    """Add the shared declarations to the functions of a text. No line moves, so errors name the lines of the file."""
    return FUNCTION.sub(_with_declarations, text)


def files(folder: str) -> Iterator[Traversable]:
    """Return the files of a folder of the package and of its subfolders, ordered by name."""
    return _walk(resources.files("flowfabric").joinpath(folder))


def _with_declarations(function: re.Match[str]) -> str:
    declared, settings = function["declared"], ""
    volatility = {"stable", "immutable"} & set(declared.split())
    if not function["name"].startswith("_") and volatility != {"immutable"} and function["name"] != "clock":
        settings = USES_INDEXES if volatility else KEEPS_ITS_PLANS + USES_INDEXES
    names = BARE_NAMES_ARE_COLUMNS if function["language"] == "plpgsql" else ""
    return f"{function[0].removesuffix(f'{declared} as $$')}{declared}{settings} as $${names}"


def _walk(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry
