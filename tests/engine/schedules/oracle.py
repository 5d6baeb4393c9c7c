"""An independent way to find the ticks of simple cron expressions: check every minute."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)

# Time zones and moments at which clocks change: by an hour, by half of one, at midnight, the other way round, never.
CHANGES = [
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("America/Santiago", "2026-09-06 04:00"),
    ("Africa/Cairo", "2026-04-23 22:00"),
    ("Africa/Casablanca", "2026-02-15 02:00"),
    ("Asia/Kolkata", "2026-03-29 01:00"),
]
CRONS = ["30 2 * * *", "0 * * * *", "*/15 * * * *", "*/20 1-3 * * *", "0 0 * * *", "5,35 0,2,23 * * *", "59 1 * * *"]


def expected(cron: str, tz: str, begin: datetime, end: datetime) -> list[datetime]:
    """The ticks after one time, up to another, for expressions that match every day."""
    zone = ZoneInfo(tz)
    first: dict[datetime, datetime] = {}
    minute = begin.replace(second=0, microsecond=0) - 26 * 60 * MINUTE
    while minute <= end:
        first.setdefault(minute.astimezone(zone).replace(tzinfo=None, fold=0), minute)
        minute += MINUTE
    minutes, hours = (_numbers(field, most) for field, most in zip(cron.split()[:2], (60, 24), strict=True))
    ticks = set()
    local, last = min(first), max(first)
    while local <= last:
        if local.minute in minutes and local.hour in hours:
            there = local
            while there not in first:
                there += MINUTE
            ticks.add(first[there].astimezone(UTC))
        local += MINUTE
    return sorted(tick for tick in ticks if begin < tick <= end)


def _numbers(field: str, most: int) -> set[int]:
    found = set[int]()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = ("0", "", str(most - 1)) if span == "*" else span.partition("-")
        found.update(range(int(low), int(high or low) + 1, int(step or 1)))
    return found
