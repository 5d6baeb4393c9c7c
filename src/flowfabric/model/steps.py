"""Steps: the results that a handler has saved."""

from datetime import datetime, timedelta
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
    lasted: timedelta | None = None
    """How long its function took."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a step was saved, or the result of an earlier step with that name and occurrence."""

    outcome: Literal["saved", "duplicate"]
    result: bytes | None = None
    encoding: str = "json"


class ReportedStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that runs, as its worker reports it."""

    name: str
    occurrence: int
    number: int
    """Which step or sleep of the run it is, from 1."""
    elapsed: timedelta


class RunningStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that an execution runs, since a second or longer."""

    name: str
    occurrence: int
    number: int
    """Which step or sleep of the run it is, from 1."""
    started_at: datetime


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A step or sleep of an execution: saved, or running since a second or longer."""

    name: str
    occurrence: int
    kind: Literal["step", "sleep"]
    state: Literal["running", "completed", "sleeping", "interrupted"]
    """A sleep is `sleeping` until it is over, and `interrupted` if the execution ended before."""
    started_at: datetime | None = None
    """`None` for what has no function of its own, such as a submitted child."""
    saved_at: datetime | None = None
    """`None` while it runs."""
    due_at: datetime | None = None
    """When a sleep ends."""
    lasted: timedelta | None = None
    """How long its function took, with its retries and until the result was saved, or has run; how long a sleep is."""
    size: int = 0
    """How many bytes the result has."""
    encoding: str = "json"
    result: bytes | None = None
    """Only if requested."""
