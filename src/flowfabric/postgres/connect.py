"""Open the database that the settings name: one of yours, or the embedded one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowfabric.config import Config
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database


@asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """The connections to the database at the URL; without one, to the embedded Postgres, which is left at the end.

    Raises `ValueError` for a URL that cannot be read, `DatabaseUnavailable`, `EmbeddedUnavailable`.
    """
    if config.url is not None:
        async with Database(config, config.url) as database:
            yield database
        return
    server = await asyncio.to_thread(embedded.start, config.data)
    try:
        async with Database(config, server.url()) as database:
            yield database
    finally:
        try:
            await asyncio.to_thread(server.stop)
        except RuntimeError:  # the process is ending, and begins no threads any more
            server.stop()
