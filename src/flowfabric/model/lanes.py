"""Lanes: the queues that workers claim from."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec


class LaneChange(StrEnum):
    """What an operation did to a lane."""

    REGISTERED = "registered"
    CHANGED = "changed"
    PAUSED = "paused"
    DRAINING = "draining"
    ACTIVE = "active"
    NOOP = "noop"


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What draining a lane did, and how many executions are left (10,001 means more than 10,000)."""

    outcome: LaneChange
    left_count: int


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and the number of its executions by state; counts stop at 10,001, which means more than 10,000."""

    name: str
    state: str
    since: datetime
    by: str | None
    reason: str | None
    keep_renewals: bool
    stream_retention_maxlen: int | None = None
    stream_retention: timedelta | None = None
    waiting_count: int
    delayed_count: int
    active_count: int
    suspended_count: int
    oldest_at: datetime | None
