"""`ff top`: a live view of lanes, rates, workers and stuck executions."""

import sys
from functools import partial

import click
from rich.console import Console, RenderableType

from flowfabric.cli import tables
from flowfabric.cli.connection import require_database
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result, run_async
from flowfabric.cli.remedies import with_remedies
from flowfabric.cli.top_screen import fitted, whole
from flowfabric.cli.watching import refresh
from flowfabric.config import Config
from flowfabric.engine.overview import overview
from flowfabric.postgres.database import Database, open_database
from flowfabric.schema.migrate import check


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
        await refresh(partial(_read, database, limit))


async def _read(database: Database, limit: int, screen: Console) -> RenderableType:
    """The overview as it is now."""
    async with database.connection() as conn:
        return fitted(await overview(conn, limit=limit), screen)
