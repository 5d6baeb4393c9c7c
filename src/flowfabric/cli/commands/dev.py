"""`ff dev`: everything an app needs, in one process."""

import asyncio
import inspect
import json
import shlex
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli.commands.worker import new_worker, opened, run, stop_on_signals, worker_options
from flowfabric.cli.connection import app_at
from flowfabric.cli.load_app import load_app
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result
from flowfabric.worker import Worker


@click.command()
@click.argument("app")
@worker_options
@url_option
@json_option
def dev(app: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Run APP with everything it needs in one process: Postgres, a worker and the sweeps.

    APP is file.py:app or package.module:app. Without FLOWFABRIC_URL, ff starts an embedded Postgres with its data in
    ./.flowfabric and migrates it to this version.

    \b
    Example:
      ff dev reports.py:app
    """
    run(_develop(app_at(url, load_app(app)), app, as_json=as_json, **options))


async def _develop(app: App, place: str, *, as_json: bool, **options: Any) -> None:
    async with opened(app):
        worker = new_worker(app, **options)
        stop_on_signals(worker.stop)
        working = asyncio.create_task(worker.run())
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait((working, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            print_result(_banner(app, worker, place), _document(app, worker), as_json=as_json)
        ready.cancel()
        await working


def _document(app: App, worker: Worker) -> dict[str, object]:
    return {
        "data": None if app.config.url else str(app.config.data.resolve()),
        "instance": worker.instance,
        "lanes": worker.lanes,
        "tasks": sorted(app.tasks),
        "concurrency": worker.concurrency,
        "sweeps": worker.sweeps,
    }


def _example(app: App, place: str) -> str:
    """A command that submits the app's first task."""
    for name, task in sorted(app.tasks.items()):
        parameters = inspect.signature(task.handler).parameters.values()
        needed = [each.name for each in parameters if each.name != task.injected and each.default is each.empty]
        payload = [shlex.quote(json.dumps(dict.fromkeys(needed, "..."), ensure_ascii=False))] if needed else []
        return " ".join(["ff submit", shlex.quote(name), *payload, "--app", shlex.quote(place)])
    return 'ff submit TASK \'{"name": "value"}\''


def _banner(app: App, worker: Worker, place: str) -> str:
    where = "at FLOWFABRIC_URL" if app.config.url else f"embedded, data in {app.config.data.resolve()}"
    lines = {
        "Postgres": where,
        "worker": f"{worker.instance}, up to {worker.concurrency} executions at once",
        "lanes": ", ".join(worker.lanes),
        "tasks": ", ".join(sorted(app.tasks)) or "none yet: decorate a function with @app.task",
        "sweeps": "run in this process" if worker.sweeps else "off (--no-sweeps): another process must run them",
        "try": f"{_example(app, place)}  (in another terminal)",
    }
    return "\n".join(["FlowFabric is up; ctrl-c ends it.", *(f"  {name:10}{text}" for name, text in lines.items())])
