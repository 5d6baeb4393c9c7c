"""Repeats: which part of a run only repeats what earlier runs have shown.

A run that is not the first starts at the top of its handler. What it appends outside of steps was appended before,
until it has passed the last entry of the journal.
"""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime

from flowfabric.handler.journal import is_failure
from flowfabric.model import JournalEntry


class Repeats:
    """Follows a run through its journal, in each of its asyncio tasks.

    A task repeats until it passes an entry that was completed after an earlier run last left something in the journal,
    or saves something itself. When its child tasks have ended, a task is as far as they were. No task repeats anything
    when no entry of the journal is left.
    """

    def __init__(self, journal: Sequence[JournalEntry]) -> None:
        journal = [entry for entry in journal if not is_failure(entry)]
        self._left = {(entry.name, entry.occurrence) for entry in journal}
        self._last_act = max((entry.at for entry in journal if entry.at is not None), default=None)
        self._main = _Branch(asyncio.current_task(), None)

    @property
    def is_repeating(self) -> bool:
        """Whether the current task repeats what an earlier run has done."""
        return bool(self._left) and not self._branch().is_new

    def pass_entry(self, entry: JournalEntry) -> None:
        """Note that the current task got what is saved in an entry."""
        self._left.discard((entry.name, entry.occurrence))
        completed = _completed_at(entry)
        if self._last_act is not None and completed is not None and completed >= self._last_act:
            self._branch().turn_new()

    def leave_out(self, entry: JournalEntry) -> None:
        """Note that no task will get what is saved in an entry: a wait that lost in `any_of`."""
        self._left.discard((entry.name, entry.occurrence))

    def turn_new(self) -> None:
        """Note that the current task has saved something that no earlier run had saved."""
        self._branch().turn_new()

    def _branch(self) -> "_Branch":
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread
            task = None
        if task is self._main.task:
            return self._main
        parent = _branch.get(self._main)
        if parent.main is not self._main:  # of another run, whose context this one was started in
            parent = self._main
        if task is None or parent.task is task:
            return parent
        branch = _Branch(task, parent)
        _branch.set(branch)
        return branch


class _Branch:
    """How far one asyncio task of a run is."""

    __slots__ = ("_ahead", "_is_new", "main", "parent", "task")

    def __init__(self, task: "asyncio.Task[object] | None", parent: "_Branch | None") -> None:
        self.task = task
        self.parent = parent
        self.main: _Branch = self if parent is None else parent.main
        self._is_new = parent is not None and parent.is_new
        self._ahead: list[_Branch] = []  # child tasks that are further than this one

    @property
    def is_new(self) -> bool:
        """Whether the task does what no earlier run has done."""
        if not self._is_new and any(child.has_ended_new for child in self._ahead):
            self.turn_new()
        return self._is_new

    @property
    def has_ended_new(self) -> bool:
        return self.task is not None and self.task.done() and self.is_new

    def turn_new(self) -> None:
        self._is_new = True
        self._ahead.clear()
        child: _Branch = self
        while (parent := child.parent) is not None and not parent._is_new and child not in parent._ahead:
            parent._ahead.append(child)
            child = parent


_branch: ContextVar[_Branch] = ContextVar("branch")


def _completed_at(entry: JournalEntry) -> datetime | None:
    if entry.at is None:
        return None
    return max(entry.ended_at or entry.due_at or entry.at, entry.at)
