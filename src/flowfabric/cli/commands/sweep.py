"""`ff sweep`: background maintenance (sweeps) in a process of its own."""

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress

import click

from flowfabric.cli import tables
from flowfabric.cli.connection import require_database
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result, run_async
from flowfabric.config import Config
from flowfabric.model import Page
from flowfabric.postgres.database import Database, open_database
from flowfabric.schema.migrate import check
from flowfabric.sweeps import Sweep, run_each, run_sweeps, sweeps

COLUMNS = ("sweep", "rows changed=moved", "error")


@click.command()
@click.option("--once", is_flag=True, help="Run every sweep once, print how many rows each one changed, and exit.")
@url_option
@json_option
@run_async
async def sweep(once: bool, url: str | None, as_json: bool) -> None:
    """Run background maintenance (sweeps) until SIGTERM or ctrl-c. Any number of processes may run it.

    Sweeps reclaim executions whose lease has expired, time out attempts, end executions that are past their deadline,
    and delete old data. `ff worker` runs them too, unless it is started with --no-sweeps. Deleting old data pauses
    often, so that running work keeps its rate. With --once it does not pause, and the exit code is 1 if a sweep failed.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff sweep --once
    """
    config = Config.read(url=url)
    require_database(config)
    all_sweeps = sweeps(config)
    async with open_database(config) as database:
        async with database.connection() as conn:
            await check(conn, config)
        if once:
            runs = await run_each(database, all_sweeps)
            print_result(tables.table(COLUMNS, runs), Page(runs), as_json=as_json)
            click.get_current_context().exit(int(any(run.error for run in runs)))
        await _until_stopped(_run(database, all_sweeps, as_json=as_json))


async def _run(database: Database, all_sweeps: Sequence[Sweep], *, as_json: bool) -> None:
    print_result("sweeping", {"sweeping": [each.name for each in all_sweeps]}, as_json=as_json)
    await run_sweeps(database, all_sweeps)


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Run until SIGTERM or ctrl-c; a second signal ends the process immediately."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await task
