"""Reading the log: events after a cursor, up to the horizon, that match a filter."""

import difflib

import msgspec

from flowfabric import cursors
from flowfabric.engine.events.horizon import advance_horizon
from flowfabric.errors import InvalidBody, InvalidCursor
from flowfabric.ids import ExecutionId, FlowId, check_filter, check_text, expect_id, shown
from flowfabric.model import Event, EventFilter, EventKind, EventPage
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

EVERYTHING = EventFilter()
OLDEST = cursors.encode_event_cursor(0)
KINDS = [kind.value for kind in EventKind]


async def read_events(
    conn: Connection,
    cursor: str = "",
    filter: EventFilter = EVERYTHING,  # noqa: A002
    *,
    limit: int = 256,
    advance: bool = True,
) -> EventPage:
    """Read the next events after a cursor that match the filter, and the cursor to continue from.

    The empty cursor returns no events and the current end of the log; `OLDEST` starts with the oldest event kept. The
    cursor also moves past events that do not match. With `advance` the horizon is advanced first, unless a transaction
    is open. Raises `InvalidCursor`, `CursorExpired`, `InvalidLimit`, and `InvalidBody` for an unknown event kind.
    """
    after, wanted = cursors.decode_event_cursor(cursor), _arguments(filter)
    if advance and not conn.is_in_transaction():
        await advance_horizon(conn)
    found = await call.rows(conn, "read_events", after=after, take=call.take(limit), **wanted)
    return EventPage(
        events=[_event(row) for row in found[:-1]],
        cursor=cursors.encode_event_cursor(found[-1]["id"]),
        more=found[-1]["more"],
        truncated=found[-1]["truncated"],
    )


async def acknowledge(conn: Connection, consumer: str, cursor: str) -> bool:
    """Store the position of a named consumer, so that it survives a restart; the position never moves back.

    Returns whether the position moved. Raises `InvalidCursor`, `InvalidName`.
    """
    event_id = cursors.decode_event_cursor(cursor)
    if event_id is None:
        raise InvalidCursor("the cursor is empty; use the cursor of an event that was read", cause="empty")
    name = check_text(consumer, "consumer")
    return bool(await call.value(conn, "acknowledge", consumer=name, event_id=event_id) == "acknowledged")


async def get_acknowledged(conn: Connection, consumer: str) -> str | None:
    """Return the cursor that a named consumer has acknowledged, or `None` if it never did."""
    event_id = await call.value(conn, "get_acknowledged", consumer=check_text(consumer, "consumer"))
    return None if event_id is None else cursors.encode_event_cursor(event_id)


def _arguments(filter: EventFilter) -> dict[str, object]:  # noqa: A002
    tag_key, tag_value = filter.tag or (None, None)
    texts = {
        "namespace": filter.namespace,
        "lane": filter.lane,
        "by": filter.by,
    }
    return {
        **{name: check_filter(text, name) for name, text in texts.items()},
        "tag_key": check_filter(tag_key, "tag name"),
        "tag_value": None if tag_value is None else check_text(tag_value, "tag value"),
        "kinds": None if filter.kinds is None else [_kind(kind) for kind in filter.kinds],
        "partitions": _partitions(filter),
        "execution": None if filter.execution_id is None else filter.execution_id.uuid,
        "flow": None if filter.flow_id is None else expect_id(FlowId, filter.flow_id, "flow id").uuid,
        "acts": filter.acts,
        "leases": filter.leases,
    }


def _kind(kind: str) -> str:
    """Check that events of this kind exist: a subscriber to a misspelt kind would wait forever."""
    if kind in KINDS:
        return kind
    nearest = difflib.get_close_matches(str(kind)[:80].lower(), KINDS, cutoff=0.5)
    how = f"did you mean {' or '.join(nearest)}?" if nearest else "use a value of EventKind"
    raise InvalidBody(f"event kind {shown(str(kind))} is invalid; {how}", field="kinds", nearest=nearest)


def _partitions(filter: EventFilter) -> list[int] | None:  # noqa: A002
    """The partitions to read. With an execution id only its own: another partition may hold the same uuid."""
    asked = None if filter.partitions is None else set(filter.partitions)
    if filter.execution_id is not None:
        own = {expect_id(ExecutionId, filter.execution_id, "execution id").partition}
        asked = own if asked is None else own & asked
    return None if asked is None else sorted(asked)


def _event(row: Row) -> Event:
    partition, execution, flow = row["partition"], row["execution_uuid"], row["flow_uuid"]
    return Event(
        event_id=row["id"],
        cursor=cursors.encode_event_cursor(row["id"]),
        at=row["at"],
        kind=row["kind"],
        partition=partition,
        execution_id=execution and ExecutionId(partition, execution),
        flow_id=flow and FlowId(partition, flow),
        subject=row["subject"],
        namespace=row["namespace_name"],
        lane=row["lane_name"],
        tags=msgspec.json.decode(row["tags"]) if row["tags"] else {},
        by=row["actor"],
        detail=msgspec.json.decode(row["detail"]) if row["detail"] else {},
    )
