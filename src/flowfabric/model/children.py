"""Children: executions that another execution submits."""

from typing import Literal

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence
from flowfabric.model.executions import Submission

OnParentEnd = Literal["cancel", "let_run"]


class ChildToSubmit(msgspec.Struct, frozen=True, kw_only=True):
    """A child that a handler submits at a place in its journal, under the id derived from that place."""

    fence: Fence
    name: str
    occurrence: int
    execution_id: ExecutionId
    submission: Submission
    on_parent_end: OnParentEnd = "cancel"


class FoundChild(msgspec.Struct, frozen=True, kw_only=True):
    """The state of that place: new, saved with its child, or taken because another execution has the id."""

    outcome: Literal["new", "saved", "taken"]
    result: bytes | None = None
