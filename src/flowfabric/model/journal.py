"""The journal: what a handler has done so far, for a run that begins again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from flowfabric.model.waits import Signal


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing a handler need not do again: a saved step, a sleep, or a wait that has ended."""

    kind: Literal["step", "sleep", "wait"]
    name: str
    occurrence: int
    encoding: str = "json"
    result: bytes | None = None
    due_at: datetime | None = None
    by: str | None = None
    signals: Sequence[Signal] = ()


class Journal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Some of what a handler has done, and whether there is more."""

    entries: Sequence[JournalEntry]
    more: bool
