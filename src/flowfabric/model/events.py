"""Events: entries of the log, and filters to read it."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from flowfabric.ids import ExecutionId, FlowId


class EventKind(StrEnum):
    """Every kind of event that the engine writes, or wrote in an earlier release."""

    ATTEMPT_FAILED = "attempt_failed"
    BUDGET_CHANGED = "budget_changed"
    BUDGET_CREATED = "budget_created"
    BUDGET_HARD_BREACHED = "budget_hard_breached"
    BUDGET_RESET = "budget_reset"
    BUDGET_SOFT_BREACHED = "budget_soft_breached"
    EDGE_ADDED = "edge_added"
    EDGE_GROUP_IMPOSSIBLE = "edge_group_impossible"
    EDGE_GROUP_SATISFIED = "edge_group_satisfied"
    EDGE_GROUP_SET = "edge_group_set"
    EXECUTION_CANCELLED = "execution_cancelled"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_DELAYED = "execution_delayed"
    EXECUTION_EXPIRED = "execution_expired"
    EXECUTION_FAILED = "execution_failed"
    EXECUTION_HELD = "execution_held"
    EXECUTION_OVERRIDDEN = "execution_overridden"
    EXECUTION_REPLAYED = "execution_replayed"
    EXECUTION_RESUMED = "execution_resumed"
    EXECUTION_SKIPPED = "execution_skipped"
    EXECUTION_SUBMITTED = "execution_submitted"
    EXECUTION_SUSPENDED = "execution_suspended"
    EXECUTION_UNHELD = "execution_unheld"
    FLOW_CANCELLED = "flow_cancelled"
    FLOW_CREATED = "flow_created"
    FLOW_MEMBER_ADDED = "flow_member_added"
    GRANT_EXPIRED = "grant_expired"
    GRANT_ISSUED = "grant_issued"
    KEY_ROTATED = "key_rotated"
    KEY_SEEDED = "key_seeded"
    LANE_DRAIN_STARTED = "lane_drain_started"
    LANE_PAUSED = "lane_paused"
    LANE_REGISTERED = "lane_registered"
    LANE_RESUMED = "lane_resumed"
    LEASE_ACQUIRED = "lease_acquired"
    LEASE_EXPIRED = "lease_expired"
    LEASE_RENEWED = "lease_renewed"
    LEASE_REVOKED = "lease_revoked"
    PRIORITY_CHANGED = "priority_changed"
    QUOTA_CHANGED = "quota_changed"
    QUOTA_CREATED = "quota_created"
    RESERVATION_EXPIRED = "reservation_expired"
    RESERVATION_MADE = "reservation_made"
    RESERVATION_RELEASED = "reservation_released"
    RESERVATION_SETTLED = "reservation_settled"
    SCHEDULE_CHANGED = "schedule_changed"
    SCHEDULE_CREATED = "schedule_created"
    SCHEDULE_DELETED = "schedule_deleted"
    SCHEDULE_FIRED = "schedule_fired"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_REFUSED = "schedule_refused"
    SCHEDULE_RESUMED = "schedule_resumed"
    SCHEDULE_SKIPPED = "schedule_skipped"
    SIGNAL_DELIVERED = "signal_delivered"
    SUSPENSION_ESCALATED = "suspension_escalated"
    TAG_SET = "tag_set"
    USAGE_RELEASED = "usage_released"
    WAITPOINT_CLOSED = "waitpoint_closed"
    WAITPOINT_CREATED = "waitpoint_created"
    WORKER_EXPIRED = "worker_expired"
    WORKER_MARKED_DEAD = "worker_marked_dead"
    WORKER_REGISTERED = "worker_registered"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log."""

    event_id: int
    cursor: str
    """The cursor to continue from after this event."""
    at: datetime
    kind: str
    """One of `EventKind`, or a kind that a newer release writes."""
    partition: int | None = None
    execution_id: ExecutionId | None = None
    flow_id: FlowId | None = None
    subject: str | None = None
    """The lane, worker, budget, quota or key it is about, when it is not about an execution."""
    namespace: str | None = None
    lane: str | None = None
    tags: Mapping[str, str] = {}
    by: str | None = None
    detail: Mapping[str, object] = {}


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to read; all given fields must match, and an event without such a field does not match."""

    namespace: str | None = None
    tag: tuple[str, str] | None = None
    """A key and its value."""
    lane: str | None = None
    kinds: Collection[str] | None = None
    """Values of `EventKind`; an unknown kind is refused, because nothing would ever match it."""
    partitions: Collection[int] | None = None
    """Only these partitions, so that several consumers can share the work."""
    execution_id: ExecutionId | None = None
    flow_id: FlowId | None = None
    by: str | None = None
    acts: bool = False
    """Only acts of operators: events with a `by`."""
    leases: bool = False
    """Only leases: acquired, renewed, and how each one ended."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events, and the cursor to continue from; `more` if the log already has further events."""

    events: Sequence[Event]
    cursor: str
    more: bool
    truncated: bool = False
    """The execution is older than the oldest event kept: the beginning of its timeline is missing."""
