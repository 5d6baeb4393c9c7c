"""Following: what ends have brought about in their flows, for whoever has to tell others of it."""

from collections.abc import Sequence

from flowfabric.ids import ExecutionId
from flowfabric.model import Followed
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def follow_ends(conn: Connection, ended: Sequence[ExecutionId]) -> Followed:
    """What has come of ends: the lanes in which members may run now, and who was skipped or cancelled with them.

    What is in no flow has brought nothing about here.
    """
    partitions, uuids = [each.partition for each in ended], [each.uuid for each in ended]
    found = await call.row(conn, "follow_ends", partitions=partitions, ids=uuids)
    return Followed(lanes=found["lanes"] or (), ended=found["ended"] or ())
