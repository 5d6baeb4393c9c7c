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
    """The state of a flow, derived from the states of its members."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CancelPolicy(StrEnum):
    """Which members are cancelled with a flow."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    """Members without a lease; running members finish normally."""
    FLOW_ONLY = "flow_only"


class EdgePolicy(msgspec.Struct, frozen=True):
    """The policy for all edges into one member: how many of its upstreams must succeed."""

    kind: Literal["all_of", "any_of", "quorum"] = "all_of"
    k: int | None = None
    on_satisfied: Literal["cancel_remaining", "let_run"] | None = None
    """What happens to unfinished upstreams once the group is decided; the default is `cancel_remaining`."""


class CreatedFlow(msgspec.Struct, frozen=True):
    """The result of `create_flow`: a new flow, or the existing one."""

    outcome: Literal["created", "duplicate"]
    flow_id: FlowId


class AddedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `add_execution`, with the flow's member count and revision."""

    outcome: Literal["added", "already_member"]
    execution_id: ExecutionId
    node_count: int
    revision: int


class AddedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `add_edge`; `revision` and the count of pending upstreams are set if this call added the edge."""

    outcome: Literal["added", "already_applied"]
    edge_id: UUID
    revision: int | None = None
    unsatisfied: int | None = None
    lanes: Sequence[str] = ()
    """Where members became claimable, because the upstream had already succeeded."""
    ended: Sequence[ExecutionId] = ()
    """Members that ended, because the upstream had already failed."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member in `submit_flow`; its name is local to the call."""

    name: str
    submission: Submission


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """An edge in `submit_flow`, between two members by name."""

    upstream: str
    downstream: str
    pass_as: str | None = None


class SubmittedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `submit_flow`, with the execution of each member name."""

    outcome: Literal["created", "duplicate"]
    flow_id: FlowId
    executions: Mapping[str, ExecutionId]


class CancelledFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `cancel_flow`, or of the first call: `members` are the first 1,000 of `count`."""

    outcome: Literal["cancelled", "already_cancelled"]
    policy: CancelPolicy
    count: int
    members: Sequence[ExecutionId] = ()
    reason: str | None = None
    by: str | None = None


class Cancelling(msgspec.Struct, frozen=True, kw_only=True):
    """How a flow was cancelled."""

    policy: CancelPolicy
    reason: str | None = None
    by: str | None = None


class EdgeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All edges into one member, and how many are in each state."""

    downstream: ExecutionId
    policy: EdgePolicy
    n: int
    succeeded: int
    failed: int
    skipped: int
    running: int
    state: Literal["pending", "satisfied", "impossible"]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A dependency: `downstream` waits for `upstream`."""

    edge_id: UUID
    upstream: ExecutionId
    downstream: ExecutionId
    state: Literal["pending", "succeeded", "failed", "skipped"]
    pass_as: str | None = None


class FlowMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as `describe_flow` shows it."""

    execution_id: ExecutionId
    task: str
    public_state: PublicState


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, as `list_flows` shows it."""

    flow_id: FlowId
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
    """A flow with a page of its members, edges and groups."""

    counts: Mapping[PublicState, int] = {}
    """The number of members per state, without zero counts."""
    groups: Sequence[EdgeGroup] = ()
    edges: Sequence[Edge] = ()
    members: Sequence[FlowMember] = ()
    next_cursor: str | None = None
    """The last member of this page; pass it to read the next page of members with their edges and groups."""
