"""Ticks: compute when a schedule fires, from its cron expression or interval, and what to do with missed ticks.

Cron expressions use local time. A local time that a clock change skips fires at the next existing one; a local time
that occurs twice fires the first time.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from flowfabric.errors import InvalidSchedule
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import CatchUp, Overlap, Timing

MOST_BYTES = 256
GRACE = timedelta(minutes=1)  # without catch-up, a tick may still fire this late
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=3_650)
LONGEST_JITTER = timedelta(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE, _SECOND, _MICROSECOND = timedelta(minutes=1), timedelta(seconds=1), timedelta(microseconds=1)
_CRON = "use five fields: minute, hour, day of month, month, day of week"
_OF_THIS_MACHINE = ("localtime", "posix", "right/")


class Decision(NamedTuple):
    """The tick to fire now, if any, and the next one, if any."""

    tick: datetime | None
    following: datetime | None


class Ticks:
    """The ticks of a timing. Raises `InvalidSchedule` with its `field` if the timing is invalid."""

    def __init__(self, timing: Timing, anchor: datetime) -> None:
        self.timing = check_timing(timing)
        self._anchor = timing.anchor or anchor

    def following(self, after: datetime) -> datetime | None:
        """Return the first tick after a time."""
        try:
            tick = self._every_following(after) if self.timing.cron is None else self._cron_following(after)
        except OverflowError:
            return None
        return None if tick is None or self._is_over(tick) else tick

    def latest(self, upto: datetime) -> datetime | None:
        """Return the last tick up to a time."""
        upto = min(upto, self.timing.until or upto)
        if self.timing.cron is None:
            assert self.timing.every is not None
            since = upto - self._anchor
            return None if since < timedelta() else self._anchor + since // self.timing.every * self.timing.every
        return self._cron_latest(upto)

    def coming(self, first: datetime | None, count: int = 5) -> Iterator[datetime]:
        """Iterate over a tick and its next ones."""
        tick = first
        while tick is not None and count > 0:
            yield tick
            tick, count = self.following(tick), count - 1

    def decide(self, waiting: datetime, now: datetime) -> Decision:
        """Decide what to do when `waiting` is the oldest tick not handled yet."""
        if self.timing.catch_up == CatchUp.ALL:
            oldest = now - self.timing.catch_up_window
            tick = waiting if waiting > oldest else self.following(oldest)
            if tick is None or tick > now:
                return Decision(None, tick)
            return Decision(tick, self.following(tick))
        # `waiting` may come from another release of the time zone database, with other ticks.
        tick = max(self.latest(now) or waiting, waiting)
        late = self.timing.catch_up == CatchUp.NONE and now - tick > GRACE
        return Decision(None if late else tick, self.following(tick))

    def _is_over(self, tick: datetime) -> bool:
        return self.timing.until is not None and tick > self.timing.until

    def _every_following(self, after: datetime) -> datetime:
        assert self.timing.every is not None
        if after < self._anchor:
            return self._anchor
        return self._anchor + ((after - self._anchor) // self.timing.every + 1) * self.timing.every

    def _cron_following(self, after: datetime) -> datetime | None:
        zone = ZoneInfo(self.timing.tz)
        moments = (_moment(local, zone) for local in self._locals(_local(after, zone)))
        return next((moment for moment in moments if moment > after), None)

    def _cron_latest(self, upto: datetime) -> datetime | None:
        zone = ZoneInfo(self.timing.tz)
        # In a repeated hour, all of its local times have already occurred.
        here = upto.astimezone(zone)
        ahead = (here.replace(fold=0).utcoffset() or timedelta()) - (here.utcoffset() or timedelta())
        behind = self._locals(_local(upto, zone) + ahead + _SECOND, reverse=True)
        moments = (_moment(local, zone) for local in behind)
        return next((moment for moment in moments if moment <= upto), None)

    def _locals(self, begin: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        """Local times of the expression after `begin`, or before it; naive, so that no clock change matters."""
        assert self.timing.cron is not None
        return CronSim(self.timing.cron, begin, reverse=reverse)


def check_timing(timing: Timing) -> Timing:
    """Return the timing if it is valid. Raises `InvalidSchedule` with its `field`."""
    if (timing.cron is None) == (timing.every is None):
        raise InvalidSchedule("the timing is invalid; use either cron or every", field="cron")
    if timing.cron is not None:
        _check_cron(timing.cron)
        _check_zone(timing.tz)
        if timing.anchor is not None:
            raise InvalidSchedule(f"anchor {timing.anchor} has no effect with cron; remove it", field="anchor")
    else:
        _check_span("every", timing.every, SHORTEST, LONGEST)
        if timing.tz != "UTC":
            raise InvalidSchedule(f"tz {shown(str(timing.tz))} has no effect with every; remove it", field="tz")
    _check_span("jitter", timing.jitter, timedelta(), LONGEST_JITTER)
    _check_span("catch_up_window", timing.catch_up_window, SHORTEST, LONGEST)
    _check_word("catch_up", timing.catch_up, CatchUp)
    _check_word("overlap", timing.overlap, Overlap)
    _check_moment("anchor", timing.anchor)
    _check_moment("until", timing.until)
    return timing


def execution_id(namespace: str, name: str, tick: datetime) -> ExecutionId:
    """The execution id of a tick: the same in every process and at every time."""
    return ExecutionId.derived(_digest(namespace, name, tick))


def put_off(namespace: str, name: str, tick: datetime, jitter: timedelta) -> datetime:
    """When the execution of a tick starts: up to `jitter` later, the same in every process."""
    chance = int.from_bytes(_digest(namespace, name, tick)[16:24])
    return tick + chance % (jitter // _MICROSECOND + 1) * _MICROSECOND


def encode_timing(timing: Timing) -> str:
    """The stored form of a timing; equal timings have equal texts."""
    return msgspec.json.encode(
        msgspec.structs.replace(timing, anchor=_utc(timing.anchor), until=_utc(timing.until))
    ).decode()


def _digest(namespace: str, name: str, tick: datetime) -> bytes:
    return hashlib.sha256(f"schedule\0{namespace}\0{name}\0{(tick - _EPOCH) // _MICROSECOND}".encode()).digest()


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _moment(local: datetime, zone: ZoneInfo) -> datetime:
    """The first occurrence of a local time in UTC; if a clock change skips it, the next existing time."""
    while True:
        moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if _local(moment, zone) == local:
            return moment
        local = local.replace(second=0) + _MINUTE


def _check_cron(cron: object) -> None:
    if not isinstance(cron, str) or len(cron) > MOST_BYTES or len(cron.split()) != 5:
        raise InvalidSchedule(f"cron {shown(str(cron))} is invalid; {_CRON}", field="cron")
    try:
        comes = next(CronSim(cron, datetime(2000, 1, 1)), None)  # noqa: DTZ001 - local time, wherever it is read
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidSchedule(f"cron {shown(cron)} is invalid: {error}; {_CRON}", field="cron") from None
    if comes is None:
        raise InvalidSchedule(f"cron {shown(cron)} is invalid because it matches no date; {_CRON}", field="cron")


def _check_zone(tz: object) -> None:
    problem = "is invalid; use an IANA name such as Europe/Berlin"
    if not isinstance(tz, str) or len(tz) > MOST_BYTES or tz.startswith(_OF_THIS_MACHINE):
        raise InvalidSchedule(f"tz {shown(str(tz))} {problem}", field="tz")
    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise InvalidSchedule(f"tz {shown(tz)} {problem}", field="tz") from None


def _check_span(field: str, span: object, least: timedelta, most: timedelta) -> None:
    if not isinstance(span, timedelta) or not least <= span <= most:
        raise InvalidSchedule(
            f"{field} {shown(str(span))} is invalid; use a duration from {least} to {most}", field=field
        )


def _check_word(field: str, word: object, words: type[CatchUp] | type[Overlap]) -> None:
    if word not in list(words):
        raise InvalidSchedule(f"{field} {shown(str(word))} is invalid; use {', '.join(words)}", field=field)


def _check_moment(field: str, moment: object) -> None:
    try:
        good = moment is None or (isinstance(moment, datetime) and moment.utcoffset() is not None)
        if isinstance(moment, datetime):
            moment.astimezone(UTC)
    except OverflowError:
        good = False
    if not good:
        raise InvalidSchedule(f"{field} {shown(str(moment))} is invalid; use a datetime with a time zone", field=field)


def _utc(moment: datetime | None) -> datetime | None:
    return moment and moment.astimezone(UTC)
