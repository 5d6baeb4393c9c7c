"""The database that a command uses: the one at `--url` or `FLOWFABRIC_URL`, or the embedded Postgres."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from flowfabric.app import App
from flowfabric.cli.tables import spinner
from flowfabric.config import Config, variable
from flowfabric.errors import DatabaseMissing
from flowfabric.postgres import embedded


def require_database(config: Config) -> None:
    """Refuse to create an embedded database: the directory may be the wrong one. Raises `DatabaseMissing`."""
    if config.url is None and not embedded.is_made(config.data):
        raise DatabaseMissing(
            f"{variable('url')} is not set and there is no database in {config.data.absolute()}; "
            f"set {variable('url')}, or create an embedded database there with `ff dev FILE.py:app` or `ff migrate`"
        )


def app_at(url: str | None, app: App | None = None) -> App:
    """The app, or one without tasks, connected to `url` if it is given."""
    if app is None:
        return App(url=url)
    if url is not None:
        app.config = msgspec.structs.replace(app.config, url=Config.read(url=url).url)
    return app


@asynccontextmanager
async def connected(app: App) -> AsyncIterator[App]:
    """Open the app. Without a URL, use the embedded Postgres that is running, or run it until the command ends."""
    require_database(app.config)
    with spinner("starting Postgres" if app.config.url is None else "connecting"):
        await app.__aenter__()
    try:
        yield app
    finally:
        await app.__aexit__(None, None, None)
