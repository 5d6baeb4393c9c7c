"""Spans of time as people write them: `"10m"`, `"2d"`, `"1h30m"`."""

import functools
import re
from datetime import datetime, timedelta

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
NO_SPAN = "{!r:.82} is no span of time; write one like 250ms, 30s, 10m, 1h30m, 2d or 1w"
SPAN = re.compile(rf"(?:{PART.pattern})+", re.ASCII)


def read_span(given: str | timedelta) -> timedelta:
    """A span, whichever way it was written. Raises `ValueError` for what is none, or is below zero."""
    if isinstance(given, str):
        return _parse(given)
    if not isinstance(given, timedelta):
        raise ValueError(NO_SPAN.format(given))
    if given < timedelta():
        raise ValueError(f"{given} is below zero; a span of time goes forward")
    return given


def read_time(given: str | timedelta | datetime | None) -> timedelta | datetime | None:
    """A span or a moment; nothing stays nothing. Raises `ValueError`."""
    if given is None:
        return None
    return read_moment(given) if isinstance(given, datetime) else read_span(given)


def read_moment(given: datetime) -> datetime:
    """A moment that means the same everywhere. Raises `ValueError`."""
    if given.utcoffset() is None:
        raise ValueError(f"{given} has no time zone; give a moment such as datetime.now(UTC)")
    return given


def write_span(span: timedelta) -> str:
    """A span as it is written to be read: `1h30m`."""
    left, parts = span // timedelta(milliseconds=1), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, timedelta(**{UNITS[unit]: 1}) // timedelta(milliseconds=1))
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def in_two_units(seconds: float) -> list[tuple[int, str]]:
    """A span as people say it: how many of its largest unit and of the next one; nothing for less than a second."""
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
    if not SPAN.fullmatch(text):
        raise ValueError(NO_SPAN.format(given))
    try:
        return sum((timedelta(**{UNITS[unit]: float(amount)}) for amount, unit in PART.findall(text)), timedelta())
    except OverflowError:
        raise ValueError(
            f"{given!r:.82} is longer than time is counted; ten years are the most that can be used"
        ) from None
