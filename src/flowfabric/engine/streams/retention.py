"""Closing and trimming: streams end with their attempts, and frames that are not kept are deleted in batches."""

from flowfabric import calls
from flowfabric.model import Swept
from flowfabric.postgres.driver import Connection


async def trim_frames(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Delete frames that their streams do not keep, and those of executions that were removed."""
    return await calls.sweep(conn, "trim_frames", limit, passing)
