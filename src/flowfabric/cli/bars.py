"""Bars: how much of a limit is used, for people; in letters that every terminal and every log has."""

from datetime import datetime, timedelta

WIDTH = 20
MILLISECOND = timedelta(milliseconds=1)


def bar(used: int, limit: int | None, reserved: int = 0) -> str:
    """So much of it is used (`#`), set aside (`=`) and free (`.`); nothing where there is no limit."""
    if limit is None:
        return ""
    filled = _share(used + reserved, limit)
    solid = min(_share(used, limit), filled)
    drawn = "#" * solid + "=" * (filled - solid)
    return f"[{drawn:.<{WIDTH}}] {(used + reserved) * 100 // limit}%"


def until_ms(at: datetime | None, now: datetime) -> int | None:
    """How long it is until then, in milliseconds."""
    return None if at is None else max(at - now, timedelta()) // MILLISECOND


def _share(amount: int, limit: int) -> int:
    """How much of a bar that is: full only when nothing is left, empty only when nothing is there."""
    if not 0 < amount < limit:
        return WIDTH if amount >= limit else 0
    return min(max(round(WIDTH * amount / limit), 1), WIDTH - 1)
