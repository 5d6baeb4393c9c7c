"""Overview: one frame of what waits, runs and is stuck."""

from collections.abc import Sequence
from datetime import datetime

import msgspec


class LaneFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and what is in it; counts stop at 10 001, which stands for more than 10 000."""

    name: str
    state: str
    since: datetime
    by: str | None
    why: str | None
    waiting_count: int
    active_count: int
    delayed_count: int
    suspended_count: int
    held_count: int
    oldest_at: datetime | None


class WorkerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that is registered, and whether it still lives; its count stops at 1 001."""

    instance: str
    worker: str
    namespace: str | None
    lanes: Sequence[str]
    capabilities: Sequence[str]
    beat_at: datetime
    is_lost: bool
    running_count: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How often things happen each second, and over how many seconds that was measured."""

    span_s: float
    submitted: float
    claimed: float
    completed: float
    failed: float
    attempts_failed: float


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the oldest of each kind is what it is, and when the next is due."""

    running_since: datetime | None
    suspended_since: datetime | None
    next_due_at: datetime | None


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Work that does not go on, one reason at a time: why, and what to do. The amount stops at 1 001."""

    reason: str
    lane: str
    subject: str | None
    amount: int
    since: datetime
    releases_at: datetime | None
    why: str
    remedy: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One frame. Lanes and workers are the first few of as many as the counts say."""

    at: datetime
    lanes: Sequence[LaneFrame]
    lane_count: int
    workers: Sequence[WorkerFrame]
    worker_count: int
    rates: Rates
    ages: Ages
    stuck: Sequence[Stuck]
