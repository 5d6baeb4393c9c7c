"""Whose turn it is: what a worker remembers of its last claim, so that the next one goes on from there."""

import time
from collections.abc import Sequence

from flowfabric.model import Claim

LOOK = 1.0  # seconds between two looks from the front, at the least
SHARE = 10  # at most one part in so many of the time goes into them


class Turn:
    """Where the last claim stood.

    What was claimed leaves dead entries behind in the index. While a transaction anywhere holds an old snapshot nothing
    sweeps them up, and a claim that began at the front would read through all of them. So a claim goes on from the last
    one taken, as long as there was enough; what has committed late is found by a look from the front now and then.
    """

    def __init__(self) -> None:
        self.route = 0
        """The route that was served last."""
        self._last: Claim | None = None
        self._look_at = 0.0

    def last(self) -> Claim | None:
        """The one to go on from; none when it is time to look from the front."""
        return self._last if time.monotonic() < self._look_at else None

    def took(self, taken: Sequence[Claim], asked: int, *, looked: bool, took: float) -> None:
        """Remember what a claim gave, whether it looked from the front, and how many seconds it took."""
        if looked:
            self._look_at = time.monotonic() + max(LOOK, SHARE * took)
        if taken:
            self.route = taken[-1].route
        self._last = taken[-1] if len(taken) == asked else None
