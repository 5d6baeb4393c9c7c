"""Waits: suspensions, waitpoints and signals."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that was delivered to a waitpoint."""

    signal_id: UUID
    name: str
    category: str
    source_type: str
    source_identity: str
    at: datetime
    waitpoint_id: UUID | None = None
    encoding: str = "json"
    payload: bytes | None = None
    correlation_id: str | None = None


class BoundWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint with its token; only the execution itself can read the token."""

    id: UUID
    key: str
    token: str | None
    """None in a repeated answer, if the signing key has been removed."""

    def __repr__(self) -> str:
        kid = (self.token or "").partition(":")[0]
        return f"BoundWaitpoint(id={self.id}, key={self.key!r}, kid={kid!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("id", self.id), ("key", self.key)]


class CreatedWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint created before its suspension, so that its token can be given away first."""

    outcome: Literal["created", "existing"]
    waitpoint_id: UUID
    key: str
    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return (
            f"CreatedWaitpoint({self.outcome}, waitpoint_id={self.waitpoint_id}, kid={self.token.partition(':')[0]!r})"
        )

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("outcome", self.outcome), ("waitpoint_id", self.waitpoint_id), ("key", self.key)]


class Suspension(msgspec.Struct, frozen=True, kw_only=True):
    """A wait for signals: the condition, its waitpoints, and what happens at the timeout."""

    condition: Mapping[str, object]
    waitpoints: Sequence[str | tuple[str, UUID]] = ()
    """Keys; a pair of key and id for a waitpoint that was created earlier."""
    reason_code: str = "waiting_for_signal"
    timeout: timedelta | datetime | None = None
    timeout_behavior: str | None = None
    resume_delay: timedelta | None = None
    requested_by: str = "worker"
    idempotency_key: str | None = None
    name: str | None = None
    occurrence: int | None = None
    about: bytes | None = None
    """The subject of the request, shown to the person who decides."""
    bind: bool = False
    """Count only decisions that carry the digest of `about`, so that people decide on what they were shown."""


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `suspend`; if already satisfied, the execution stays active and keeps its lease."""

    outcome: Literal["suspended", "already_satisfied"]
    suspension_id: UUID
    """The id of the wait too, if there is only one."""
    waitpoints: Sequence[BoundWaitpoint] = ()
    signals: Sequence[Signal] = ()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A wait of a run, at its place in the journal: for a child, a point in time, or a condition."""

    name: str
    occurrence: int
    what: ExecutionId | datetime | Suspension
    choice: int | None = None
    """Waits with the same number are alternatives: the first that ends releases the others."""


class SuspensionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The suspension an execution is in."""

    suspension_id: UUID
    reason_code: str
    suspended_at: datetime
    timeout_behavior: str
    waitpoint_keys: Sequence[str]
    timeout_at: datetime | None = None
    about_digest: str | None = None


class SignalToSend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to a waitpoint, with the token that allows it."""

    execution_id: ExecutionId
    waitpoint_id: UUID | None = None
    """The waitpoint by its id; without it, by its key."""
    waitpoint: str | None = None
    """The key of the waitpoint: of the open one with this key, else of the newest."""
    token: str
    name: str
    source_type: str = "external"
    source_identity: str = "unknown"
    signal_id: UUID | None = None
    category: str = "signal"
    payload: bytes | None = None
    encoding: str = "json"
    correlation_id: str | None = None
    idempotency_key: str | None = None
    digest: bytes | None = None
    """The SHA-256 of the `about` of the request; a bound request counts no signal without it."""

    def __repr__(self) -> str:
        return f"SignalToSend({self.name!r} to waitpoint {self.waitpoint_id or self.waitpoint} of {self.execution_id})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        waitpoint = self.waitpoint_id or self.waitpoint
        return [("name", self.name), ("waitpoint", waitpoint), ("execution_id", str(self.execution_id))]


class Delivered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The effect of a signal; a duplicate has no effect and carries the id of the first signal."""

    outcome: Literal["accepted", "duplicate"]
    signal_id: UUID
    effect: str | None = None
    lane: str | None = None
    """The lane to wake, if an execution became runnable."""


class Waitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint as lists show it: the kid and a fingerprint, never the token."""

    waitpoint_id: UUID
    key: str
    state: str
    required_signal_names: Sequence[str]
    created_at: datetime
    kid: str
    fingerprint: str
    signal_count: int
    activated_at: datetime | None = None
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    about_digest: str | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that an execution waits for."""

    execution_id: ExecutionId
    approval_id: UUID
    title: str
    """The key of its waitpoint, to approve or reject it."""
    task: str
    namespace: str
    lane: str
    asked_at: datetime
    timeout_at: datetime | None = None
    about: bytes | None = None
    about_digest: str | None = None
    approvers: int = 1
    """How many different people must approve."""
    approved_by: Sequence[str] = ()
    """Who has approved so far; once more by one of them counts nothing."""
    by_token: bool = True
    """Whether the holder of the waitpoint's token may answer too, or only people who are authenticated."""
    tags: Mapping[str, str] = {}


class SuspendedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A suspended execution, or one of its waits."""

    execution_id: ExecutionId
    suspension_id: UUID
    suspended_at: datetime
    reason_code: str
    waitpoint_keys: Sequence[str]
    timeout_behavior: str
    timeout_at: datetime | None = None
    about: bytes | None = None
    about_digest: str | None = None
