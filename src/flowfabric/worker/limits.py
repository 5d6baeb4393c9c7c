"""Limits of single runs: how many of a task go on at once here, and for how long each may."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from flowfabric.app.tasks import Task
from flowfabric.model import Claim
from flowfabric.worker.run import Lost, Outcome


class Limits:
    """How many runs of each task go on at once here. As many again may wait for their turn, holding a slot."""

    def __init__(self, tasks: Iterable[Task[..., Any]]) -> None:
        self._most = {task.name: task.limit for task in tasks if task.limit is not None}
        self._free = {name: asyncio.Semaphore(most) for name, most in self._most.items()}
        self._inside: Counter[str] = Counter()

    def is_full(self, name: str) -> bool:
        """Whether so many run and wait that another had better be put off."""
        return name in self._most and self._inside[name] >= 2 * self._most[name]

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait until one more may run of a task that has a limit."""
        self._inside[name] += 1
        try:
            async with self._free[name]:
                yield
        finally:
            self._inside[name] -= 1


def time_left(claim: Claim, lease: timedelta) -> timedelta | None:
    """How long an attempt may go on from its claim; the wait for its turn is part of that."""
    return None if claim.attempt_deadline is None else claim.attempt_deadline - (claim.expires_at - lease)


async def within(span: timedelta, running: Awaitable[Outcome]) -> Outcome:
    """What comes of a run that may take so long.

    The sweep fails an attempt whose time is up; all there is to do here is to stop the handler.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(span.total_seconds()):
            return await running
    return Lost()
