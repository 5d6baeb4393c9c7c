"""Children: executions that another execution submits."""

from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence
from flowfabric.model.executions import Submission

OnParentEnd = Literal["cancel", "let_run"]


class ChildMap(msgspec.Struct, frozen=True):
    """Children of one execution, of which at most `max_running` have started and not ended."""

    id: UUID
    max_running: int


class ChildToSubmit(msgspec.Struct, frozen=True, kw_only=True):
    """A child that a handler submits at a place in its journal, under the id derived from that place."""

    fence: Fence
    name: str
    occurrence: int
    execution_id: ExecutionId
    submission: Submission
    on_parent_end: OnParentEnd = "cancel"
    map: ChildMap | None = None
    """The map that it belongs to: it waits for its turn there."""


class FoundChild(msgspec.Struct, frozen=True, kw_only=True):
    """The state of that place: new, saved with its child, or taken because another execution has the id."""

    outcome: Literal["new", "saved", "taken"]
    result: bytes | None = None
