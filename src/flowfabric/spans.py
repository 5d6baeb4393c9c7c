"""Spans of time as people write them: `"10m"`, `"2d"`, `"1h30m"`."""

import re
from datetime import datetime, timedelta

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
SPAN = re.compile(rf"(?:{PART.pattern})+")


def read_span(given: str | timedelta) -> timedelta:
    """A span, whichever way it was written. Raises `ValueError`."""
    if isinstance(given, timedelta):
        return given
    if not SPAN.fullmatch(given.replace(" ", "")):
        raise ValueError(f"{given!r} is no span of time; write one like 250ms, 30s, 10m, 1h30m, 2d or 1w")
    parts = PART.findall(given.replace(" ", ""))
    return sum((timedelta(**{UNITS[unit]: float(amount)}) for amount, unit in parts), timedelta())


def read_time(given: str | timedelta | datetime | None) -> timedelta | datetime | None:
    """A span or a moment; nothing stays nothing."""
    return given if given is None or isinstance(given, datetime) else read_span(given)
