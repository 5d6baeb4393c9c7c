"""Schedules: what they submit, when, and what happens to missed and overlapping ticks."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from flowfabric.durations import format_duration
from flowfabric.ids import ExecutionId
from flowfabric.model.executions import Options


class CatchUp(StrEnum):
    """What to do with ticks that were missed while no process fired schedules."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """What a tick does if the previous execution is unfinished."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule ticks: by a `cron` expression in a time zone, or at the interval `every` from an anchor."""

    cron: str | None = None
    tz: str = "UTC"
    every: timedelta | None = None
    anchor: datetime | None = None
    """The time that `every` counts from; default: when the schedule is created."""
    jitter: timedelta = timedelta()
    """The longest delay of an execution; the actual delay is derived from its tick."""
    catch_up: str = CatchUp.LAST
    catch_up_window: timedelta = timedelta(days=1)
    """The oldest missed tick that `all` still fires."""
    overlap: str = Overlap.ALLOW
    until: datetime | None = None
    """No tick after this time."""


class ScheduleState(StrEnum):
    """The state of a schedule."""

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
    """Why a schedule cannot submit, and since when; the sweep keeps retrying."""

    code: str
    message: str
    tick: datetime
    since: datetime
    count: int


class SchedulePause(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused a schedule, when and why."""

    since: datetime
    by: str | None = None
    reason: str | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule; `ticks` are the next five. Only `describe_schedule` includes the payload."""

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
    last_execution_id: ExecutionId | None = None
    deadline_ms: int | None = None
    tags: Mapping[str, str] = {}
    pause: SchedulePause | None = None
    refusal: ScheduleRefusal | None = None
    ticks: Sequence[datetime] = ()
    payload: bytes | None = None

    @property
    def when(self) -> str:
        """When it ticks, as a short text."""
        timing = self.timing
        ticks = f"every {format_duration(timing.every)}" if timing.every else f"{timing.cron} {timing.tz}"
        return f"{ticks}, up to {format_duration(timing.jitter)} later" if timing.jitter else ticks


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `fire_schedule`; if the outcome is `skipped`, the id of the unfinished execution."""

    outcome: str
    execution_id: ExecutionId
    lane: str
    ended: Sequence[ExecutionId] = ()
