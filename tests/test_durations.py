"""Durations: how they are read and written."""

from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import durations


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("1.5m", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(days=7)),
        ("0s", timedelta()),
    ],
)
def test_a_duration_is_read(written: str, meant: timedelta) -> None:
    assert durations.read_duration(written) == meant


@pytest.mark.parametrize("written", ["250ms", "30s", "1h30m", "2d", "14d", "1d12h5ms", "0s"])
def test_a_duration_is_written_in_the_largest_units(written: str) -> None:
    assert durations.format_duration(durations.read_duration(written)) == written


@pytest.mark.parametrize("written", ["", "5", "m", "-5s", "5 parsecs", "1h30", "٣s", "5s\n5", 5, 1.5, None])
def test_an_invalid_duration_is_refused_with_examples(written: str) -> None:
    with pytest.raises(ValueError, match="250ms, 30s, 10m"):
        durations.read_duration(written)


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match=r"-1|zero|negative"):
        durations.read_duration(timedelta(seconds=-1))


def test_a_duration_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="9999999999999w"):
        durations.read_duration("9999999999999w")


def test_a_time_is_a_duration_a_moment_or_none() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    assert [durations.read_time(given) for given in ("1s", moment, None)] == [timedelta(seconds=1), moment, None]


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        durations.read_time(datetime(2030, 1, 1))  # noqa: DTZ001 - the case under test
