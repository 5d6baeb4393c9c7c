"""Follow ends: find the lanes and executions to notify after members of flows have ended."""

from collections.abc import Sequence

from flowfabric.ids import ExecutionId, expect_id, read_execution_ids
from flowfabric.model import Followed
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def follow_ends(conn: Connection, ended: Sequence[ExecutionId]) -> Followed:
    """Find the lanes where members became claimable, and the members that were skipped or cancelled.

    Executions that are not in a flow are ignored.
    """
    asked = [expect_id(ExecutionId, each, "execution id") for each in ended]
    partitions, uuids = [each.partition for each in asked], [each.uuid for each in asked]
    found = await call.row(conn, "follow_ends", partitions=partitions, ids=uuids)
    return Followed(lanes=found["lanes"] or (), ended=read_execution_ids(found["ended"]))
