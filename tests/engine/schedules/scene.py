"""Create schedules for tests, and read which ticks fired."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from flowfabric import testing
from flowfabric.engine import schedules
from flowfabric.model import ScheduleChange, Swept, Timing
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
FIELDS = set(Timing.__struct_fields__)
OPTIONS = {"paused", "declared", "by", "payload_limit"}


class Tick(msgspec.Struct):
    """A tick as the log records it."""

    tick: datetime


def moment(text: str) -> datetime:
    """A time in UTC: `2026-03-29 01:00`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


async def at(given: Given, text: str) -> None:
    """Set the clock."""
    await testing.move_clock(given.conn, moment(text) - await testing.now(given.conn))


async def create(conn: Connection, name: str = "nightly", **options: Any) -> ScheduleChange:
    """Create a schedule, hourly by default; pass options of its timing and of its submission together."""
    timing = {field: options.pop(field) for field in FIELDS & options.keys()}
    own = {field: options.pop(field) for field in OPTIONS & options.keys()}
    if not {"cron", "every"} & timing.keys():
        timing["cron"] = "0 * * * *"
    return await schedules.create_schedule(conn, name, submission(**options), Timing(**timing), **own)


async def sweep(conn: Connection, **options: Any) -> Swept:
    return await schedules.fire_schedules(conn, **options)


async def fired(given: Given, name: str = "nightly") -> list[datetime]:
    """The ticks that fired, in order, from the log."""
    found = await given.rows(
        "select detail::text from flowfabric.events where kind = 'schedule_fired' and subject = $1 order by id", name
    )
    return [msgspec.json.decode(row["detail"], type=Tick).tick for row in found]
