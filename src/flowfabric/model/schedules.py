"""Schedules: what is submitted again and again, when, and what becomes of ticks that come at a bad time."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from flowfabric.durations import format_duration
from flowfabric.model.executions import Options


class CatchUp(StrEnum):
    """What becomes of ticks that passed while nobody looked."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """What a tick does when the execution before it is unfinished."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule ticks: by `cron` in a time zone, or `every` span from an anchor."""

    cron: str | None = None
    tz: str = "UTC"
    every: timedelta | None = None
    anchor: datetime | None = None
    """What `every` counts from; the moment of its creation when left out."""
    jitter: timedelta = timedelta()
    """The longest that an execution is put off; how long follows from its tick."""
    catch_up: str = CatchUp.LAST
    catch_up_window: timedelta = timedelta(days=1)
    """How old a tick may be that `all` still runs."""
    overlap: str = Overlap.ALLOW
    until: datetime | None = None
    """No tick after this moment."""


class ScheduleState(StrEnum):
    """How a schedule stands, in one word."""

    ACTIVE = "active"
    PAUSED = "paused"
    REFUSED = "refused"
    FINISHED = "finished"


class ScheduleChange(StrEnum):
    """What an operation did to a schedule."""

    CREATED = "created"
    CHANGED = "changed"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELETED = "deleted"
    NOOP = "noop"


class ScheduleRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a schedule cannot submit, and since when; it is tried again and again."""

    code: str
    message: str
    tick: datetime
    since: datetime
    count: int


class SchedulePause(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused a schedule, when and why."""

    since: datetime
    by: str | None = None
    why: str | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands; `ticks` are the next five. The payload is there only when one schedule is described."""

    namespace: str
    name: str
    state: ScheduleState
    options: Options
    timing: Timing
    anchor_at: datetime
    declared: bool
    created_at: datetime
    changed_at: datetime
    priority: int
    revision: int
    by: str | None = None
    next_tick_at: datetime | None = None
    last_tick_at: datetime | None = None
    last_execution_id: str | None = None
    deadline_ms: int | None = None
    tags: Mapping[str, str] = {}
    pause: SchedulePause | None = None
    refusal: ScheduleRefusal | None = None
    ticks: Sequence[datetime] = ()
    payload: bytes | None = None

    @property
    def when(self) -> str:
        """When it ticks, in a few words."""
        timing = self.timing
        ticks = f"every {format_duration(timing.every)}" if timing.every else f"{timing.cron} {timing.tz}"
        return f"{ticks}, up to {format_duration(timing.jitter)} later" if timing.jitter else ticks


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What firing by hand did; when the one before is unfinished and ticks are skipped then, its id."""

    outcome: str
    execution_id: str
    lane: str
    ended: Sequence[str] = ()
