"""Matching: flows by the beginning of their id."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.ids import FlowId
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def match_flows(conn: Connection, lowest: UUID, highest: UUID, *, limit: int = 6) -> Sequence[FlowId]:
    """Return the flows whose UUIDs are in a range, the newest first; see `flowfabric.ids.read_prefix`."""
    found = await call.rows(conn, "match_flows", lowest=lowest, highest=highest, take=call.take(limit))
    return [FlowId(row["partition"], row["id"]) for row in found]
