"""Reading schedules: describe one, list many."""

import base64
import binascii

import msgspec

from flowfabric.cursors import invalid_cursor
from flowfabric.engine.schedules.ticks import Ticks
from flowfabric.errors import InvalidSchedule
from flowfabric.ids import check_filter, check_text
from flowfabric.model import Page, Schedule
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def describe_schedule(conn: Connection, name: str, *, namespace: str = "default") -> Schedule:
    """Describe a schedule, with its payload and its next five ticks. Raises `ScheduleNotFound`."""
    found = await call.row(
        conn, "describe_schedule", namespace=check_text(namespace, "namespace"), name=check_text(name, "schedule")
    )
    return _schedule(found["description"], found["payload"])


async def list_schedules(
    conn: Connection, *, namespace: str | None = None, cursor: str | None = None, limit: int = 50
) -> Page[Schedule]:
    """List schedules by namespace and name, each with its next five ticks.

    Raises `InvalidLimit`, `InvalidCursor`.
    """
    after_namespace, after_name = _parse_cursor(cursor) if cursor else ("", "")
    found = await call.rows(
        conn,
        "list_schedules",
        namespace=check_filter(namespace, "namespace"),
        after_namespace=after_namespace,
        after_name=after_name,
        take=call.take(limit),
    )
    return call.page([_schedule(row["description"]) for row in found], limit, _cursor)


def _schedule(description: str, payload: bytes | None = None) -> Schedule:
    schedule = call.read(Schedule, description)
    try:
        ticks = list(Ticks(schedule.timing, schedule.anchor_at).coming(schedule.next_tick_at))
    except InvalidSchedule:  # this machine does not know its time zone
        ticks = [tick for tick in [schedule.next_tick_at] if tick is not None]
    return msgspec.structs.replace(schedule, ticks=ticks, payload=payload)


def _cursor(schedule: Schedule) -> str:
    return base64.urlsafe_b64encode(f"{schedule.namespace}\n{schedule.name}".encode()).decode().rstrip("=")


def _parse_cursor(text: str) -> tuple[str, str]:
    """The namespace and name of the last item of a page."""
    try:
        namespace, line, name = (
            base64.b64decode(text + "=" * (-len(text) % 4), b"-_", True).decode("ascii").partition("\n")
        )
    except (binascii.Error, ValueError):
        namespace, line, name = "", "", ""
    if not line or "\0" in namespace + name:
        raise invalid_cursor(text)
    return namespace, name
