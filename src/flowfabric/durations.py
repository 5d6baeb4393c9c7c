"""Private: durations as text: `"10m"`, `"2d"`, `"1h30m"`."""

import functools
import re
from datetime import datetime, timedelta

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
DURATION = re.compile(rf"(?:{PART.pattern})+", re.ASCII)
NOT_A_DURATION = "duration {!r:.82} is invalid; use a value such as 250ms, 30s, 10m, 1h30m, 2d or 1w"


def read_duration(given: str | timedelta) -> timedelta:
    """Read a duration from text such as `"1h30m"`, or check a `timedelta`. Raises `ValueError`, also below zero."""
    if isinstance(given, str):
        return _parse(given)
    if not isinstance(given, timedelta):
        raise ValueError(NOT_A_DURATION.format(given))
    if given < timedelta():
        raise ValueError(f"duration {given} is invalid; use zero or more")
    return given


def read_time(given: str | timedelta | datetime | None) -> timedelta | datetime | None:
    """Read a duration or a timestamp; `None` stays `None`. Raises `ValueError`."""
    if given is None:
        return None
    return read_timestamp(given) if isinstance(given, datetime) else read_duration(given)


def read_timestamp(given: datetime) -> datetime:
    """Check that a timestamp has a time zone. Raises `ValueError`."""
    if given.utcoffset() is None:
        raise ValueError(f"time {given} is invalid; use a datetime with a time zone, such as datetime.now(UTC)")
    return given


def format_duration(duration: timedelta) -> str:
    """Format a duration so that `read_duration` can read it: `1h30m`."""
    left, parts = duration // timedelta(milliseconds=1), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, timedelta(**{UNITS[unit]: 1}) // timedelta(milliseconds=1))
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def in_two_units(seconds: float) -> list[tuple[int, str]]:
    """Split a duration into its largest unit and the next one: `(1, "h"), (2, "m")`; empty below one second."""
    left = max(round(seconds), 0)
    counts: list[tuple[int, str]] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or counts:
            counts.append((count, unit))
    return [(count, unit) for count, unit in counts[:2] if count]


@functools.lru_cache(maxsize=1_000)
def _parse(given: str) -> timedelta:
    text = given.replace(" ", "")
    if not DURATION.fullmatch(text):
        raise ValueError(NOT_A_DURATION.format(given))
    try:
        return sum((timedelta(**{UNITS[unit]: float(amount)}) for amount, unit in PART.findall(text)), timedelta())
    except OverflowError:
        raise ValueError(f"duration {given!r:.82} is invalid; use at most ten years") from None
