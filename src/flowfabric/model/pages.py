"""Pages of lists, and results of sweeps."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from flowfabric.ids import ExecutionId

T = TypeVar("T")


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of a sweep did: how many items it moved, and the lanes and executions to notify about.

    `locked` counts the items that it found and could not move, because another transaction has locked them.
    """

    moved: int
    locked: int = 0
    lanes: Sequence[str] = ()
    ended: Sequence[ExecutionId] = ()


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list, and the cursor of the next page if there is one."""

    items: Sequence[T]
    next_cursor: str | None = None
