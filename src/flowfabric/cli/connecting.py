"""The one way in which commands reach the database: an app without tasks, at `--url`, or on the embedded Postgres."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from flowfabric.app import App
from flowfabric.cli.tables import waiting
from flowfabric.config import Config, variable
from flowfabric.errors import DatabaseMissing
from flowfabric.postgres import embedded


def refuse_missing(config: Config) -> None:
    """Make no database for somebody who only looks: he may stand in the wrong directory. Raises `DatabaseMissing`."""
    if config.url is None and not embedded.is_made(config.data):
        raise DatabaseMissing(
            f"{variable('url')} is not set and there is no database in {config.data.absolute()}; "
            "`ff dev FILE.py:app` or `ff migrate` makes one there"
        )


def at(url: str | None, app: App | None = None) -> App:
    """An app, without tasks unless one is given, whose database is at this URL where there is one."""
    if app is None:
        return App(url=url)
    if url is not None:
        app.config = msgspec.structs.replace(app.config, url=Config.read(url=url).url)
    return app


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[App]:
    """An app with its connections. Without a URL it joins the embedded Postgres that runs, or runs it meanwhile."""
    refuse_missing(app.config)
    with waiting("starting Postgres" if app.config.url is None else "connecting"):
        await app.__aenter__()
    try:
        yield app
    finally:
        await app.__aexit__(None, None, None)
