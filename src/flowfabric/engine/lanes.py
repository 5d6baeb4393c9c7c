"""Lanes: the queues that workers claim from."""

from datetime import timedelta

import msgspec

from flowfabric import calls
from flowfabric.errors import InvalidLane
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Drained, Lane, LaneChange, Page
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def configure_lane(
    conn: Connection,
    name: str,
    *,
    keep_renewals: bool | None = None,
    stream_retention_maxlen: int | None = None,
    stream_retention: timedelta | None = None,
) -> LaneChange:
    """Create a lane or change its options; an option that is `None` keeps its value.

    With `keep_renewals` every lease renewal in this lane is written to the event log. A stream keeps its last
    `stream_retention_maxlen` frames, and its frames for `stream_retention` after it is closed (zero: as long as the
    execution), unless the policy of the execution says otherwise; both hold for streams that begin afterwards.
    Raises `InvalidLane`.
    """
    maxlen: object = stream_retention_maxlen
    if maxlen is not None and not (isinstance(maxlen, int) and 0 <= maxlen < 1 << 63):
        raise InvalidLane(
            f"stream_retention_maxlen {maxlen!r:.82} is invalid; use 1 to 100,000 frames",
            field="stream_retention_maxlen",
        )
    changed = await call.value(
        conn,
        "configure_lane",
        name=check_text(name, "lane"),
        keep_renewals=keep_renewals,
        stream_retention_maxlen=stream_retention_maxlen,
        stream_retention_ms=calls.span(stream_retention, "stream_retention"),
    )
    return LaneChange(changed)


async def pause_lane(conn: Connection, name: str, *, by: str, reason: str | None = None) -> LaneChange:
    """Pause a lane: workers stop claiming from it, running executions continue, new ones wait.

    Safe to repeat: returns `NOOP` if the lane is already paused. Raises `LaneNotFound`, `InvalidBody`.
    """
    return LaneChange(await call.value(conn, "pause_lane", **_act(name, by, reason)))


async def drain_lane(conn: Connection, name: str, *, by: str, reason: str | None = None) -> Drained:
    """Drain a lane: refuse new submissions and finish the existing executions.

    Safe to repeat: returns `NOOP` and the number of executions left if it is already draining. Raises
    `LaneNotFound`, `InvalidBody`.
    """
    return msgspec.convert(dict(await call.row(conn, "drain_lane", **_act(name, by, reason))), Drained)


async def resume_lane(conn: Connection, name: str, *, by: str, reason: str | None = None) -> LaneChange:
    """Resume a paused or draining lane.

    Safe to repeat: returns `NOOP` if the lane is already active. Raises `LaneNotFound`, `InvalidBody`.
    """
    return LaneChange(await call.value(conn, "resume_lane", **_act(name, by, reason)))


async def describe_lane(conn: Connection, name: str) -> Lane:
    """Describe a lane: its state, who changed it and why, and its executions by state. Raises `LaneNotFound`."""
    found = await call.row(conn, "describe_lane", name=check_text(name, "lane"))
    return msgspec.convert({**found, "name": name}, Lane)


async def list_lanes(conn: Connection, *, cursor: str | None = None, limit: int = 50) -> Page[Lane]:
    """List the lanes, by name. Raises `InvalidLimit`."""
    found = await call.rows(conn, "list_lanes", after=check_text(cursor or "", "cursor"), take=call.take(limit))
    return call.page([msgspec.convert(dict(row), Lane) for row in found], limit, lambda lane: lane.name)


def _act(name: str, by: str, reason: str | None) -> dict[str, str | None]:
    return {"name": check_text(name, "lane"), "by": check_text(by, "by"), "reason": reason and kept_text(reason)}
