"""Workers: the processes that run executions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `register_worker`, and until when it counts as live without a heartbeat."""

    outcome: Literal["registered", "refreshed"]
    expires_at: datetime


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a heartbeat; an instance that is not registered must register again.

    If another transaction has locked the entry, it is not extended: the next heartbeat tries again.
    """

    instance: str
    outcome: Literal["refreshed", "locked", "not_registered"]
    expires_at: datetime | None = None


class MarkedDead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `mark_dead`, and how many leases were revoked."""

    outcome: Literal["marked", "not_registered"]
    revoked: int


class RegisteredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker has registered."""

    name: str
    version: int = 1
    lane: str = "default"
    schema: Mapping[str, object] | None = None
    """The JSON Schema of its arguments, if there is one."""


class FoundTask(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `find_task`."""

    outcome: Literal["registered", "possible", "missing", "no_worker"]
    """`possible` if only workers that have registered no tasks may have it."""
    nearest: Sequence[str]
    """Registered tasks with similar names, if it is missing."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, and how many leases it holds."""

    worker: str
    instance: str
    lanes: Sequence[str]
    capabilities: Sequence[str]
    namespace: str | None
    registered_at: datetime
    beat_at: datetime
    expires_at: datetime
    active_count: int
    tasks: Sequence[str] = ()
    """The names of its tasks, the first 20."""
    task_count: int | None = None
    """How many tasks it has registered; `None` if it may have any."""


class WorkerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, with all its tasks."""

    worker: str
    instance: str
    lanes: Sequence[str]
    capabilities: Sequence[str]
    namespace: str | None
    registered_at: datetime
    beat_at: datetime
    expires_at: datetime
    active_count: int
    task_count: int | None
    tasks: Sequence[RegisteredTask] | None
