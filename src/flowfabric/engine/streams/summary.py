"""Summaries: a JSON document per attempt, changed by merge patches (RFC 7396)."""

import msgspec

from flowfabric import calls
from flowfabric.ids import ExecutionId
from flowfabric.model import StreamSummary
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_summary(
    conn: Connection, execution_id: ExecutionId, *, attempt: int | None = None
) -> StreamSummary | None:
    """Read the summary of an attempt, by default the current one; `None` if it has none.

    Raises `ExecutionNotFound`.
    """
    found = await call.rows(conn, "read_summary", **calls.about(execution_id), attempt=attempt)
    if not found:
        return None
    [row] = found
    return StreamSummary(
        document=msgspec.json.decode(row["document"]),
        version=row["version"],
        attempt=row["of_attempt"],
        first_at=row["first_at"],
        updated_at=row["updated_at"],
    )
