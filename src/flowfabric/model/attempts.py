"""Attempts: the runs of an execution and how they ended."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A report that an execution is complete, with its result."""

    fence: Fence
    result: bytes | None = None
    encoding: str = "json"


class Completed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The execution completed successfully. Of many, the first has the `lanes` and `ended` of all."""

    lanes: Sequence[str] = ()
    """Where members of its flow became claimable."""
    ended: Sequence[ExecutionId] = ()
    """Members of its flow that were cancelled or skipped because of it; at most 10,000."""


class FailureClass(StrEnum):
    """The class of a failure, which the retry policy depends on."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    INFRA_CRASH = "infra_crash"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report that an attempt failed."""

    fence: Fence
    class_: FailureClass = FailureClass.TRANSIENT
    reason: str
    category: str | None = None
    """A custom word that the retry policy may list; defaults to the class."""
    traceback: str | None = None
    retry_after: timedelta | None = None
    """How long to wait before the retry, instead of the policy's backoff."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a failed attempt: a retry at `due_at`, or, without `due_at`, the end of the execution.

    Of many, the first one that ended has the `ended` of all.
    """

    outcome: Literal["retry_scheduled", "failed"]
    due_at: datetime | None = None
    next_attempt: int | None = None
    ended: Sequence[ExecutionId] = ()
    """Members of its flow that were skipped or cancelled because of it; at most 10,000."""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """A request to delay an attempt; without `until`, to release it immediately."""

    fence: Fence
    until: timedelta | datetime | None = None
    name: str | None = None
    """With the occurrence, the key of the journal entry: a sleeping handler does not sleep there again."""
    occurrence: int | None = None
    reason: str | None = None
    """The reason that `explain` gives, if the handler did not request the delay."""


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """When a delayed attempt continues."""

    due_at: datetime


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """Why an execution or an attempt did not succeed."""

    class_: str
    category: str | None = None
    reason: str | None = None
    traceback: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an execution; the current attempt has no `ended_at`."""

    number: int
    type: str
    lifecycle: str
    worker: str | None
    instance: str | None
    first_epoch: int
    last_epoch: int
    started_at: datetime
    ended_at: datetime | None = None
    failure: Failure | None = None
