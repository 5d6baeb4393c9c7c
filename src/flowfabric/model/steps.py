"""Steps: what a handler has done so far."""

from datetime import datetime
from typing import Literal

import msgspec

from flowfabric.model.claims import Fence


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a step, to be kept; the occurrence counts uses of the name within one run, from 1."""

    fence: Fence
    name: str
    occurrence: int
    result: bytes | None = None
    encoding: str = "json"
    due_at: datetime | None = None
    """When a sleep ends; what is kept then is the place of the sleep."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a step was saved, or an earlier one of that name and occurrence counts, with its result."""

    outcome: Literal["saved", "duplicate"]
    result: bytes | None = None
    encoding: str = "json"
