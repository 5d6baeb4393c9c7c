"""Sharing a task: runs whose handlers never await use the same task, one after the other."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context


class Shared:
    """Tells whether the current task can run another handler: not if the last one awaited or left something behind.

    It may have changed context variables, or have cancelled the task. `awaits` is called when a handler first awaits.
    """

    def __init__(self, task: asyncio.Task[None], awaits: Callable[[], None]) -> None:
        self._task = task
        self._context = copy_context()
        self._awaits = awaits
        self._has_awaited = False
        # The next turn of the event loop comes when the task awaits, before the task resumes.
        self._turn = asyncio.get_running_loop().call_soon(self._turned)

    def close(self) -> None:
        """Stop watching: the task runs no more handlers."""
        self._turn.cancel()

    @property
    def is_unchanged(self) -> bool:
        """Whether the task is as good as new."""
        return not self._has_awaited and not self._task.cancelling() and copy_context() == self._context

    def _turned(self) -> None:
        self._has_awaited = True
        self._awaits()
