"""Lanes: where work queues, and the switch that stops it."""

import msgspec

from flowfabric.ids import check_text, kept_text
from flowfabric.model import Drained, Lane, LaneChange, Page
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def configure_lane(conn: Connection, name: str, *, keep_renewals: bool | None = None) -> LaneChange:
    """Make a lane, or change how it keeps its history; an option left out stays as it is.

    With `keep_renewals` every renewal of a lease in this lane is kept in the event log. Raises `InvalidLane`.
    """
    return LaneChange(
        await call.value(conn, "configure_lane", name=check_text(name, "lane"), keep_renewals=keep_renewals)
    )


async def pause_lane(conn: Connection, name: str, *, by: str, why: str | None = None) -> LaneChange:
    """Stop claiming from a lane; what already runs goes on, and what is submitted waits.

    Safe to repeat: a paused lane answers `NOOP`. Raises `LaneNotFound`, `InvalidBody`.
    """
    return LaneChange(await call.value(conn, "pause_lane", **_act(name, by, why)))


async def drain_lane(conn: Connection, name: str, *, by: str, why: str | None = None) -> Drained:
    """Refuse new work for a lane and let it finish what it has.

    Safe to repeat: a draining lane answers `NOOP` and how much is left. Raises `LaneNotFound`, `InvalidBody`.
    """
    return msgspec.convert(dict(await call.row(conn, "drain_lane", **_act(name, by, why))), Drained)


async def resume_lane(conn: Connection, name: str, *, by: str, why: str | None = None) -> LaneChange:
    """Open a lane again, whether it was paused or draining.

    Safe to repeat: an active lane answers `NOOP`. Raises `LaneNotFound`, `InvalidBody`.
    """
    return LaneChange(await call.value(conn, "resume_lane", **_act(name, by, why)))


async def list_lanes(conn: Connection, *, cursor: str | None = None, limit: int = 50) -> Page[Lane]:
    """The lanes there are, by name. Raises `InvalidLimit`."""
    found = await call.rows(conn, "list_lanes", after=check_text(cursor or "", "cursor"), take=call.take(limit))
    return call.page([msgspec.convert(dict(row), Lane) for row in found], limit, lambda lane: lane.name)


def _act(name: str, by: str, why: str | None) -> dict[str, str | None]:
    return {"name": check_text(name, "lane"), "by": check_text(by, "by"), "why": why and kept_text(why)}
