"""Ticks: when a timing fires, also across clock changes, and which timings are invalid."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.engine.schedules import check_timing
from flowfabric.engine.schedules.ticks import Ticks, put_off
from flowfabric.errors import InvalidSchedule
from flowfabric.model import Timing
from tests.engine.schedules.oracle import CHANGES, CRONS, expected
from tests.engine.schedules.scene import DAY, HOUR, MINUTE, moment

SECOND = timedelta(seconds=1)


def between(ticks: Ticks, begin: datetime, end: datetime) -> Iterator[datetime]:
    tick = ticks.following(begin)
    while tick is not None and tick <= end:
        yield tick
        tick = ticks.following(tick)


def berlin(cron: str, begin: str, end: str) -> list[str]:
    """The ticks in Berlin, in local time."""
    ticks = Ticks(Timing(cron=cron, tz="Europe/Berlin"), moment(begin))
    found = between(ticks, moment(begin), moment(end))
    return [tick.astimezone(ZoneInfo("Europe/Berlin")).strftime("%d. %H:%M %z") for tick in found]


def test_a_skipped_local_time_ticks_at_the_next_existing_one() -> None:
    assert berlin("30 2 * * *", "2026-03-27 12:00", "2026-03-30 12:00") == [
        "28. 02:30 +0100",
        "29. 03:00 +0200",
        "30. 02:30 +0200",
    ]
    assert berlin("*/30 1-3 29 3 *", "2026-03-28 12:00", "2026-03-29 12:00") == [
        "29. 01:00 +0100", "29. 01:30 +0100", "29. 03:00 +0200", "29. 03:30 +0200",
    ]  # fmt: skip


def test_a_repeated_local_time_ticks_once() -> None:
    assert berlin("30 2 * * *", "2026-10-24 12:00", "2026-10-26 12:00") == ["25. 02:30 +0200", "26. 02:30 +0100"]
    assert berlin("*/30 * 25 10 *", "2026-10-25 00:00", "2026-10-25 02:00") == ["25. 02:30 +0200", "25. 03:00 +0100"]


@settings(deadline=None, max_examples=60)
@given(
    change=st.sampled_from(CHANGES),
    cron=st.sampled_from(CRONS),
    begin=st.integers(-360, 0),
    length=st.integers(1, 720),
    second=st.integers(0, 59),
)
def test_following_and_latest_agree_with_a_scan_of_every_minute(
    change: tuple[str, str], cron: str, begin: int, length: int, second: int
) -> None:
    tz, around = change
    start = moment(around) + begin * MINUTE + second * SECOND
    end = start + length * MINUTE
    ticks = Ticks(Timing(cron=cron, tz=tz), start)
    right = expected(cron, tz, start - DAY, end)

    assert list(between(ticks, start, end)) == [tick for tick in right if tick > start]
    assert ticks.latest(end) == (right[-1] if right else ticks.latest(start - DAY))


@settings(deadline=None, max_examples=60)
@given(every=st.integers(1, 5_000), anchor=st.integers(-9_999, 9_999), now=st.integers(-9_999, 9_999))
def test_every_ticks_at_multiples_of_its_interval_from_the_anchor(every: int, anchor: int, now: int) -> None:
    noon = moment("2026-06-01 12:00")
    ticks = Ticks(Timing(every=every * SECOND, anchor=noon + anchor * SECOND), noon)
    following, latest = ticks.following(noon + now * SECOND), ticks.latest(noon + now * SECOND)

    grid = range(anchor, 30_000, every)
    assert following == noon + min(tick for tick in grid if tick > now) * SECOND
    assert latest == max((noon + tick * SECOND for tick in grid if tick <= now), default=None)


def test_no_tick_comes_after_until() -> None:
    ticks = Ticks(Timing(cron="0 * * * *", until=moment("2026-06-01 14:00")), moment("2026-06-01 12:00"))

    assert [tick.hour for tick in ticks.coming(moment("2026-06-01 13:00"))] == [13, 14]
    assert ticks.latest(moment("2027-01-01 00:00")) == moment("2026-06-01 14:00")


def test_a_leap_day_is_found_years_ahead() -> None:
    assert Ticks(Timing(cron="0 0 29 2 *"), moment("2026-01-01 00:00")).following(moment("2026-01-01 00:00")) == moment(
        "2028-02-29 00:00"
    )


def test_jitter_is_the_same_for_the_same_tick_and_never_more_than_its_limit() -> None:
    ticks = [moment("2026-06-01 12:00") + number * HOUR for number in range(200)]
    late = [put_off("default", "nightly", tick, MINUTE) - tick for tick in ticks]

    assert late == [put_off("default", "nightly", tick, MINUTE) - tick for tick in ticks]
    assert timedelta() <= min(late) < 10 * SECOND < 50 * SECOND < max(late) <= MINUTE
    assert put_off("default", "nightly", ticks[0], timedelta()) == ticks[0]


BAD: list[tuple[str, dict[str, Any]]] = [
    ("cron", {}),
    ("cron", {"cron": "0 * * * *", "every": HOUR}),
    *(("cron", {"cron": cron}) for cron in ("", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", "@daily", 7)),
    *(("cron", {"cron": cron}) for cron in ("\0 * * * *", "\ud800 * * * *", "9" * 300, f"{'9' * 200} * * * *")),
    *(("tz", {"cron": "0 * * * *", "tz": tz}) for tz in ("", "Moon/Base", "Europe", "../etc", "a\0b", "localtime", 7)),
    *(("tz", {"cron": "0 * * * *", "tz": tz}) for tz in ("\ud800", "x" * 5_000, "right/UTC")),
    ("tz", {"every": HOUR, "tz": "Europe/Berlin"}),
    *(("every", {"every": span}) for span in (timedelta(), -HOUR, timedelta.max, "1h", SECOND / 2)),
    ("anchor", {"cron": "0 * * * *", "anchor": moment("2026-06-01 12:00")}),
    *(("anchor", {"every": HOUR, "anchor": at}) for at in (datetime(2026, 1, 1), "noon")),  # noqa: DTZ001
    *(("jitter", {"every": HOUR, "jitter": span}) for span in (-HOUR, 365 * DAY, None)),
    ("catch_up", {"every": HOUR, "catch_up": "some"}),
    ("catch_up_window", {"every": HOUR, "catch_up_window": timedelta()}),
    ("overlap", {"every": HOUR, "overlap": ["skip"]}),
    *(("until", {"every": HOUR, "until": at}) for at in (datetime(2026, 1, 1), 7)),  # noqa: DTZ001
    ("until", {"every": HOUR, "until": datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))}),
]


@pytest.mark.parametrize(("field", "timing"), BAD)
def test_an_invalid_timing_is_refused_with_its_field(field: str, timing: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        check_timing(Timing(**timing))
    assert refused.value.fields == {"field": field}
    assert len(refused.value.message) < 300


def test_a_valid_timing_passes() -> None:
    for cron in ("0 9 * * MON-FRI", "*/5 8-18 1,15 JAN *", "0 0 L * *", "0 0 * * 1#1"):
        timing = Timing(cron=cron, tz="America/New_York", until=datetime(2030, 1, 1, tzinfo=UTC))
        assert check_timing(timing) is timing
