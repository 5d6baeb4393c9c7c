"""What Postgres says of itself and of what lives in it: its catalogs alone, so also where nothing of ours is yet."""

from importlib import resources

from flowfabric import db
from flowfabric.db import Connection
from flowfabric.model.doctor import ServerFacts


async def read_catalog(conn: Connection) -> ServerFacts:
    """What the server says of itself; safe for every role, though some see less than others."""
    [row] = await db.query(conn, resources.files("flowfabric").joinpath("catalog.sql").read_text())
    return db.read(ServerFacts, row["facts"])
