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


class TaskVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a task: who serves it, and what is left of it. Tasks without versions have version 1."""

    version: int
    left_count: int
    """How many unfinished executions have started under it; 10,001 means more than 10,000."""
    worker_count: int
    """How many live workers have it."""
    lanes: Sequence[str]
    """The lanes that these workers have for it."""
    instances: Sequence[str] = ()
    """The first 20 of these workers; a list of tasks leaves them out."""


class ListedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, its versions, and how many of its executions are unfinished."""

    name: str
    new_count: int
    """How many have not started under any version; 10,001 means more than 10,000.

    If a task has only version 1, they count there.
    """
    is_exact: bool
    """Whether all unfinished executions were counted.

    If there are more than 10,000 of all tasks, those without a version are counted among the first 10,000.
    """
    versions: Sequence[TaskVersion]
    """The newest first."""


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
