"""Steps: the results that a handler has saved."""

from datetime import datetime
from typing import Literal

import msgspec

from flowfabric.model.claims import Fence


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a step to save; the occurrence counts uses of the name within one run, from 1."""

    fence: Fence
    name: str
    occurrence: int
    result: bytes | None = None
    encoding: str = "json"
    due_at: datetime | None = None
    """When a sleep ends. With it, the journal entry is a sleep and not a step."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a step was saved, or the result of an earlier step with that name and occurrence."""

    outcome: Literal["saved", "duplicate"]
    result: bytes | None = None
    encoding: str = "json"


class SavedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step or sleep that an execution has saved."""

    name: str
    occurrence: int
    kind: Literal["step", "sleep"]
    state: Literal["completed", "sleeping", "interrupted"]
    """A sleep is `sleeping` until it is over, and `interrupted` if the execution ended before."""
    saved_at: datetime
    due_at: datetime | None = None
    """When a sleep ends."""
    size: int = 0
    """How many bytes the result has."""
    encoding: str = "json"
    result: bytes | None = None
    """Only if requested."""
