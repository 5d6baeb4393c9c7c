"""Following: tells what ends have brought about in their flows, who may run now and who has ended with them."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from flowfabric.app.waiters import Waiters
from flowfabric.engine import flows
from flowfabric.ids import parse_execution_id
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

log = logging.getLogger("flowfabric.app")


class Follower:
    """Looks after ends what came of them, those of one moment together, and tells those who wait.

    What this misses is found by looking, as everything is.
    """

    def __init__(self, database: Database, notifier: Notifier, waiters: Waiters) -> None:
        self._database = database
        self._notifier = notifier
        self._waiters = waiters
        self._ended: set[str] = set()
        self._following: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Return when everything has been told."""
        if self._following is not None:
            await asyncio.wait([self._following])

    def follow(self, ended: Iterable[str]) -> None:
        """Look what came of these ends; returns at once."""
        self._ended.update(ended)
        if self._ended and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="following: look")

    async def _follow(self) -> None:
        partitions = self._database.config.execution_partitions
        while self._ended:
            ended, self._ended = self._ended, set()
            asked = [parse_execution_id(text, partitions) for text in sorted(ended)]
            try:
                found = await self._database.run(partial(flows.follow_ends, ended=asked))
            except Exception as error:
                log.warning("what came of ends in flows is found later: %s", error)
                return
            self._waiters.wake(found.ended)
            self._notifier.send(lanes=found.lanes, ended=found.ended)
