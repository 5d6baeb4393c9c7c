"""Backoff: growing pauses between two tries, or between two looks at something that changes rarely."""

import asyncio
import random


class Backoff:
    """Pauses in seconds that double from `first` to `longest`; `jitter` shortens each by up to that share.

    Jitter spreads out processes that failed at the same moment, so that they do not all retry at the same moment.
    """

    def __init__(self, first: float, longest: float, *, jitter: float = 0.0) -> None:
        self.first = first
        self.longest = longest
        self._jitter = jitter
        self.current = first
        """The pause that comes next, before jitter."""

    def reset(self) -> None:
        """Start from the shortest pause again, because a try succeeded."""
        self.current = self.first

    def next(self) -> float:
        """Return the pause to make now, and double the one after it."""
        pause = self.current * random.uniform(1.0 - self._jitter, 1.0)  # noqa: S311 - not for cryptography
        self.current = min(self.current * 2, self.longest)
        return pause

    async def wait(self) -> None:
        """Sleep for the next pause."""
        await asyncio.sleep(self.next())


def lock_backoff() -> Backoff:
    """Pauses of a call that meets a lock: most locks last a few milliseconds, those of a user's transaction longer."""
    return Backoff(0.002, 0.2, jitter=0.5)
