"""Tables, cards and progress for people. Colours only on a terminal, and never with `NO_COLOR`."""

import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from flowfabric.cli.formatting import cell

T = TypeVar("T")

UNLIMITED = 100_000  # width when the output is not a terminal: no line of a file is broken
NARROWEST = 15  # characters that a column with long texts gets at least
A_TIMESTAMP = "2026-05-04 09:00:00 UTC"
UNBROKEN = {
    "execution",
    "instance",
    "id",
    "flow",
    "parent",
}  # copied into other commands, so never broken over two lines
STYLES = {
    **dict.fromkeys(["completed", "success", "created", "active", "resumed", "satisfied"], "green"),
    **dict.fromkeys(["failed", "expired", "failed_permanently", "refused"], "red"),
    **dict.fromkeys(["suspended", "paused", "draining", "rate_limited", "waiting_dependencies", "blocked"], "yellow"),
    **dict.fromkeys(["delayed", "pending"], "blue"),
    **dict.fromkeys(["cancelled", "skipped", "closed", "duplicate", "noop"], "dim"),
}


class Column(NamedTuple):
    """A heading and the path of its value: `created=created_at`, `state=state.public_state`, `lane`."""

    heading: str
    path: Sequence[str]

    @classmethod
    def read(cls, written: str) -> "Column":
        heading, _, path = written.rpartition("=")
        return cls(heading or path.replace("_", " "), path.split("."))

    def of(self, item: Any) -> str:
        """The text of this column for an item; empty if any part of the path is `None`."""
        for part in self.path:
            if item is None:
                break
            item = item.get(part) if isinstance(item, dict) else operator.attrgetter(part)(item)
        return cell(item)


def console(*, err: bool = False) -> Console:
    """Standard output or standard error, for people."""
    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else UNLIMITED)


def table(written: Iterable[str], items: Iterable[Any]) -> str:
    """A heading and a line for each item. A column that is empty in every line is left out."""
    columns = [Column.read(each) for each in written]
    lines = [[column.of(item) for column in columns] for item in items]
    headings = [column.heading.upper() for column in columns]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    used = fitting(headings, lines, console().width)
    for number in used:
        unbroken = columns[number].heading in UNBROKEN
        made.add_column(headings[number], overflow="fold", no_wrap=unbroken)
    for line in lines:
        made.add_row(*(_styled(line[number]) for number in used))
    return rendered(made)


def fitting(headings: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that are not empty and fit. The rightmost columns matter least and are dropped first.

    Long texts are wrapped to fit; single words and timestamps are not.
    """
    used = [number for number in range(len(headings)) if any(line[number] for line in lines)]
    widths = {number: max(map(len, (headings[number], *(line[number] for line in lines)))) for number in used}
    needs = {
        number: NARROWEST if wide > len(A_TIMESTAMP) and headings[number].lower() not in UNBROKEN else wide
        for number, wide in widths.items()
    }
    while len(used) > 2 and sum(needs[number] + 2 for number in used) - 2 > width:
        used.pop()
    return used


def card(written: Iterable[str], item: Any) -> str:
    """One item: a line for each value that is not empty."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for column in map(Column.read, written):
        if text := column.of(item):
            made.add_row(column.heading, _styled(text))
    return rendered(made)


def rendered(what: Any) -> str:
    """A rich object as text for standard output, without trailing spaces."""
    to = console()
    with to.capture() as captured:
        to.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def progress(items: Sequence[T], doing: str) -> Iterator[T]:
    """Iterate with a progress bar, if standard error is a terminal and there are at least two items."""
    to = console(err=True)
    hidden = len(items) < 2 or not to.is_terminal
    # Other output keeps its own stream instead of being redirected to the bar's.
    with Progress(console=to, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False) as bar:
        yield from bar.track(items, description=doing)


def spinner(doing: str) -> AbstractContextManager[object]:
    """Show a spinner while something takes time, if standard error is a terminal."""
    to = console(err=True)
    return to.status(doing) if to.is_terminal else nullcontext()


def _styled(text: str) -> Text:
    return Text(text, style=STYLES.get(text, ""))
