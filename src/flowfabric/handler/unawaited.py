"""Calls of the context that a handler has not awaited, so they did nothing."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

from flowfabric.handler.budgets import Reservation
from flowfabric.handler.waits import Lazy
from flowfabric.ids import shown

Made: TypeAlias = Coroutine[Any, Any, Any] | Lazy[Any] | Reservation

FEW = 64


class Calls:
    """The awaitables that a context has returned in one run."""

    def __init__(self) -> None:
        self._made: list[tuple[str, object, Any]] = []
        self._full = FEW

    def add(self, call: str, about: object, made: Any) -> None:
        """Remember what a call has returned; `about` is its first argument."""
        self._made.append((call, about, made))
        if len(self._made) >= self._full:  # a long run keeps only those that it has not awaited yet
            self._made = [each for each in self._made if not _is_begun(each[2])]
            self._full = FEW + 2 * len(self._made)

    def unawaited(self) -> list[str]:
        """List the calls that nothing has awaited, as a handler writes them. They can no longer be awaited."""
        idle = [each for each in self._made if not _is_begun(each[2])]
        if not idle:
            return []
        scheduled = {id(task.get_coro()) for task in asyncio.all_tasks()}
        found = [each for each in idle if id(each[2]) not in scheduled]
        for _, _, made in found:
            if not isinstance(made, Reservation):
                made.close()  # otherwise Python warns again, without the name of the call
        return [f"{call}({_shown(about)})" for call, about, _ in found]


def _is_begun(made: Any) -> bool:
    if isinstance(made, Lazy | Reservation):
        return made.is_begun
    return made.cr_frame is None or made.cr_suspended or made.cr_running


def _shown(about: object) -> str:
    return "..." if about is None else shown(str(about))
