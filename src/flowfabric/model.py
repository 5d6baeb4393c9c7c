"""Every noun as frozen data, in lifecycle order: what is asked for, where it waits, how it stands, how it ended."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, Literal, TypeVar
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId, FlowId

T = TypeVar("T")


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What submissions of one kind have in common: what to run, where it queues, what it needs, under which policy.

    Make it once and use it for many submissions: a call sends it, and the engine reads it, once however many share it.
    """

    kind: str
    namespace: str = "default"
    lane: str = "default"
    needs: Collection[str] = ()
    budgets: Collection[str] = ()
    quotas: Collection[str] = ()
    policy: Mapping[str, object] = {}
    encoding: str = "json"
    creator: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work asked for."""

    terms: Terms
    payload: bytes | None = None
    execution_id: ExecutionId | str | None = None
    """Minted when left out; give one to make a repeated submission answer `duplicate`."""
    key: str | None = None
    """An idempotency key, scoped by namespace; the empty key is none."""
    priority: int = 0
    delay: timedelta | datetime | None = None
    deadline: timedelta | datetime | None = None
    tags: Mapping[str, str] = {}


class SubmitOutcome(StrEnum):
    """What became of a submission."""

    CREATED = "created"
    DUPLICATE = "duplicate"


class PublicState(StrEnum):
    """Where an execution stands, in one word."""

    WAITING = "waiting"
    DELAYED = "delayed"
    WAITING_CHILDREN = "waiting_children"
    RATE_LIMITED = "rate_limited"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class Submitted(msgspec.Struct, frozen=True):
    """The execution a submission stands for; `public_state` is known when it was created by this call."""

    outcome: SubmitOutcome
    execution_id: ExecutionId
    public_state: PublicState | None = None


class Outcome(StrEnum):
    """How an execution ended."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state vector: seven answers to where an execution stands, all derived from what is stored."""

    lifecycle_phase: str
    ownership_state: str
    eligibility_state: str
    blocking_reason: str
    terminal_outcome: str
    attempt_state: str
    public_state: PublicState


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence that says what an execution waits for, and its data."""

    sentence: str
    waits_for: str
    since: datetime | None = None
    releases_at: datetime | None = None
    released_by: str | None = None


class CurrentAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt under way, or interrupted by a wait."""

    number: int
    type: str
    started_at: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run an execution until a moment."""

    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    expires_at: datetime


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker shows with every call it makes: the lease, and which claim and attempt it belongs to."""

    execution_id: ExecutionId
    lease_id: UUID
    epoch: int
    attempt: int


class Signal(msgspec.Struct, frozen=True, kw_only=True):
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


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """Why an execution goes on after a wait, and with what: exactly the signals that satisfied it."""

    suspension_id: UUID
    by: str
    signals: Sequence[Signal] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An execution given to a worker, and all the worker needs to run it."""

    execution_id: ExecutionId
    fence: Fence
    kind: str
    namespace: str
    lane: str
    priority: int
    route: int
    attempt: CurrentAttempt
    expires_at: datetime
    encoding: str = "json"
    payload: bytes | None = None
    tags: Mapping[str, str] = {}
    policy: Mapping[str, object] = {}
    resumed: bool = False
    """It goes on with the same attempt after a wait or a delay."""
    resumed_by: Resumed | None = None
    """What ended the wait it goes on from."""
    attempt_deadline: datetime | None = None
    deadline_at: datetime | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A signed promise of one execution to one worker; whoever holds the key may turn it into a lease."""

    execution_id: ExecutionId
    partition_key: str
    grant_key: str
    expires_at: datetime
    route: int

    def __repr__(self) -> str:
        return f"Grant(execution_id={str(self.execution_id)!r}, expires_at={self.expires_at})"


class VerifiedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a good grant says."""

    execution_id: ExecutionId
    worker: str
    instance: str
    expires_at: datetime


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that goes on."""

    expires_at: datetime


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """What revoking did: the lease that was taken away, or the cause why there was nothing to do."""

    outcome: Literal["revoked", "noop"]
    cause: str | None = None
    lease_id: UUID | None = None
    epoch: int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A report that the work is done."""

    fence: Fence
    result: bytes | None = None
    encoding: str = "json"


class Completed(msgspec.Struct, frozen=True, kw_only=True):
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


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """When work that was put off goes on."""

    due_at: datetime


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How often an execution was tried, and why."""

    attempts: int = 0
    retries: int = 0
    reclaims: int = 0
    replays: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """Why an execution or an attempt did not succeed."""

    class_: str
    category: str | None = None
    reason: str | None = None
    traceback: str | None = None


class BoundWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint with its token, which is shown to nobody but the execution itself."""

    id: UUID
    key: str
    token: str | None

    def __repr__(self) -> str:
        kid = (self.token or "").partition(":")[0]
        return f"BoundWaitpoint(id={self.id}, key={self.key!r}, kid={kid!r})"


class CreatedWaitpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A waitpoint made ahead of its suspension, to hand its token out first."""

    outcome: Literal["created", "existing"]
    waitpoint_id: UUID
    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return (
            f"CreatedWaitpoint({self.outcome}, waitpoint_id={self.waitpoint_id}, kid={self.token.partition(':')[0]!r})"
        )


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


class SuspensionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The suspension an execution is in."""

    suspension_id: UUID
    reason_code: str
    suspended_at: datetime
    timeout_behavior: str
    waitpoint_keys: Sequence[str]
    timeout_at: datetime | None = None
    about_digest: str | None = None


class SignalToSend(msgspec.Struct, frozen=True, kw_only=True):
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

    def __repr__(self) -> str:
        return f"SignalToSend({self.name!r} to waitpoint {self.waitpoint_id} of {self.execution_id})"


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as a list shows it."""

    execution_id: str
    namespace: str
    lane: str
    kind: str
    state: State
    explanation: Explanation
    counts: Counts
    created_at: datetime
    priority: int
    needs: Sequence[str] = ()
    budgets: Sequence[UUID] = ()
    quotas: Sequence[UUID] = ()
    flow_id: str | None = None
    creator: str | None = None
    attempt: CurrentAttempt | None = None
    lease: Lease | None = None
    suspension: SuspensionSummary | None = None
    started_at: datetime | None = None
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    failure: Failure | None = None


class Description(Summary, frozen=True, kw_only=True):
    """All there is to know of an execution; payload and result only when they were asked for."""

    tags: Mapping[str, str]
    policy: Mapping[str, object]
    encoding: str = "json"
    payload: bytes | None = None
    result_encoding: str = "json"
    result: bytes | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended and with what; without an outcome it has not."""

    outcome: Outcome | None
    result: bytes | None = None
    encoding: str = "json"
    failure: Failure | None = None


class PriorityChange(msgspec.Struct, frozen=True, kw_only=True):
    """The priority an execution has now, and the one it had."""

    priority: int
    previous: int


class TagChange(StrEnum):
    """What setting a tag did."""

    SET = "set"
    REMOVED = "removed"
    NOOP = "noop"


class HoldChange(StrEnum):
    """What holding an execution back, or letting it go, did."""

    HELD = "held"
    UNHELD = "unheld"
    NOOP = "noop"


class Unheld(msgspec.Struct, frozen=True, kw_only=True):
    """What letting an execution go did, and where it stands now."""

    outcome: HoldChange
    public_state: PublicState


class LaneChange(StrEnum):
    """What an operation did to a lane."""

    REGISTERED = "registered"
    CHANGED = "changed"
    PAUSED = "paused"
    DRAINING = "draining"
    ACTIVE = "active"
    NOOP = "noop"


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What draining a lane did, and how much it still has to finish (10 001 stands for more than 10 000)."""

    outcome: LaneChange
    left_count: int


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and what is in it; counts stop at 10 001, which stands for more than 10 000."""

    name: str
    state: str
    since: datetime
    by: str | None
    why: str | None
    keep_renewals: bool
    waiting_count: int
    delayed_count: int
    active_count: int
    suspended_count: int
    oldest_at: datetime | None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What registering a worker did, and until when it counts as live without a beat."""

    outcome: Literal["registered", "refreshed"]
    expires_at: datetime


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a beat counted; an instance that is not registered must register again."""

    instance: str
    outcome: Literal["refreshed", "not_registered"]
    expires_at: datetime | None = None


class MarkedDead(msgspec.Struct, frozen=True, kw_only=True):
    """What declaring an instance dead did, and how many leases it cost."""

    outcome: Literal["marked", "not_registered"]
    revoked: int


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One process that works, and how many leases it holds."""

    worker: str
    instance: str
    lanes: Sequence[str]
    capabilities: Sequence[str]
    namespace: str | None
    registered_at: datetime
    beat_at: datetime
    expires_at: datetime
    active_count: int


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key, without its secret; the active one has no expiry."""

    kid: str
    created_at: datetime
    expires_at: datetime | None = None


class Seeded(msgspec.Struct, frozen=True, kw_only=True):
    """What seeding did; a kid that is there already says whether it has the same secret."""

    outcome: Literal["seeded", "already_seeded"]
    same_secret: bool | None = None


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What rotating did, and how many open waitpoints still depend on older keys."""

    outcome: Literal["rotated", "noop"]
    previous_kid: str | None = None
    removed: int | None = None
    open_waitpoints: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log."""

    event_id: int
    cursor: str
    """Where to go on from after this event."""
    at: datetime
    kind: str
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
    """Which events to see; all parts given must hold, and an event without the asked part does not match."""

    namespace: str | None = None
    tag: tuple[str, str] | None = None
    """A key and its value."""
    lane: str | None = None
    kinds: Collection[str] | None = None
    partitions: Collection[int] | None = None
    """So that several consumers can share the work."""
    execution_id: ExecutionId | None = None
    flow_id: FlowId | None = None
    by: str | None = None
    acts: bool = False
    """Only what somebody did: events that name who."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events, and where to go on from; `more` when the log goes further already."""

    events: Sequence[Event]
    cursor: str
    more: bool


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of a sweep did: how many it moved, and which lanes and executions somebody may be waiting for."""

    moved: int
    lanes: Sequence[str] = ()
    ended: Sequence[str] = ()


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some of a list, and where the next page starts when more follows."""

    items: Sequence[T]
    next_cursor: str | None = None
