"""When a worker claims, how much, and from where: polling pauses, prefetching, and the position of the last claim."""

import asyncio
import heapq
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

from flowfabric.model import Claim, Fence
from flowfabric.postgres.backoff import Backoff

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
LOOK_AHEAD = 60.0  # seconds; work that is due later is found by the ordinary polling
WINDOW = 1.0
# How long a claim from the front of the lane may take, in seconds: a fixed part, and a part per execution it returns.
FIXED_TIME, TIME_EACH = 0.005, 0.00005
SLOW_SHARE = 10  # at most one part in this many of the time goes into slow claims from the front


class Pauses:
    """Pauses between two claims: milliseconds while there is work, up to a second while there is none.

    A notification, a free slot, or the moment at which known work falls due cuts a pause short.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._backoff = Backoff(SHORTEST_PAUSE, LONGEST_PAUSE)
        self._due: list[float] = []

    def wake(self) -> None:
        """End the current pause, because a slot is free or the worker is stopping."""
        self._woken.set()

    def shorten(self) -> None:
        """End the current pause and keep the next ones short: another worker may have taken the announced work."""
        self._backoff.reset()
        self._woken.set()

    def due(self, moment: datetime) -> None:
        """Claim at that moment, because work falls due then; if this machine's clock is wrong, polling finds it."""
        left = (moment - datetime.now(UTC)).total_seconds()
        if left < LOOK_AHEAD:
            heapq.heappush(self._due, time.monotonic() + left)

    def found(self) -> None:
        """A claim returned work: claim again soon."""
        self._backoff.reset()

    def begin(self) -> None:
        """Call this before a claim: wake-ups from now on count for the next pause."""
        self._woken.clear()
        now = time.monotonic()
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
            self._backoff.reset()

    def length(self) -> float:
        """The length of the next pause in seconds, unless it is cut short."""
        if not self._due:
            return self._backoff.current
        return min(self._backoff.current, max(self._due[0] - time.monotonic(), 0.001))

    async def wait(self) -> None:
        """Wait until it is time to claim again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.length()):
                await self._woken.wait()
        self._backoff.next()


class Prefetched:
    """Claims that wait for a free slot, in order, so that no slot is idle for the length of a round trip.

    There may be as many as runs ended within the last second, and at most `most`. So a worker busy with long runs does
    not keep work from idle workers. If its pace drops, claims that wait too long count as stale and are released.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[UUID, tuple[Claim, float]] = {}
        self._ended = 0
        self._ended_before = 0
        self._window_began = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, claims: Iterable[Claim]) -> None:
        """Keep these claims until there are slots for them."""
        now = time.monotonic()
        self._waiting.update((claim.fence.lease_id, (claim, now)) for claim in claims)

    def take(self) -> Claim | None:
        """Take the next claim to run."""
        if not self._waiting:
            return None
        claim, _ = self._waiting.pop(next(iter(self._waiting)))
        return claim

    def next(self) -> Claim | None:
        """The claim that `take` would take."""
        return next((claim for claim, _ in self._waiting.values()), None)

    def drop(self, fence: Fence) -> None:
        """Forget a claim whose lease is lost."""
        self._waiting.pop(fence.lease_id, None)

    def ended(self) -> None:
        """Count a run that has ended."""
        self._ended += 1

    def room(self) -> int:
        """How many claims may wait now."""
        now = time.monotonic()
        if now - self._window_began > WINDOW:
            self._window_began, self._ended_before, self._ended = now, self._ended, 0
        return min(self._most, max(self._ended, self._ended_before))

    def stale(self) -> list[Claim]:
        """Take out the claims that have waited for twice as long as expected; those that run alone wait for longer."""
        now = time.monotonic()
        stale = [claim for claim, came_at in self._waiting.values() if now - came_at > 2 * WINDOW and not claim.alone]
        for claim in stale:
            self.drop(claim.fence)
        return stale

    def empty(self) -> list[Claim]:
        """Take out all claims."""
        waiting = [claim for claim, _ in self._waiting.values()]
        self._waiting.clear()
        return waiting


class Position:
    """Where the last claim stopped, so that the next one can start behind it.

    Claimed tickets leave dead entries in the index. While some transaction holds an old snapshot, vacuum cannot remove
    them, and a claim from the front of the lane reads through all of them. Once that is slow, claims start behind the
    last execution taken, and only now and then from the front, which finds retried and late work.
    """

    def __init__(self) -> None:
        self.route = 0
        """The route that was served last."""
        self._last: Claim | None = None
        self._from_front_at = 0.0

    def last(self) -> Claim | None:
        """The claim to start behind, or `None` to start from the front."""
        return self._last if time.monotonic() < self._from_front_at else None

    def moved(self, claims: Sequence[Claim], seconds: float, *, from_front: bool) -> None:
        """Remember what a claim returned, how long it took, and whether it started from the front."""
        if from_front:
            too_long = max(seconds - FIXED_TIME - TIME_EACH * len(claims), 0.0)
            self._from_front_at = time.monotonic() + SLOW_SHARE * too_long
        if claims:
            self._last = claims[-1]
            self.route = self._last.route
