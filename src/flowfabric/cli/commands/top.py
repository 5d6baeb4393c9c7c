"""`ff top`: a live view of lanes, rates, workers and stuck executions."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from flowfabric.cli import tables
from flowfabric.cli.connection import require_database
from flowfabric.cli.formatting import printable
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result, run_async
from flowfabric.cli.remedies import with_remedies
from flowfabric.cli.top_screen import fitted, whole
from flowfabric.config import Config
from flowfabric.engine.overview import overview
from flowfabric.errors import Unavailable
from flowfabric.postgres.database import Database, open_database
from flowfabric.schema.migrate import check

REFRESH_SECONDS = 1.0


@click.command()
@click.option("--once", is_flag=True, help="Print the overview once and exit.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True,
              help="Show at most this many lanes and workers, busy lanes and lost workers first.")  # fmt: skip
@url_option
@json_option
@run_async
async def top(once: bool, limit: int, url: str | None, as_json: bool) -> None:
    """Watch lanes, rates, workers and stuck executions, with what to do about each. Press q or ctrl-c to quit.

    Refreshes every second; a refresh costs the database a few milliseconds, however large the backlog is. With --once,
    with --json, or if standard output is not a terminal, it prints the overview once and exits.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff top
    """
    config = Config.read(url=url)
    require_database(config)
    async with open_database(config) as database:
        async with database.connection() as conn:
            await check(conn, config)
            seen = await overview(conn, limit=limit)
        if once or as_json or not sys.stdout.isatty():
            print_result(lambda value: tables.rendered(whole(value)), with_remedies(seen), as_json=as_json)
            return
        await _watch(database, limit)


async def _watch(database: Database, limit: int) -> None:
    """Refresh the screen until a key or a signal ends it, even while a query is slow."""
    quit_event = asyncio.Event()
    with _quit_on_key(quit_event), Live(console=tables.console(), screen=True, auto_refresh=False) as screen:
        quitting = asyncio.ensure_future(quit_event.wait())
        while not quit_event.is_set():
            reading = asyncio.ensure_future(_read(database, limit, screen.console))
            await asyncio.wait((reading, quitting), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                screen.update(reading.result(), refresh=True)
                await asyncio.wait((quitting,), timeout=REFRESH_SECONDS)
            reading.cancel()


async def _read(database: Database, limit: int, screen: Console) -> RenderableType:
    """The overview as it is now, or why the database is unreachable."""
    try:
        async with database.connection() as conn:
            return fitted(await overview(conn, limit=limit), screen)
    except Unavailable as unavailable:
        return Text(f"{printable(str(unavailable))}\nretrying; press q to quit")


@contextlib.contextmanager
def _quit_on_key(quit_event: asyncio.Event) -> Iterator[None]:
    """Set the event on q, ctrl-c or SIGTERM. Restores the terminal afterwards."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, quit_event.set)
    typed = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if typed is None else termios.tcgetattr(typed)

    def read() -> None:
        assert typed is not None
        if {b"q", b"Q", b"\x03", b""} & {os.read(typed, 1)}:
            quit_event.set()

    try:
        if typed is not None:
            tty.setcbreak(typed)
            loop.add_reader(typed, read)
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        if typed is not None and before is not None:
            loop.remove_reader(typed)
            termios.tcsetattr(typed, termios.TCSADRAIN, before)
