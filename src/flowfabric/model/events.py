"""Events: the log, line by line."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec

from flowfabric.ids import ExecutionId, FlowId


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
    truncated: bool = False
    """The timeline of an execution that is older than what is kept of the log: its beginning is missing."""
