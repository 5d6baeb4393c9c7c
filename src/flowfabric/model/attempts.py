"""Attempts: how a try at running an execution ended."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

import msgspec

from flowfabric.model.claims import Fence


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A report that the work is done."""

    fence: Fence
    result: bytes | None = None
    encoding: str = "json"


class Completed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The execution has ended well."""


class FailureClass(StrEnum):
    """What kind of failure ended an attempt; the retry policy goes by it."""

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
    """A word of the caller's own, which the retry policy may list; the class where it is left out."""
    traceback: str | None = None
    retry_after: timedelta | None = None
    """When to try again, instead of the policy's backoff."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a failed attempt: a retry at `due_at`, or without one the end of the execution."""

    outcome: Literal["retry_scheduled", "failed"]
    due_at: datetime | None = None
    next_attempt: int | None = None


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to put an attempt off; without a moment, to hand it back at once."""

    fence: Fence
    until: timedelta | datetime | None = None
    name: str | None = None
    """Its place in the journal, with the occurrence: a handler that sleeps is not put to sleep there again."""
    occurrence: int | None = None
    why: str | None = None
    """What `explain` says of it, when the handler did not ask for it."""


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """When work that was put off goes on."""

    due_at: datetime


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """Why an execution or an attempt did not succeed."""

    class_: str
    category: str | None = None
    reason: str | None = None
    traceback: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at running an execution; the one under way has no end."""

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
