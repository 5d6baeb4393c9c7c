"""Facts about the server, read only from the Postgres catalogs, so that they work without the flowfabric schema."""

from importlib import resources

from flowfabric.model.doctor import ServerFacts
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_catalog(conn: Connection) -> ServerFacts:
    """Read the facts about the server. Every role may do so; some roles see less than others."""
    [row] = await call.query(conn, resources.files("flowfabric.doctor").joinpath("catalog.sql").read_text())
    return call.read(ServerFacts, row["facts"])
