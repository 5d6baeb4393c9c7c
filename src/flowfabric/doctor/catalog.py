"""Facts about the Postgres server and database, from system catalogs only: readable before FlowFabric is installed."""

from importlib import resources

from flowfabric.model.doctor import ServerFacts
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_catalog(conn: Connection) -> ServerFacts:
    """Read the facts of the server; every role may call this, but some roles see less."""
    [row] = await call.query(conn, resources.files("flowfabric.doctor").joinpath("catalog.sql").read_text())
    return call.read(ServerFacts, row["facts"])
