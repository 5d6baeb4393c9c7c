"""The examples of the reference pages, cut out of the files in `docs/examples`, which the type checkers read.

A comment that consists of names, such as `# lanes.pause_lane`, begins the example of these names. It ends at the next
such comment, where the indentation ends, or at the module level at two blank lines.
"""

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parent / "examples"
MARK = re.compile(r"( *)# ((?:\w+\.)?\w+(?:, (?:\w+\.)?\w+)*)")


@functools.cache
def snippets(file: str) -> dict[str, str]:
    """The examples of one file, by the name of what they show."""
    lines = (EXAMPLES / f"{file}.py").read_text().splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        if match := MARK.fullmatch(line):
            snippet = textwrap.dedent("\n".join(_lines(lines[number + 1 :], len(match[1])))).strip()
            for name in match[2].split(", "):
                if name in found:
                    raise ValueError(f"{file}.py has two examples of {name}")
                found[name] = snippet
    return found


def _lines(lines: list[str], indent: int) -> Iterator[str]:
    for number, line in enumerate(lines):
        is_outside = line.strip() and len(line) - len(line.lstrip()) < indent
        is_over = indent == 0 and lines[number : number + 2] == ["", ""]
        if is_outside or is_over or MARK.fullmatch(line):
            return
        yield line
