"""`ff serve`: the HTTP API."""

import click

from flowfabric.app import App
from flowfabric.cli.commands.worker import opened, run, stop_on_signals
from flowfabric.cli.connection import app_at, require_database
from flowfabric.cli.load_app import load_app
from flowfabric.cli.options import json_option, url_option
from flowfabric.cli.output import print_result
from flowfabric.cli.serving import PORT, serving


@click.command()
@click.argument("app", required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; only loopback addresses are possible in this release.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 is any free one.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Also answer requests for this host name, such as api.example.com, which a proxy on this machine "
    "passes on. Repeatable.",
)
@url_option
@json_option
def serve(app: str | None, host: str, port: int, hosts: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Serve the HTTP API until SIGTERM or ctrl-c.

    With APP, which is file.py:app or package.module:app, the server knows its tasks: it checks their arguments, and
    submits them to their lanes with their options. Without it, a submission says all of that itself.

    After the first signal the server answers the requests that wait for a result, and lets the others finish. A second
    signal ends it immediately.

    \b
    Example:
      ff serve reports.py:app
      curl --json '{"task": "report", "payload": {"topic": "tides"}}' http://127.0.0.1:7717/v1/executions
    """
    loaded = app_at(url, None if app is None else load_app(app))
    require_database(loaded.config)
    run(_serve(loaded, host, port, hosts, as_json=as_json))


async def _serve(app: App, host: str, port: int, hosts: tuple[str, ...], *, as_json: bool) -> None:
    async with opened(app):
        server = serving(app, host, port, hosts)
        stop_on_signals(server.stop)
        text = f"serving the HTTP API at {server.address}; ctrl-c ends it"
        print_result(text, {"address": server.address, "tasks": sorted(app.tasks)}, as_json=as_json)
        await server.run()
