"""Read flows: describe a flow, list flows and set their tags."""

from flowfabric import calls, cursors
from flowfabric.ids import FlowId, check_filter, check_text
from flowfabric.model import FlowDescription, FlowState, FlowSummary, Page, TagChange
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def describe_flow(
    conn: Connection, flow_id: FlowId, *, cursor: str | None = None, limit: int = 50
) -> FlowDescription:
    """Describe a flow: its state, exact counts per state, and a page of members with their edges and groups.

    Raises `FlowNotFound`, `InvalidLimit`, `InvalidCursor`.
    """
    after = cursors.parse_id_cursor(cursor).uuid if cursor else None
    text = await call.value(conn, "describe_flow", **calls.about_flow(flow_id), after=after, take=call.take(limit))
    return call.read(FlowDescription, text)


async def list_flows(
    conn: Connection,
    *,
    namespace: str | None = None,
    state: FlowState | str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[FlowSummary]:
    """List the flows that match all given filters, in id order, page by page.

    Raises `InvalidLimit`, `InvalidCursor`, `InvalidBody`.
    """
    after = cursors.parse_id_cursor(cursor) if cursor else None
    found = await call.rows(
        conn,
        "list_flows",
        namespace=check_filter(namespace, "namespace"),
        state=state and check_text(str(state), "state"),
        after_partition=after and after.partition,
        after_id=after and after.uuid,
        take=call.take(limit),
    )
    return call.page([call.read(FlowSummary, row["summary"]) for row in found], limit, lambda last: str(last.flow_id))


async def set_flow_tag(
    conn: Connection, flow_id: FlowId, key: str, value: str | None = None, *, by: str | None = None
) -> TagChange:
    """Set, change or (without a value) remove a tag of a flow.

    Safe to repeat: returns `NOOP`. Raises `FlowNotFound`, `InvalidTagKey`, `InvalidTag`.
    """
    return TagChange(
        await call.value(
            conn,
            "set_flow_tag",
            **calls.about_flow(flow_id),
            key=check_text(key, "tag name"),
            value=value if value is None else check_text(value, "tag value"),
            by=by and check_text(by, "by"),
        )
    )
