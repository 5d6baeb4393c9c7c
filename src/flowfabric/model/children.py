"""Children: executions that another one submits."""

from typing import Literal

import msgspec

from flowfabric.ids import ExecutionId
from flowfabric.model.claims import Fence
from flowfabric.model.executions import Submission

OnParentEnd = Literal["cancel", "let_run"]


class ChildToSubmit(msgspec.Struct, frozen=True, kw_only=True):
    """A child that a handler asks for at a place of its journal, under the id that follows from the place."""

    fence: Fence
    name: str
    occurrence: int
    execution_id: ExecutionId
    submission: Submission
    on_parent_end: OnParentEnd = "cancel"


class FoundChild(msgspec.Struct, frozen=True, kw_only=True):
    """What there is at that place: nothing, its child, or under its id something that is not its child."""

    outcome: Literal["new", "saved", "taken"]
    result: bytes | None = None
