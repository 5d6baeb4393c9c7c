"""`ff top`: what waits, runs and is stuck, as it happens."""

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
from flowfabric.cli.answers import answer, as_json, asynchronous, at_url
from flowfabric.cli.connecting import refuse_missing
from flowfabric.cli.frames import fitted, frame
from flowfabric.cli.remedies import with_remedies
from flowfabric.cli.texts import printable
from flowfabric.config import Config
from flowfabric.engine.overview import overview
from flowfabric.errors import Unavailable
from flowfabric.postgres.database import Database, open_database
from flowfabric.schema.migrate import check

EVERY = 1.0


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True,
              help="How many lanes and workers to show; those that matter come first.")  # fmt: skip
@at_url
@as_json
@asynchronous
async def top(once: bool, limit: int, url: str | None, as_json: bool) -> None:
    """Watch lanes, rates, workers and what is stuck, with the remedy. q or ctrl-c leaves.

    A look costs the database some milliseconds, however much waits there. With --once, with --json or where there is no
    terminal, it prints one frame and ends.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff top
    """
    config = Config.read(url=url)
    refuse_missing(config)
    async with open_database(config) as database:
        async with database.connection() as conn:
            await check(conn, config)
            seen = await overview(conn, limit=limit)
        if once or as_json or not sys.stdout.isatty():
            answer(lambda value: tables.rendered(frame(value)), with_remedies(seen), as_json=as_json)
            return
        await _watch(database, limit)


async def _watch(database: Database, limit: int) -> None:
    """Show frame after frame until asked to leave, also while a look takes long."""
    leave = asyncio.Event()
    with _keys(leave), Live(console=tables.console(), screen=True, auto_refresh=False) as screen:
        leaving = asyncio.ensure_future(leave.wait())
        while not leave.is_set():
            looking = asyncio.ensure_future(_look(database, limit, screen.console))
            await asyncio.wait((looking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                screen.update(looking.result(), refresh=True)
                await asyncio.wait((leaving,), timeout=EVERY)
            looking.cancel()


async def _look(database: Database, limit: int, screen: Console) -> RenderableType:
    """What to show now; a database that is away is waited for."""
    try:
        async with database.connection() as conn:
            return fitted(await overview(conn, limit=limit), screen)
    except Unavailable as unavailable:
        return Text(f"{printable(str(unavailable))}\nwaiting for it to come back; q leaves")


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Leave at q, at ctrl-c and at SIGTERM. The terminal is as it was afterwards."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    typed = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if typed is None else termios.tcgetattr(typed)

    def read() -> None:
        assert typed is not None
        if {b"q", b"Q", b"\x03", b""} & {os.read(typed, 1)}:
            leave.set()

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
