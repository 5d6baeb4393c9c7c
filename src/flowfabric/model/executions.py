"""Executions: what is asked for, how it stands, how it ended."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model.attempts import Failure
from flowfabric.model.claims import CurrentAttempt, Lease
from flowfabric.model.waits import SuspensionSummary


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What submissions of one kind have in common: what to run, where it queues, what it needs, under which policy.

    Make it once and use it for many submissions: a call sends it, and the engine reads it, once however many share it.
    """

    task: str
    namespace: str = "default"
    lane: str = "default"
    needs: Collection[str] = ()
    budgets: Collection[str] = ()
    quotas: Collection[str] = ()
    policy: Mapping[str, object] = {}
    encoding: str = "json"
    creator: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One piece of work asked for."""

    options: Options
    payload: bytes | None = None
    execution_id: ExecutionId | str | None = None
    """Minted when left out; give one to make a repeated submission answer `duplicate`."""
    key: str | None = None
    """An idempotency key, scoped by namespace; the empty key is none."""
    priority: int = 0
    delay: timedelta | datetime | None = None
    deadline: timedelta | datetime | None = None
    tags: Mapping[str, str] = {}
    flow: FlowId | str | None = None
    """The flow it becomes a member of; an id of its own must then be in the flow's partition."""


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


class Submitted(msgspec.Struct, frozen=True, gc=False):
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


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How often an execution was tried, and why."""

    attempts: int = 0
    retries: int = 0
    reclaims: int = 0
    replays: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as a list shows it."""

    execution_id: str
    namespace: str
    lane: str
    task: str
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
