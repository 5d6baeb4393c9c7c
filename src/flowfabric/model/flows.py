"""Flows: executions with dependencies between them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model.executions import PublicState, Submission


class FlowState(StrEnum):
    """Where a flow stands, in one word, by where its members do."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CancelPolicy(StrEnum):
    """Which members a cancelled flow takes with it."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    """Those without a lease; what runs goes on and ends as it would."""
    FLOW_ONLY = "flow_only"


class EdgePolicy(msgspec.Struct, frozen=True):
    """The rule over all edges into one member: how many of its upstreams must succeed."""

    kind: Literal["all_of", "any_of", "quorum"] = "all_of"
    k: int | None = None
    on_satisfied: Literal["cancel_remaining", "let_run"] | None = None
    """What becomes of upstreams that still run when it is decided; `cancel_remaining` unless said otherwise."""


class CreatedFlow(msgspec.Struct, frozen=True):
    """The flow that a call stands for."""

    outcome: Literal["created", "duplicate"]
    flow_id: FlowId


class AddedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a flow, and how many that makes."""

    outcome: Literal["added", "already_member"]
    execution_id: ExecutionId
    node_count: int
    revision: int


class AddedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge, and how many upstreams the child still waits for; revision and count when it was added by this call."""

    outcome: Literal["added", "already_applied"]
    edge_id: UUID
    revision: int | None = None
    unsatisfied: int | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a flow that is submitted whole, under a name of that call's own."""

    name: str
    submission: Submission


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """An edge between two members of a flow that is submitted whole, by their names."""

    upstream: str
    downstream: str
    pass_as: str | None = None


class SubmittedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that was submitted whole, and the execution behind each name."""

    outcome: Literal["created", "duplicate"]
    flow_id: FlowId
    executions: Mapping[str, ExecutionId]


class CancelledFlow(msgspec.Struct, frozen=True, kw_only=True):
    """What cancelling a flow did, or had done: `members` are the first thousand of `count`."""

    outcome: Literal["cancelled", "already_cancelled"]
    policy: CancelPolicy
    count: int
    members: Sequence[str] = ()
    reason: str | None = None
    by: str | None = None


class Cancelling(msgspec.Struct, frozen=True, kw_only=True):
    """How a flow was cancelled."""

    policy: CancelPolicy
    reason: str | None = None
    by: str | None = None


class EdgeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All edges into one member, and how they stand."""

    downstream: str
    policy: EdgePolicy
    n: int
    succeeded: int
    failed: int
    skipped: int
    running: int
    state: Literal["pending", "satisfied", "impossible"]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """One member that waits for another."""

    edge_id: UUID
    upstream: str
    downstream: str
    state: Literal["pending", "succeeded", "failed", "skipped"]
    pass_as: str | None = None


class FlowMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the description of its flow shows it."""

    execution_id: str
    kind: str
    public_state: PublicState


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as a list shows it."""

    flow_id: str
    kind: str
    namespace: str
    state: FlowState
    revision: int
    node_count: int
    edge_count: int
    created_at: datetime
    changed_at: datetime
    cancelled_at: datetime | None = None
    cancel: Cancelling | None = None
    tags: Mapping[str, str] = {}


class FlowDescription(FlowSummary, frozen=True, kw_only=True):
    """All there is to know of a flow; members, edges and groups page by page."""

    counts: Mapping[PublicState, int] = {}
    """How many members are in each state; those of which there are none are left out."""
    groups: Sequence[EdgeGroup] = ()
    edges: Sequence[Edge] = ()
    members: Sequence[FlowMember] = ()
    next_cursor: str | None = None
    """Where the next page begins: behind this member, with the edges and the group that lead to each."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What ends have brought about in their flows: the lanes with work now, and who has ended with them."""

    lanes: Sequence[str] = ()
    ended: Sequence[str] = ()
