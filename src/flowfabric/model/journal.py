"""The journal: what a handler has already done, for a run that starts again from the top."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from flowfabric.model.waits import Signal


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that a handler does not repeat: a saved step, a sleep, or a completed wait."""

    kind: Literal["step", "sleep", "wait"]
    name: str
    occurrence: int
    encoding: str = "json"
    result: bytes | None = None
    due_at: datetime | None = None
    by: str | None = None
    signals: Sequence[Signal] = ()
    at: datetime | None = None
    """When a run saved the step, or suspended for a wait that has ended."""
    ended_at: datetime | None = None
    """When the wait ended."""


class Journal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Some entries of a journal, and whether more follow."""

    entries: Sequence[JournalEntry]
    more: bool
