"""Following: after flow members end, notifies the workers and callers of the members that this released or ended."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from flowfabric.app.waiters import Waiters
from flowfabric.engine import flows
from flowfabric.ids import ExecutionId
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

log = logging.getLogger("flowfabric.app")


class Follower:
    """Looks up what ended executions changed in their flows, in batches, and notifies workers and waiting callers.

    Nothing depends on these notifications: workers and callers also poll.
    """

    def __init__(self, database: Database, notifier: Notifier, waiters: Waiters) -> None:
        self._database = database
        self._notifier = notifier
        self._waiters = waiters
        self._ended: set[ExecutionId] = set()
        self._following: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Return when all pending notifications have been sent."""
        if self._following is not None:
            await asyncio.wait([self._following])

    def follow(self, ended: Iterable[ExecutionId]) -> None:
        """Look up what these ends changed, in the background."""
        self._ended.update(ended)
        if self._ended and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="flows: follow ends")

    async def _follow(self) -> None:
        while self._ended:
            asked, self._ended = sorted(self._ended), set()
            try:
                found = await self._database.run(partial(flows.follow_ends, ended=asked))
            except Exception as error:
                log.warning(
                    "could not find the executions affected by the end of %s and %d more; callers poll for them: %s",
                    *(asked[0], len(asked) - 1, error),
                )
                return
            names = [str(execution_id) for execution_id in found.ended]
            self._waiters.wake(names)
            self._notifier.send(lanes=found.lanes, ended=names)
