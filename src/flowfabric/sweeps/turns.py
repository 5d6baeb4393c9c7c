"""Turns: a sweep with a share runs in one process at a time, which pauses between its passes."""

import asyncio
import time
from datetime import timedelta
from functools import partial
from uuid import uuid4

from flowfabric.engine import turns
from flowfabric.postgres.database import Database

TURN = timedelta(minutes=2)  # longer than a pass and its pause together, so that only a dead process loses its turn
LONGEST_PAUSE = 30.0


def pause_after(took: float, share: float) -> float:
    """Return how many seconds to pause after a pass, so that passes take up this share of the time.

    A pass takes longer on a busy server, so the pause is then longer too.
    """
    return min(took * (1 / share - 1), LONGEST_PAUSE)


class Turn:
    """The turn of this process to run a sweep that has a share."""

    def __init__(self, database: Database, sweep: str, share: float) -> None:
        self._database = database
        self._sweep = sweep
        self._share = share
        self._holder = uuid4()
        self._began: float | None = None

    async def next(self) -> bool:
        """Pause after the previous pass, and return whether this process may run another one."""
        if self._began is not None:
            await asyncio.sleep(pause_after(time.monotonic() - self._began, self._share))
        take = partial(turns.take_turn, sweep=self._sweep, holder=self._holder, turn=TURN)
        taken = await self._database.run(take, aside=True)
        self._began = time.monotonic() if taken else None
        return taken

    async def end(self) -> None:
        """Let another process run the sweep next time; nothing is left to process."""
        self._began = None
        await self._database.run(partial(turns.end_turn, sweep=self._sweep, holder=self._holder), aside=True)
