"""Frames on a terminal: text as it comes, other frames on lines of their own, and a progress bar."""

import codecs
import sys
from collections.abc import Mapping
from typing import Any

import click

from flowfabric.cli import formatting
from flowfabric.cli.errors import JSON
from flowfabric.model import Frame, FrameKind, FrameMode, Superseded, Trimmed
from flowfabric.model.streams import BINARY

CLEAR = "\r\x1b[K"
UTF_8 = codecs.getincrementaldecoder("utf-8")


def document(found: Frame | Superseded | Trimmed) -> Mapping[str, object]:
    """A frame, or a mark, as `--json` prints it: with its cursor, and its payload decoded."""
    fields: dict[str, Any] = {"cursor": found.cursor, **formatting.fields(found)}
    if isinstance(found, Frame):
        fields["payload"] = formatting.payload(found.payload, found.encoding)
    return fields


class Screen:
    """Writes frames as they come. Text has no line ends added; error texts go to standard error."""

    def __init__(self) -> None:
        self._as_json = bool(click.get_current_context().meta.get(JSON))
        self._is_in_line = False  # on standard output, or on standard error if `_is_error`
        self._is_error = False
        self._bar = ""
        self._draws = sys.stderr.isatty()
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}  # of bytes, by attempt and type

    def write(self, found: Frame | Superseded | Trimmed) -> None:
        """Write one frame."""
        if self._as_json:
            click.echo(formatting.json(document(found)))
        elif isinstance(found, Superseded):
            self._line(f"-- {_replaced(found)}{_dropped(found)} --", err=True)
        elif isinstance(found, Trimmed):
            self._line(f"-- older output of attempt {found.attempt} has been deleted: retention --", err=True)
        elif found.mode is FrameMode.SUMMARY:
            self._summarize(found)
        elif found.kind in (FrameKind.STDOUT, FrameKind.STDERR) and (text := self._read(found)) is not None:
            self._text(text, err=found.kind is FrameKind.STDERR)
        else:
            self._line(f"{formatting.printable(found.type)}  {_shown(found)}")

    def end(self) -> None:
        """Leave the cursor at the beginning of a line."""
        self._clear()
        self._break()

    def _read(self, found: Frame) -> str | None:
        """Read the text of a frame; bytes too, such as the output of a process, whose frames may divide a character."""
        if found.encoding != BINARY:
            return found.text
        decoder = self._decoders.setdefault((found.attempt, found.type), UTF_8(errors="replace"))
        return decoder.decode(found.payload)

    def _text(self, text: str, *, err: bool) -> None:
        self._clear()
        if err is not self._is_error:
            self._break()
        click.echo(formatting.printable(text, lines=True), nl=False, err=err)
        if text:
            self._is_in_line, self._is_error = not text.endswith("\n"), err
        self._draw()

    def _line(self, text: str, *, err: bool = False) -> None:
        self._clear()
        self._break()
        click.echo(text, err=err)
        self._draw()

    def _summarize(self, found: Frame) -> None:
        percent, message = found.data.get("progress"), found.data.get("message") or ""
        if not isinstance(percent, int | float) or isinstance(percent, bool):
            return
        done = min(max(round(percent), 0), 100)
        self._clear()
        self._bar = f"{formatting.usage_bar(done, 100)}  {formatting.printable(str(message))}".rstrip()
        if not self._draws:
            self._break()
            click.echo(self._bar, err=True)
        self._draw()

    def _draw(self) -> None:
        if self._bar and self._draws and not self._is_in_line:
            click.echo(self._bar, nl=False, err=True)

    def _clear(self) -> None:
        if self._bar and self._draws and not self._is_in_line:
            click.echo(CLEAR, nl=False, err=True)

    def _break(self) -> None:
        if self._is_in_line:
            click.echo(err=self._is_error)
            self._is_in_line = False


def _replaced(found: Superseded) -> str:
    if found.by == found.attempt:
        return f"attempt {found.attempt} was interrupted and runs again"
    return f"attempt {found.by} replaces attempt {found.attempt}"


def _dropped(found: Superseded) -> str:
    return (
        "; what it has put out after its last saved step is void" if found.last_id else "; what it has put out is void"
    )


def _shown(found: Frame) -> str:
    if found.kind is FrameKind.BLOB or found.encoding != "json":
        return f"{found.encoding}, {len(found.payload):,} bytes"
    return formatting.cell(found.payload)
