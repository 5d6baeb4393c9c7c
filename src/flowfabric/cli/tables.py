"""Answers for people: tables of many, cards of one. Colours only on a terminal that wants them (`NO_COLOR`)."""

import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from flowfabric.cli.texts import cell

T = TypeVar("T")

ENDLESS = 100_000  # a file is as wide as what is written to it
LEAST = 15  # characters of a long text on a line
A_MOMENT = "2026-05-04 09:00:00 UTC"
WHOLE = {"execution", "instance", "id", "flow"}  # copied into other commands, so never on two lines
STYLES = {
    **dict.fromkeys(["completed", "success", "created", "active", "resumed", "satisfied"], "green"),
    **dict.fromkeys(["failed", "expired", "failed_permanently", "refused"], "red"),
    **dict.fromkeys(["suspended", "paused", "draining", "rate_limited", "waiting_children", "blocked"], "yellow"),
    **dict.fromkeys(["delayed", "pending"], "blue"),
    **dict.fromkeys(["cancelled", "skipped", "closed", "duplicate", "noop"], "dim"),
}


class Column(NamedTuple):
    """A heading, and where its value is found: `created=created_at`, `state=state.public_state`, `lane`."""

    heading: str
    path: Sequence[str]

    @classmethod
    def read(cls, written: str) -> "Column":
        heading, _, path = written.rpartition("=")
        return cls(heading or path.replace("_", " "), path.split("."))

    def of(self, item: Any) -> str:
        """Its text for an item; nothing when there is nothing on the way."""
        for part in self.path:
            if item is None:
                break
            item = item.get(part) if isinstance(item, dict) else operator.attrgetter(part)(item)
        return cell(item)


def console(*, err: bool = False) -> Console:
    """Where people read."""
    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else ENDLESS)


def table(written: Iterable[str], items: Iterable[Any]) -> str:
    """A line for each item below the headings; a column in which nothing stands is left out."""
    columns = [Column.read(each) for each in written]
    lines = [[column.of(item) for column in columns] for item in items]
    headings = [column.heading.upper() for column in columns]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    used = fitting(headings, lines, console().width)
    for number in used:
        whole = columns[number].heading in WHOLE
        made.add_column(headings[number], overflow="fold", no_wrap=whole)
    for line in lines:
        made.add_row(*(_styled(line[number]) for number in used))
    return rendered(made)


def fitting(headings: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that there is something in and room for; what is least important stands on the right, and goes first.

    Long texts are broken to fit; words and moments are not.
    """
    used = [number for number in range(len(headings)) if any(line[number] for line in lines)]
    widths = {number: max(map(len, (headings[number], *(line[number] for line in lines)))) for number in used}
    needs = {
        number: LEAST if wide > len(A_MOMENT) and headings[number].lower() not in WHOLE else wide
        for number, wide in widths.items()
    }
    while len(used) > 2 and sum(needs[number] + 2 for number in used) - 2 > width:
        used.pop()
    return used


def card(written: Iterable[str], item: Any) -> str:
    """A line for each thing there is to say of one item."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for column in map(Column.read, written):
        if said := column.of(item):
            made.add_row(column.heading, _styled(said))
    return rendered(made)


def rendered(what: Any) -> str:
    """As text, for the place it goes to: without the spaces that only fill lines up."""
    to = console()
    with to.capture() as captured:
        to.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def tracked(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items one after the other, with a bar on a terminal that shows how far they are; for one there is none."""
    to = console(err=True)
    hidden = len(items) < 2 or not to.is_terminal
    # What is printed meanwhile goes where it always goes, not to where the bar is.
    with Progress(console=to, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False) as bar:
        yield from bar.track(items, description=doing)


def waiting(for_what: str) -> AbstractContextManager[object]:
    """While this takes, a terminal shows that something happens."""
    to = console(err=True)
    return to.status(for_what) if to.is_terminal else nullcontext()


def _styled(said: str) -> Text:
    return Text(said, style=STYLES.get(said, ""))
