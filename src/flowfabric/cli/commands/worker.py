"""`ff worker`: run the tasks of an app."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli.connection import app_at
from flowfabric.cli.load_app import load_app
from flowfabric.cli.logs import configure_logging
from flowfabric.cli.options import decorated, duration, json_option, url_option, words
from flowfabric.cli.output import print_result
from flowfabric.cli.processes import supervise
from flowfabric.errors import DatabaseUnavailable, RowLocked
from flowfabric.ids import shown
from flowfabric.postgres.backoff import Backoff
from flowfabric.worker import Worker

log = logging.getLogger("flowfabric.cli")

CONNECT_PAUSES = 0.5, 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def lane_names(text: str) -> list[str]:
    """Parse lanes separated by commas, at least one."""
    if not (found := words(text)):
        raise click.BadParameter(f"{shown(text)} is invalid; use names separated by commas, such as reports,mail")
    return found


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `ff worker` and `ff dev` share."""
    options = (
        click.option("--concurrency", type=click.IntRange(min=1), default=100, show_default=True,
                     help="Run at most this many executions at once."),
        click.option("--lanes", type=lane_names, metavar="NAME,NAME",
                     help="Serve only these lanes (queues).  [default: the lanes of the app's tasks]"),
        click.option("--capabilities", type=words, metavar="NAME,NAME",
                     help="Capabilities of this worker, such as gpu,llm.  [default: what the app's tasks need]"),
        click.option("--namespace", help="Serve only this namespace (tenant)."),
        click.option("--lease", type=duration, metavar="DURATION", default="30s", show_default=True,
                     help="How long a claim lasts; it is renewed while the execution runs. If the worker dies, "
                          "another one takes over after this long."),
        click.option("--drain", type=duration, metavar="DURATION", default="30s", show_default=True,
                     help="How long running executions may take to finish after SIGTERM, before they are released "
                          "to other workers."),
        click.option("--name", default="worker", show_default=True, help="Name of the worker in lists and events."),
        click.option("--no-sweeps", is_flag=True,
                     help="Do not run background maintenance (sweeps) in this process."),
    )  # fmt: skip
    return decorated(command, options)


@click.command()
@click.argument("app")
@worker_options
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Start this many worker processes, and restart one that dies.")  # fmt: skip
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
@url_option
@json_option
def worker(app: str, processes: int, with_parent: bool, url: str | None, as_json: bool, **options: Any) -> None:
    """Run the tasks of APP until SIGTERM or ctrl-c. Start as many workers as you like.

    APP is file.py:app or package.module:app. After the first signal the worker claims nothing more, lets running
    executions finish, and releases those that do not finish within --drain. A second signal ends it immediately.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff worker reports.py:app --concurrency 20
    """
    loaded = app_at(url, load_app(app))
    if processes > 1:
        sys.exit(supervise(processes, [*sys.argv[1:], "--processes", "1", "--with-parent"]))
    run(work(loaded, as_json=as_json, with_parent=with_parent, **options))


def run(coroutine: Any) -> None:
    """Run a coroutine until it ends; on uvloop, if it is installed."""
    configure_logging()
    gc.collect()
    gc.freeze()  # objects loaded by now live until the end: later collections skip them
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(coroutine)


async def work(app: App, *, as_json: bool, with_parent: bool = False, **options: Any) -> None:
    """Run a worker until a signal stops it, and print a line as soon as it is ready."""
    async with opened(app):
        worker = new_worker(app, **options)
        stop_on_signals(worker.stop)
        if with_parent:
            stop_with_parent(worker.stop)
        working = asyncio.create_task(worker.run())
        announcing = asyncio.create_task(_announce(app, worker, as_json=as_json))
        try:
            await working
        finally:
            announcing.cancel()


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[None]:
    """Open the app; while the database is unavailable, say why and try again, because a worker waits for it."""
    backoff = Backoff(*CONNECT_PAUSES, jitter=0.2)
    while True:
        try:
            await app.__aenter__()
        except (DatabaseUnavailable, RowLocked) as error:
            pause = backoff.next()
            log.warning("cannot start yet, retrying in %.1f s: %s", pause, error.message)
            await asyncio.sleep(pause)
        else:
            break
    try:
        yield
    finally:
        await app.__aexit__(None, None, None)


def new_worker(app: App, *, no_sweeps: bool, **options: Any) -> Worker:
    """A worker with these options."""
    return Worker(app, sweeps=not no_sweeps, **options)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first signal. The second one has its default effect: it ends the process."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, first)


async def _announce(app: App, worker: Worker, *, as_json: bool) -> None:
    await worker.ready.wait()
    about = {"instance": worker.instance, "lanes": worker.lanes, "tasks": sorted(app.tasks)}
    text = f"working as {worker.instance} on {', '.join(worker.lanes)}: {', '.join(about['tasks']) or 'no tasks'}"
    print_result(text, about, as_json=as_json)


def stop_with_parent(stop: Callable[[], None]) -> None:
    """Stop when standard input ends: it is a pipe from the parent process, which never writes to it."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, ended)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
