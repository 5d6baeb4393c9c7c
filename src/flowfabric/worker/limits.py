"""Limits on runs: how many of a task run at once in this worker, and how long an attempt may take."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from flowfabric.app.tasks import Task
from flowfabric.model import Claim
from flowfabric.worker.run import Lost, Outcome

log = logging.getLogger("flowfabric.worker")


class Limits:
    """Limits the concurrent runs of each task. As many again may wait in slots for their turn."""

    def __init__(self, tasks: Iterable[Task[..., Any]]) -> None:
        self._free = {task: asyncio.Semaphore(task.limit) for task in tasks if task.limit is not None}
        self._inside: Counter[Task[..., Any]] = Counter()

    def is_full(self, task: Task[..., Any]) -> bool:
        """Whether so many run and wait that another run should be postponed."""
        return task.limit is not None and self._inside[task] >= 2 * task.limit

    def has_room(self, task: Task[..., Any]) -> bool:
        """Whether another run of the task may start at once."""
        return task.limit is None or self._inside[task] < task.limit

    @asynccontextmanager
    async def turn(self, task: Task[..., Any]) -> AsyncIterator[None]:
        """Wait until another run of a task with a limit may start."""
        self._inside[task] += 1
        try:
            async with self._free[task]:
                yield
        finally:
            self._inside[task] -= 1


def time_left(claim: Claim, lease: timedelta) -> timedelta | None:
    """How long an attempt may take from its claim on, including the wait for its turn."""
    return None if claim.attempt_deadline is None else claim.attempt_deadline - (claim.expires_at - lease)


async def within(limit: timedelta, claim: Claim, running: Awaitable[Outcome]) -> Outcome:
    """Return the outcome of a run that has a time limit.

    When the time is up, this only stops the handler: the sweep fails the attempt.
    """
    outcome: Outcome = Lost()
    with suppress(TimeoutError):
        async with asyncio.timeout(limit.total_seconds()) as timer:
            outcome = await running
    if timer.expired() and isinstance(outcome, Lost):
        log.warning(
            "%s %s used up its timeout in attempt %d and was cancelled; the sweep fails it, and its retry policy "
            "decides what happens next",
            *(claim.task, claim.execution_id, claim.attempt.number),
        )
    return outcome
