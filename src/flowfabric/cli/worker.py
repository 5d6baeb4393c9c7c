"""`ff worker`: run the tasks of an app."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli.answers import answer, as_json, at_url
from flowfabric.cli.apps import load_app
from flowfabric.cli.connecting import at
from flowfabric.cli.options import span, words
from flowfabric.cli.processes import supervise
from flowfabric.ids import shown
from flowfabric.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def some_words(text: str) -> list[str]:
    """Words with commas between them, one at least."""
    if not (found := words(text)):
        raise click.BadParameter(f"{shown(text)} names nothing; write words with commas between them: reports,mail")
    return found


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of whoever runs a worker."""
    for option in reversed(
        [
            click.option("--concurrency", type=click.IntRange(min=1), default=100, show_default=True,
                         help="How many runs go on at once."),
            click.option("--lanes", type=some_words, metavar="WORD,WORD",
                         help="Only these lanes; without it, those of the tasks."),
            click.option("--capabilities", type=words, metavar="WORD,WORD",
                         help="What it can do; without it, what the tasks need."),
            click.option("--namespace", help="Only the work of this namespace."),
            click.option("--lease", type=span, metavar="SPAN", default="30s", show_default=True,
                         help="How long work is claimed for; it is renewed while it runs."),
            click.option("--drain", type=span, metavar="SPAN", default="30s", show_default=True,
                         help="How long work may go on after SIGTERM before it is handed back."),
            click.option("--name", default="worker", show_default=True, help="What the worker is called."),
            click.option("--no-sweeps", is_flag=True, help="Leave what happens by itself to other processes."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("app")
@worker_options
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="How many processes do so; one that dies is started again.")  # fmt: skip
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
@at_url
@as_json
def worker(app: str, processes: int, with_parent: bool, url: str | None, as_json: bool, **options: Any) -> None:
    """Run the tasks of APP until SIGTERM or ctrl-c. As many processes may do so as you like.

    APP is file.py:app or package.module:app. The first signal lets what runs finish and hands the rest back; the second
    ends at once.

    \b
    Example:
      FLOWFABRIC_URL=postgresql://app@db.example/app ff worker reports.py:app --concurrency 20
    """
    loaded = at(url, load_app(app))
    if processes > 1:
        sys.exit(supervise(processes, [*sys.argv[1:], "--processes", "1", "--with-parent"]))
    run(work(loaded, as_json=as_json, with_parent=with_parent, **options))


def run(coroutine: Any) -> None:
    """Run to the end, on uvloop where it is installed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    gc.collect()
    gc.freeze()  # what is loaded by now stays to the end: no later collection need look through it
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(coroutine)


async def work(app: App, *, as_json: bool, with_parent: bool = False, **options: Any) -> None:
    """Work for an app until a signal comes, and say so once it does."""
    async with app:
        worker = made(app, **options)
        stop_on_signals(worker.stop)
        if with_parent:
            _stop_with_parent(worker.stop)
        working = asyncio.create_task(worker.run())
        telling = asyncio.create_task(_tell(app, worker, as_json=as_json))
        try:
            await working
        finally:
            telling.cancel()


def made(app: App, *, no_sweeps: bool, **options: Any) -> Worker:
    """The worker that the options describe."""
    return Worker(app, sweeps=not no_sweeps, **options)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Stop at the first signal; the second has its ordinary effect, which is to end the process."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, first)


async def _tell(app: App, worker: Worker, *, as_json: bool) -> None:
    await worker.ready.wait()
    about = {"instance": worker.instance, "lanes": worker.lanes, "tasks": sorted(app.tasks)}
    text = f"working as {worker.instance} on {', '.join(worker.lanes)}: {', '.join(about['tasks']) or 'no tasks'}"
    answer(text, about, as_json=as_json)


def _stop_with_parent(stop: Callable[[], None]) -> None:
    """Standard input is a pipe from the parent, which says nothing and ends with it."""
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
