"""Pauses between two looks for work: a few milliseconds while there is some, up to a second when there is none."""

import asyncio
import heapq
import time
from contextlib import suppress
from datetime import UTC, datetime

SHORTEST = 0.005
LONGEST = 1.0
AHEAD = 60.0


class Pauses:
    """Grow while nothing is found; a hint, a free slot or the moment at which something falls due cuts one short."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()
        self._pause = SHORTEST
        self._due: list[float] = []

    def stir(self) -> None:
        """There may be something to do."""
        self._stirred.set()

    def hint(self) -> None:
        """Somebody said that there is work; should another have taken it, look more often for a while."""
        self._pause = SHORTEST
        self._stirred.set()

    def due(self, moment: datetime) -> None:
        """There will be something to do then. Far ones are left to the ordinary pauses, as is a clock that is off."""
        left = (moment - datetime.now(UTC)).total_seconds()
        if left < AHEAD:
            heapq.heappush(self._due, time.monotonic() + left)

    def found(self) -> None:
        """There was work: look again soon."""
        self._pause = SHORTEST

    def begin(self) -> None:
        """Before a look: what stirs from now on is for the next one."""
        self._stirred.clear()
        now = time.monotonic()
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
            self._pause = SHORTEST

    def length(self) -> float:
        """How many seconds the next one lasts, unless something stirs."""
        if not self._due:
            return self._pause
        return min(self._pause, max(self._due[0] - time.monotonic(), 0.001))

    async def wait(self) -> None:
        """Wait until it is time to look again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.length()):
                await self._stirred.wait()
        self._pause = min(self._pause * 2, LONGEST)
