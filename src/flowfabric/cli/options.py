"""Options and arguments that commands share: one name and one help text for one meaning."""

import getpass
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import click
import msgspec

from flowfabric import durations
from flowfabric.app import App
from flowfabric.cli.errors import JSON
from flowfabric.cli.load_app import load_app
from flowfabric.ids import shown

F = TypeVar("F", bound=Callable[..., Any])

A_CENTURY = timedelta(days=36_525)


def duration(text: str | timedelta) -> timedelta:
    """Parse a duration, such as 30s."""
    try:
        return durations.read_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def timestamp(text: str) -> datetime:
    """Parse a timestamp with its time zone, such as 2026-05-04T09:00:00Z."""
    try:
        return durations.read_timestamp(datetime.fromisoformat(text))
    except ValueError:
        raise click.BadParameter(
            f"{shown(text)} is invalid; use a timestamp with a time zone, such as 2026-05-04T09:00:00Z"
        ) from None


def when(text: str) -> timedelta | datetime:
    """Parse a duration from now, or a timestamp."""
    return timestamp(text) if text[4:5] == "-" else duration(text)


def moment(text: str) -> timedelta | datetime:
    """Parse a duration before now, a date or a timestamp, in UTC unless it has a time zone."""
    if text[4:5] != "-":
        return duration(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{shown(text)} is invalid; use a duration (1h), a date (2026-01-31) or a timestamp (2026-01-31T10:00)"
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def at_moment(given: timedelta | datetime | None, now: datetime) -> datetime | None:
    """The time that `moment` has parsed."""
    return now - min(given, A_CENTURY) if isinstance(given, timedelta) else given


def tag(text: str) -> tuple[str, str]:
    """Parse a tag: billing.customer=4711."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{shown(text)} is invalid; use key=value, such as billing.customer=4711")
    return key, value


def words(text: str) -> list[str]:
    """Parse names separated by commas: reports,mail."""
    return [word for word in map(str.strip, text.split(",")) if word]


class ReadFile(click.File):
    """A file to read bytes from; `-` is standard input."""

    def __init__(self) -> None:
        super().__init__("rb")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "\0" in value:
            self.fail(f"{shown(value)} is invalid because it contains U+0000; use another file name", param, ctx)
        return super().convert(value, param, ctx)


def json(text: str) -> Any:
    """Parse JSON; `-` reads it from standard input."""
    given = sys.stdin.buffer.read() if text == "-" else text
    try:
        return msgspec.json.decode(given)
    except (ValueError, RecursionError) as error:
        how = 'quote JSON in a shell: \'{"name": "Ada"}\''
        raise click.BadParameter(f"{_beginning(given)} is invalid JSON: {error}; {how}") from None


def json_object(text: str) -> Mapping[str, Any]:
    """Parse a JSON object; `-` reads it from standard input."""
    found = json(text)
    if not isinstance(found, dict):
        raise click.BadParameter(f'{_beginning(text)} is invalid; use a JSON object, such as {{"name": "Ada"}}')
    return found


def _beginning(text: str | bytes) -> str:
    return shown(text.decode(errors="replace") if isinstance(text, bytes) else text)


def login_name() -> str:
    """The login name; the user id if the user has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON] = value  # so that errors are printed as JSON, wherever they are raised
    return value


def _load(_ctx: click.Context, _param: click.Parameter, place: str | None) -> App | None:
    return None if place is None else load_app(place)


def _read_ids(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> list[str]:
    ids = [line for each in given for line in (_stdin_words() if each == "-" else [each])]
    return list(dict.fromkeys(ids))


def _stdin_words() -> list[str]:
    return sys.stdin.buffer.read().decode(errors="replace").split()


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_set_json, help="Print JSON instead of text."
)
url_option = click.option(
    "--url",
    metavar="URL",
    help="Postgres to connect to.  [default: FLOWFABRIC_URL, or the embedded Postgres in ./.flowfabric]",
)
app_option = click.option(
    "--app",
    callback=_load,
    metavar="FILE.py:APP",
    help="Load this app, check the arguments, and take lane, retries, needs and so on from the task.",
)
decoding_app_option = click.option(
    "--app",
    callback=_load,
    metavar="FILE.py:APP",
    help="Load this app, and show what its codec has encoded. Without it only the size and the codec are shown.",
)
by_option = click.option(
    "--by",
    metavar="NAME",
    default=login_name,
    show_default="your login name",
    help="Who is doing this; recorded in the event log.",
)
_reason = partial(click.option, "--reason", metavar="TEXT", help="Why you are doing this; recorded in the event log.")
reason_option = _reason()
required_reason_option = _reason(required=True)
watch_option = click.option(
    "--watch",
    is_flag=True,
    help="Refresh every second; press q or ctrl-c to quit. With --json, or if standard output is not a terminal, print "
    "it again whenever a state has changed.",
)
limit_option = click.option(
    "--limit", type=click.IntRange(0, 1_000), default=50, show_default=True, help="Show at most this many."
)
execution_argument = click.argument("execution")
executions_argument = click.argument("executions", nargs=-1, required=True, callback=_read_ids, metavar="EXECUTION...")


def paged(command: F) -> F:
    """The options of a list that is printed page by page."""
    cursor = click.option("--cursor", help="Show the next page: the value that the previous one printed after `more:`.")
    return limit_option(cursor(command))


def namespace_option(noun: str, default: str = "default") -> Callable[[F], F]:
    """The namespace that something belongs to."""
    return click.option("--namespace", default=default, show_default=True, help=f"Namespace (tenant) of the {noun}.")


def namespace_filter(nouns: str) -> Callable[[F], F]:
    """Narrow a list to a namespace."""
    return click.option("--namespace", help=f"Only {nouns} in this namespace (tenant).")


def lane_and_namespace_filters(nouns: str) -> Callable[[F], F]:
    """Narrow a list to a lane and a namespace."""

    def decorate(command: F) -> F:
        return click.option("--lane", help=f"Only {nouns} in this lane (queue).")(namespace_filter(nouns)(command))

    return decorate


def decorated(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """A command with these options, in the order in which its help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


def default_of(text: str, *, creating: bool) -> str:
    """A default for the help of an option that create and change share: change keeps what is not given."""
    return f"  [default: {text}]" if creating else ""


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {option: value for option, value in options.items() if value not in (None, ())}
