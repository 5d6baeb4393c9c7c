"""`ff sweep`: let happen what happens by itself."""

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress

import click

from flowfabric.cli import tables
from flowfabric.cli.answers import answer, as_json, asynchronous, at_url
from flowfabric.cli.connecting import refuse_missing
from flowfabric.config import Config
from flowfabric.model import Page
from flowfabric.postgres.database import Database, open_database
from flowfabric.schema.migrate import check
from flowfabric.sweeps import Sweep, run_each, run_sweeps, sweeps

COLUMNS = ("sweep", "moved", "failed=error")


@click.command()
@click.option("--once", is_flag=True, help="Run every sweep once, say what moved, and end.")
@at_url
@as_json
@asynchronous
async def sweep(once: bool, url: str | None, as_json: bool) -> None:
    """Run the sweeps until SIGTERM or ctrl-c. As many processes may do so as you like.

    Sweeps take back lapsed leases, time out attempts, end what is past its deadline and remove what is old. With --once
    the exit code is 1 if one of them failed.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff sweep --once
    """
    config = Config.read(url=url)
    refuse_missing(config)
    listed = sweeps(config)
    async with open_database(config) as database:
        async with database.connection() as conn:
            await check(conn, config)
        if once:
            runs = await run_each(database, listed)
            answer(tables.table(COLUMNS, runs), Page(runs), as_json=as_json)
            click.get_current_context().exit(int(any(run.error for run in runs)))
        await _until_stopped(_go_on(database, listed, as_json=as_json))


async def _go_on(database: Database, listed: Sequence[Sweep], *, as_json: bool) -> None:
    answer("sweeping", {"sweeping": [each.name for each in listed]}, as_json=as_json)
    await run_sweeps(database, listed)


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Go on until the process is asked to stop; asked again, it ends at once."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await task
