"""Tags: names and values to find executions by."""

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import TagChange
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def set_tag(
    conn: Connection, execution_id: ExecutionId, key: str, value: str | None, *, by: str | None = None
) -> TagChange:
    """Set or change a tag of an execution, or remove it with `None`; also works after the execution has ended.

    Safe to repeat. Raises `ExecutionNotFound`, `InvalidTagKey`, `InvalidTag`.
    """
    changed = await call.value(
        conn,
        "set_tag",
        **calls.about(execution_id),
        key=check_text(key, "tag name"),
        value=value if value is None else check_text(value, "tag value"),
        by=by and check_text(by, "by"),
    )
    return TagChange(changed)


async def get_tag(conn: Connection, execution_id: ExecutionId, key: str) -> str | None:
    """Return the value of a tag, or `None` if it is not set. Raises `ExecutionNotFound`, `InvalidTagKey`."""
    value: str | None = await call.value(conn, "get_tag", **calls.about(execution_id), key=check_text(key, "tag name"))
    return value
