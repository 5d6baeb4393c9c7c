"""What is claimed ahead: its turn comes within about a second, so that no slot is idle for want of a round trip."""

import time
from collections.abc import Iterable
from uuid import UUID

from flowfabric.model import Claim, Fence

WINDOW = 1.0


class Ahead:
    """Claims that wait for a slot, in order.

    How many there may be follows the pace: as many as have ended within a second, at most `most`. So work is never kept
    from an idle worker by one that is busy with long runs; should the pace drop, what waits too long is stale.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[UUID, tuple[Claim, float]] = {}
        self._ended = 0
        self._ended_before = 0
        self._window_began = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, taken: Iterable[Claim]) -> None:
        """Keep these until there are slots for them."""
        now = time.monotonic()
        self._waiting.update((claim.fence.lease_id, (claim, now)) for claim in taken)

    def take(self) -> Claim | None:
        """The next one to begin."""
        if not self._waiting:
            return None
        claim, _ = self._waiting.pop(next(iter(self._waiting)))
        return claim

    def drop(self, fence: Fence) -> None:
        """Forget one whose lease is gone."""
        self._waiting.pop(fence.lease_id, None)

    def ended(self) -> None:
        """A run has ended."""
        self._ended += 1

    def room(self) -> int:
        """How many may wait now."""
        now = time.monotonic()
        if now - self._window_began > WINDOW:
            self._window_began, self._ended_before, self._ended = now, self._ended, 0
        return min(self._most, max(self._ended, self._ended_before))

    def stale(self) -> list[Claim]:
        """Those that have waited for longer than anything should; they are taken out."""
        now = time.monotonic()
        stale = [claim for claim, came_at in self._waiting.values() if now - came_at > 2 * WINDOW]
        for claim in stale:
            self.drop(claim.fence)
        return stale

    def empty(self) -> list[Claim]:
        """All of them; they are taken out."""
        waiting = [claim for claim, _ in self._waiting.values()]
        self._waiting.clear()
        return waiting
