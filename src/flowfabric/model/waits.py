"""Waits: what an execution steps aside for, and what reaches it."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that reached a waitpoint."""

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


class Resumed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why an execution goes on after a wait, and with what: exactly the signals that satisfied it."""

    suspension_id: UUID
    by: str
    signals: Sequence[Signal] = ()


class BoundWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint with its token, which is shown to nobody but the execution itself."""

    id: UUID
    key: str
    token: str | None
    """None in a repeated answer, when the key that signed it is long gone."""

    def __repr__(self) -> str:
        kid = (self.token or "").partition(":")[0]
        return f"BoundWaitpoint(id={self.id}, key={self.key!r}, kid={kid!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("id", self.id), ("key", self.key)]


class CreatedWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint made ahead of its suspension, to hand its token out first."""

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
    """A wish to step aside: for what, on which waitpoints, and what to do when it does not come."""

    condition: Mapping[str, object]
    waitpoints: Sequence[str | tuple[str, UUID]] = ()
    """Keys; with an id for one that was made ahead."""
    reason_code: str = "waiting_for_signal"
    timeout: timedelta | datetime | None = None
    timeout_behavior: str | None = None
    resume_delay: timedelta | None = None
    requested_by: str = "worker"
    idempotency_key: str | None = None
    name: str | None = None
    occurrence: int | None = None
    about: bytes | None = None
    """What is being asked, shown to whoever answers."""
    bind: bool = False
    """Count only decisions that carry the digest of `about`: what was shown is what was decided."""


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish to step aside; already satisfied, the execution goes on with its lease."""

    outcome: Literal["suspended", "already_satisfied"]
    suspension_id: UUID
    waitpoints: Sequence[BoundWaitpoint]
    signals: Sequence[Signal] = ()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One of several waits of a run, at its place in the journal: for a child, a moment, or a condition."""

    name: str
    occurrence: int
    what: ExecutionId | datetime | Suspension
    choice: int | None = None
    """Those of one number are alternatives: the first that is over takes the others out."""


class SuspendedTogether(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish to step aside for several waits; already satisfied, the execution keeps its lease."""

    outcome: Literal["suspended", "already_satisfied"]
    suspension_id: UUID


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
    waitpoint_id: UUID
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
    """The SHA-256 of what was asked; a bound request counts no signal without it."""

    def __repr__(self) -> str:
        return f"SignalToSend({self.name!r} to waitpoint {self.waitpoint_id} of {self.execution_id})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("waitpoint_id", self.waitpoint_id), ("execution_id", str(self.execution_id))]


class Delivered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a signal did; a duplicate names the first one's id and did nothing."""

    outcome: Literal["accepted", "duplicate"]
    signal_id: UUID
    effect: str | None = None
    lane: str | None = None
    """Where there is work again because of it."""


class Waitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint as everybody may see it: the kid and a fingerprint, never the token."""

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


class SuspendedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that waits, and for what."""

    execution_id: ExecutionId
    suspension_id: UUID
    suspended_at: datetime
    reason_code: str
    waitpoint_keys: Sequence[str]
    timeout_behavior: str
    timeout_at: datetime | None = None
    about: bytes | None = None
    about_digest: str | None = None
