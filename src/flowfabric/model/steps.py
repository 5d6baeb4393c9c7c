"""Steps: what a handler has done so far."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from flowfabric.model.claims import Fence
from flowfabric.model.waits import Signal


class Step(msgspec.Struct, frozen=True, kw_only=True):
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


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a handler need not do again: a saved step, a sleep, or a wait that has ended."""

    kind: Literal["step", "sleep", "wait"]
    name: str
    occurrence: int
    encoding: str = "json"
    result: bytes | None = None
    due_at: datetime | None = None
    by: str | None = None
    signals: Sequence[Signal] = ()


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """Some of what a handler has done, and whether there is more."""

    entries: Sequence[JournalEntry]
    more: bool
