"""Options that commands share, each with one name and one meaning everywhere."""

import getpass
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click
import msgspec

from flowfabric import durations
from flowfabric.ids import shown

F = TypeVar("F", bound=Callable[..., Any])


def span(text: str | timedelta) -> timedelta:
    """A span of time, such as 30s."""
    try:
        return durations.read_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def moment(text: str) -> datetime:
    """A moment with its time zone, such as 2026-05-04T09:00:00Z."""
    try:
        return durations.read_timestamp(datetime.fromisoformat(text))
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is no moment; write one like 2026-05-04T09:00:00Z") from None


def time(text: str) -> timedelta | datetime:
    """A span from now, or a moment."""
    return moment(text) if text[4:5] == "-" else span(text)


def tag(text: str) -> tuple[str, str]:
    """A tag and its value: billing.customer=4711."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{shown(text)} is no tag; write key=value, such as billing.customer=4711")
    return key, value


def words(text: str) -> list[str]:
    """Words with commas between them: reports,mail."""
    return [word for word in map(str.strip, text.split(",")) if word]


class ReadFile(click.File):
    """A file to read bytes from; `-` is standard input."""

    def __init__(self) -> None:
        super().__init__("rb")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "\0" in value:
            self.fail(f"{shown(value)} is no name of a file: it holds U+0000", param, ctx)
        return super().convert(value, param, ctx)


def json(text: str) -> Any:
    """A value in JSON; `-` reads it from standard input."""
    given = sys.stdin.buffer.read() if text == "-" else text
    try:
        return msgspec.json.decode(given)
    except (ValueError, RecursionError) as error:
        how = 'in a shell, quote it: \'{"name": "Ada"}\''
        raise click.BadParameter(f"{_beginning(given)} is not JSON: {error}; {how}") from None


def json_object(text: str) -> Mapping[str, Any]:
    """An object in JSON; `-` reads it from standard input."""
    found = json(text)
    if not isinstance(found, dict):
        raise click.BadParameter(f'{_beginning(text)} is no object; write one, such as {{"name": "Ada"}}')
    return found


def _beginning(text: str | bytes) -> str:
    return shown(text.decode(errors="replace") if isinstance(text, bytes) else text)


def paged(command: F) -> F:
    """A list that comes page by page."""
    limit = click.option("--limit", type=click.IntRange(0, 1_000), default=50, show_default=True,
                         help="How many at most.")  # fmt: skip
    cursor = click.option("--cursor", help="Go on where a page ended: what it said behind `more`.")
    return limit(cursor(command))


def login_name() -> str:
    """Who is logged in; in a container, where a user may have no name, the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def acting(command: F) -> F:
    """Something that somebody does, who is then in the log."""
    by = click.option("--by", metavar="NAME", default=login_name, show_default="your login name",
                      help="Who does it; the log keeps it.")  # fmt: skip
    return by(command)


def within(command: F) -> F:
    """What can be narrowed to a lane and a namespace."""
    lane = click.option("--lane", help="Only of this lane.")
    namespace = click.option("--namespace", help="Only of this namespace.")
    return lane(namespace(command))


of_namespace = click.option("--namespace", default="default", show_default=True, help="Whose it is.")
one_execution = click.argument("execution")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given: what is left out stays as it is."""
    return {option: value for option, value in options.items() if value not in (None, ())}


def _read_ids(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> list[str]:
    ids = [line for each in given for line in (_lines() if each == "-" else [each])]
    return list(dict.fromkeys(ids))


def _lines() -> list[str]:
    return sys.stdin.buffer.read().decode(errors="replace").split()


many_executions = click.argument("executions", nargs=-1, required=True, callback=_read_ids, metavar="EXECUTION...")
