"""Overview: one snapshot of waiting, running and stuck executions."""

from collections.abc import Sequence
from datetime import datetime

import msgspec


class LaneFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and its counts; a count stops at 10,001, which means more than 10,000."""

    name: str
    state: str
    since: datetime
    by: str | None
    reason: str | None
    waiting_count: int
    active_count: int
    delayed_count: int
    suspended_count: int
    held_count: int
    oldest_at: datetime | None


class WorkerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker instance, and whether it is lost; its count stops at 1,001."""

    instance: str
    worker: str
    namespace: str | None
    lanes: Sequence[str]
    capabilities: Sequence[str]
    beat_at: datetime
    is_lost: bool
    running_count: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second, and over how many seconds they were measured."""

    span_s: float
    submitted: float
    claimed: float
    completed: float
    failed: float
    attempts_failed: float


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest running and suspended executions, and when the next delayed one is due."""

    running_since: datetime | None
    suspended_since: datetime | None
    next_due_at: datetime | None


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Executions that do not continue, grouped by reason; `sentence` explains it. The amount stops at 1,001."""

    reason: str
    """A code: `no_worker`, `no_task`, `no_version`, `blocked_by_route`, `waiting_for_signal`, `worker_lost`, …"""
    lane: str
    subject: str | None
    """The needs of a route, the task, its version, the first execution, or the worker, depending on the reason."""
    amount: int
    since: datetime
    releases_at: datetime | None
    sentence: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot. `lanes` and `workers` are the first few; `lane_count` and `worker_count` count all."""

    at: datetime
    lanes: Sequence[LaneFrame]
    lane_count: int
    workers: Sequence[WorkerFrame]
    worker_count: int
    rates: Rates
    ages: Ages
    stuck: Sequence[Stuck]
