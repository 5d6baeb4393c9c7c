"""`ff dev`: everything an app needs, in one process."""

import asyncio
import inspect
import json
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from flowfabric import durations
from flowfabric.app import App
from flowfabric.cli import tables
from flowfabric.cli.commands.worker import (
    new_worker,
    opened,
    run,
    stop_on_signals,
    stop_with_parent,
    worker_options,
)
from flowfabric.cli.connection import app_at
from flowfabric.cli.load_app import code_directory, load_app
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result
from flowfabric.cli.reloading import reload_on_change
from flowfabric.cli.run_lines import RunLines
from flowfabric.cli.serving import INSTALL, PORT, is_installed, serving_anywhere
from flowfabric.worker import Worker

RELOAD_DRAIN = timedelta(seconds=5)

# Examples of arguments in the banner, by their type in the JSON Schema.
VALUES: dict[str, object] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


@click.command()
@click.argument("app")
@worker_options
@click.option("--reload", is_flag=True,
              help="Start the worker again when a Python file below the directory of APP changes. What runs then "
                   "has --drain to end, by default 5s here, or runs again after its last saved step.")  # fmt: skip
@click.option("--reload-dir", "directories", multiple=True, metavar="DIRECTORY",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Watch this directory instead of the one of APP. Repeatable; implies --reload.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True,
              help="Port of the HTTP API on 127.0.0.1; if it is taken, a free one is used.")  # fmt: skip
@click.option("--no-serve", is_flag=True, help="Do not serve the HTTP API.")
@click.option("--reloaded", is_flag=True, hidden=True, help="Run as the child of --reload.")
@url_option
@json_option
def dev(
    app: str,
    reload: bool,
    directories: tuple[Path, ...],
    reloaded: bool,
    url: str | None,
    as_json: bool,
    drain: timedelta,
    **options: Any,
) -> None:
    """Run APP with everything it needs in one process: Postgres, a worker, the sweeps and the HTTP API.

    APP is file.py:app or package.module:app. Without FLOWFABRIC_URL, ff starts an embedded Postgres with its data in
    ./.flowfabric and migrates it to this version.

    It prints a line when a run starts, completes, fails or begins to wait, with its result; at most 50 per second.

    \b
    Example:
      ff dev reports.py:app --reload
    """
    if (reload or directories) and not reloaded:
        if click.get_current_context().get_parameter_source("drain") is ParameterSource.DEFAULT:
            drain = RELOAD_DRAIN
        directory = code_directory(app)
        arguments = [*sys.argv[1:], "--drain", durations.format_duration(drain), "--reloaded"]
        sys.exit(reload_on_change(directories or [directory], arguments, drain=drain.total_seconds()))
    loaded = app_at(url, load_app(app))
    run(_develop(loaded, app, as_json=as_json, with_parent=reloaded, drain=drain, **options))


def _run_lines(*, as_json: bool) -> RunLines:
    screen = tables.console()
    return RunLines(
        lambda line: screen.print(line, soft_wrap=True),
        (lambda document: print_result("", document, as_json=True)) if as_json else None,
    )


async def _develop(
    app: App, place: str, *, as_json: bool, with_parent: bool, port: int, no_serve: bool, **options: Any
) -> None:
    async with opened(app):
        worker = new_worker(app, **options)
        worker._observed_by(_run_lines(as_json=as_json))
        server = serving_anywhere(app, port) if is_installed() and not no_serve else None
        stop_on_signals(worker.stop)
        if with_parent:
            stop_with_parent(worker.stop)
        working = asyncio.create_task(worker.run())
        serving = asyncio.create_task(server.run()) if server else None
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait((working, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            address = server.address if server else None
            banner = _banner(app, worker, place, address or _not_served(is_refused=no_serve))
            print_result(banner, _document(app, worker, address), as_json=as_json)
        ready.cancel()
        try:
            await working
        finally:
            if server and serving:
                server.stop()
                await serving


def _not_served(*, is_refused: bool) -> str:
    return "off (--no-serve)" if is_refused else f"off; to have it: {INSTALL}"


def _document(app: App, worker: Worker, address: str | None) -> dict[str, object]:
    return {
        "data": None if app.config.url else str(app.config.data.resolve()),
        "instance": worker.instance,
        "lanes": worker.lanes,
        "tasks": sorted(app.tasks),
        "concurrency": worker.concurrency,
        "sweeps": worker.sweeps,
        "address": address,
    }


def _example(app: App, place: str) -> str:
    """A command that submits the app's first task."""
    for name, task in sorted(app.tasks.items()):
        parameters = inspect.signature(task.handler).parameters.values()
        needed = [each.name for each in parameters if each.name != task.injected and each.default is each.empty]
        known: Any = (task.arguments.schema() or {}).get("properties", {})
        values = {name: _value(known.get(name, {}).get("type")) for name in needed}
        payload = [shlex.quote(json.dumps(values, ensure_ascii=False))] if needed else []
        return " ".join(["ff submit", shlex.quote(name), *payload, "--app", shlex.quote(place)])
    return 'ff submit TASK \'{"name": "value"}\''


def _value(kind: object) -> object:
    return VALUES.get(kind, "...") if isinstance(kind, str) else "..."


def _banner(app: App, worker: Worker, place: str, served: str) -> str:
    where = "at FLOWFABRIC_URL" if app.config.url else f"embedded, data in {app.config.data.resolve()}"
    lines = {
        "Postgres": where,
        "worker": f"{worker.instance}, up to {worker.concurrency} executions at once",
        "lanes": ", ".join(worker.lanes),
        "tasks": ", ".join(sorted(app.tasks)) or "none yet: decorate a function with @app.task",
        "sweeps": "run in this process" if worker.sweeps else "off (--no-sweeps): another process must run them",
        "HTTP API": served,
        "try": f"{_example(app, place)}  (in another terminal)",
    }
    return "\n".join(["FlowFabric is up; ctrl-c ends it.", *(f"  {name:10}{text}" for name, text in lines.items())])
