"""How commands run and answer. A command says what it shows; table, card and JSON follow from that.

    @lanes.command("list")
    @paged
    @answering("lane=name", "state", "waiting=waiting_count", none="no lanes yet")
    async def list_lanes(app: App, limit: int, cursor: str | None) -> Page[Lane]: ...

What it returns is printed: a page as a table, anything else as a card, or in the words of `says`, or laid out
by `shows`. What it yields is printed one by one, as it comes. With `--json` the same value is one document on one line;
of what is yielded, a line each.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, ParamSpec

import click

from flowfabric.app import App
from flowfabric.cli import tables, texts
from flowfabric.cli.connecting import at, opened
from flowfabric.cli.refusals import FAILED, JSON
from flowfabric.model import Page

P = ParamSpec("P")
Command = Callable[..., Any]


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON] = value  # a refusal has to know, wherever it comes from
    return value


as_json = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_note_json, help="Answer in JSON, and refuse in it."
)
at_url = click.option(
    "--url",
    metavar="URL",
    help="Where Postgres is, instead of FLOWFABRIC_URL; with neither, the embedded one in ./.flowfabric.",
)


def answering(
    *columns: str,
    none: str = "nothing",
    says: Callable[[Any], str] | None = None,
    shows: Callable[[Any], str] | None = None,
) -> Callable[[Command], Callable[..., None]]:
    """Make a coroutine that takes an open app a command that answers; the options `--url` and `--json` come with it."""

    def text(value: object) -> str:
        if says:
            return texts.printable(says(value), lines=True)
        if shows:
            return shows(value)
        if isinstance(value, Page):
            return listed(columns, value.items, value, none)
        return tables.card(columns, value)

    def decorate(command: Command) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*, url: str | None, as_json: bool, **options: Any) -> None:
            app = at(url, options.pop("app", None))
            asyncio.run(_respond(app, command, lambda value: answer(text, value, as_json=as_json), options))
            if click.get_current_context().meta.get(FAILED):
                click.get_current_context().exit(1)

        return at_url(as_json(run))

    return decorate


async def _respond(app: App, command: Command, say: Callable[[object], None], options: dict[str, Any]) -> None:
    async with opened(app) as app:
        if inspect.isasyncgenfunction(command):
            async for item in command(app, **options):
                say(item)
        elif (value := await command(app, **options)) is not None:
            say(value)


def listed(columns: Iterable[str], lines: Collection[Any], page: Page[Any], none: str) -> str:
    """A page as a table of these lines, or that there are none, and how to see what follows it."""
    return "\n".join(filter(None, [tables.table(columns, lines) if lines else none, more(page)]))


def more(page: Page[Any]) -> str:
    """How to see what follows a page, if something does."""
    return f"more: --cursor {texts.printable(page.next_cursor)}" if page.next_cursor else ""


def asynchronous(command: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A command that is a coroutine."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(command(*args, **kwargs))

    return run


def answer(text: str | Callable[[Any], str], value: object, *, as_json: bool) -> None:
    """Print one of the two."""
    if as_json:
        click.echo(texts.json(value))
    else:
        click.echo(text if isinstance(text, str) else text(value))
