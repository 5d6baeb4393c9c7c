"""Running a command and printing its result. A command names its columns; table, card and JSON follow from that.

    @lanes.command("list")
    @paged
    @prints("lane=name", "state", "waiting=waiting_count", empty="no lanes yet")
    async def list_lanes(app: App, limit: int, cursor: str | None) -> Page[Lane]: ...

A page is printed as a table and any other value as a card, unless `sentence` or `layout` formats it. An async generator
is printed item by item. With `--json` the returned value is one document on one line; a generator prints one per item.
"""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, ParamSpec

import click

from flowfabric.app import App
from flowfabric.cli import formatting, tables
from flowfabric.cli.connection import app_at, connected
from flowfabric.cli.errors import FAILED
from flowfabric.cli.options import json_option, url_option, watch_option
from flowfabric.cli.watching import Watching, watch
from flowfabric.model import Page

P = ParamSpec("P")
Command = Callable[..., Any]


def prints(
    *columns: str,
    empty: str = "nothing found",
    sentence: Callable[[Any], str] | None = None,
    layout: Callable[[Any], str] | None = None,
    watching: Watching | None = None,
) -> Callable[[Command], Callable[..., None]]:
    """Turn a coroutine that takes an open app into a command that prints its result; adds `--url` and `--json`.

    With `watching` also `--watch`, which prints it again and again.
    """

    def text(value: object) -> str:
        if sentence:
            return formatting.printable(sentence(value), lines=True)
        if layout:
            return layout(value)
        if isinstance(value, Page):
            return page_table(columns, value.items, value, empty)
        return tables.card(columns, value)

    def decorate(command: Command) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*, url: str | None, as_json: bool, watch: bool = False, **options: Any) -> None:
            app = app_at(url, options.pop("app", None))

            def show(value: object) -> None:
                print_result(text, value, as_json=as_json)

            if watch and watching:
                as_lines = as_json or not sys.stdout.isatty()
                asyncio.run(_watch(app, command, watching, text, show, options, as_lines=as_lines))
            else:
                asyncio.run(_run(app, command, show, options))
            if click.get_current_context().meta.get(FAILED):
                click.get_current_context().exit(1)

        return url_option(json_option(watch_option(run) if watching else run))

    return decorate


async def _run(app: App, command: Command, show: Callable[[object], None], options: dict[str, Any]) -> None:
    async with connected(app) as app:
        if inspect.isasyncgenfunction(command):
            async for item in command(app, **options):
                show(item)
        elif (value := await command(app, **options)) is not None:
            show(value)


async def _watch(
    app: App,
    command: Command,
    watching: Watching,
    text: Callable[[Any], str],
    show: Callable[[object], None],
    options: dict[str, Any],
    *,
    as_lines: bool,
) -> None:
    async with connected(app) as app:
        await watch(lambda: command(app, **options), text, watching, show=show, as_lines=as_lines)


def page_table(columns: Iterable[str], lines: Collection[Any], page: Page[Any], empty: str) -> str:
    """A page as a table, or `empty` if it has no lines, and how to get the next page."""
    return "\n".join(filter(None, [tables.table(columns, lines) if lines else empty, next_page(page.next_cursor)]))


def next_page(cursor: str | None) -> str:
    """How to get the next page, if there is one."""
    return f"more: --cursor {formatting.printable(cursor)}" if cursor else ""


def run_async(command: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Turn a coroutine into a command."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(command(*args, **kwargs))

    return run


def print_result(text: str | Callable[[Any], str], value: object, *, as_json: bool) -> None:
    """Print the value as JSON, or its text."""
    if as_json:
        click.echo(formatting.json(value))
    else:
        click.echo(text if isinstance(text, str) else text(value))
