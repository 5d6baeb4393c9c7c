"""`ff dev`: everything an app needs, in one process."""

import asyncio
import inspect
import json
import shlex
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli.answers import answer, as_json, at_url
from flowfabric.cli.apps import load_app
from flowfabric.cli.connecting import at
from flowfabric.cli.worker import made, run, stop_on_signals, worker_options
from flowfabric.worker import Worker


@click.command()
@click.argument("app")
@worker_options
@at_url
@as_json
def dev(app: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Run APP with all it needs in this process: Postgres, a worker, the sweeps.

    APP is file.py:app or package.module:app. Without FLOWFABRIC_URL an embedded Postgres is started, with its data
    under ./.flowfabric, and brought to this version.

    \b
    Example:
      ff dev reports.py:app
    """
    run(_develop(at(url, load_app(app)), app, as_json=as_json, **options))


async def _develop(app: App, place: str, *, as_json: bool, **options: Any) -> None:
    async with app:
        worker = made(app, **options)
        stop_on_signals(worker.stop)
        working = asyncio.create_task(worker.run())
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait((working, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            answer(_banner(app, worker, place), _about(app, worker), as_json=as_json)
        ready.cancel()
        await working


def _about(app: App, worker: Worker) -> dict[str, object]:
    return {
        "data": None if app.config.url else str(app.config.data.resolve()),
        "instance": worker.instance,
        "lanes": worker.lanes,
        "tasks": sorted(app.tasks),
        "concurrency": worker.concurrency,
        "sweeps": worker.sweeps,
    }


def _a_submission(app: App, place: str) -> str:
    """What to type to have the first of its tasks run, in its lane and with its retries."""
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
        "worker": f"{worker.instance}, {worker.concurrency} at a time",
        "lanes": ", ".join(worker.lanes),
        "tasks": ", ".join(sorted(app.tasks)) or "none yet: decorate a function with @app.task",
        "sweeps": "in this process" if worker.sweeps else "left to other processes",
        "try": f"{_a_submission(app, place)}  (in another terminal)",
    }
    return "\n".join(["FlowFabric is up; ctrl-c ends it.", *(f"  {name:10}{said}" for name, said in lines.items())])
