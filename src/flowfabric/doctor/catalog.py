"""What Postgres says of itself and of what lives in it: its catalogs alone, so also where nothing of ours is yet."""

from importlib import resources

from flowfabric.model.doctor import ServerFacts
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_catalog(conn: Connection) -> ServerFacts:
    """What the server says of itself; safe for every role, though some see less than others."""
    [row] = await call.query(conn, resources.files("flowfabric.doctor").joinpath("catalog.sql").read_text())
    return call.read(ServerFacts, row["facts"])
