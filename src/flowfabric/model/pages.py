"""Pages and sweeps: what many calls answer alike."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of a sweep did: how many it moved, and which lanes and executions somebody may be waiting for."""

    moved: int
    lanes: Sequence[str] = ()
    ended: Sequence[str] = ()


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some of a list, and where the next page starts when more follows."""

    items: Sequence[T]
    next_cursor: str | None = None
