"""Following: tells what ends have brought about in their flows, who may run now and who has ended with them."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from flowfabric.db import Database
from flowfabric.ends import Ends
from flowfabric.engine import flows
from flowfabric.hints import Hints
from flowfabric.ids import parse_execution_id

log = logging.getLogger("flowfabric.following")


class Follower:
    """Looks after ends what came of them, those of one moment together, and tells those who wait.

    What this misses is found by looking, as everything is.
    """

    def __init__(self, database: Database, hints: Hints, ends: Ends) -> None:
        self._database = database
        self._hints = hints
        self._ends = ends
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
            self._ends.tell(found.ended)
            self._hints.send(lanes=found.lanes, ended=found.ended)
