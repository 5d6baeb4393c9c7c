"""Whose turn it is: what a worker remembers of its last claim, so that the next one can go on from there."""

import time
from collections.abc import Sequence

from flowfabric.model import Claim

# What a claim from the front may take, in seconds, before it counts as slow: for itself, and for each that it gives.
FOR_ITSELF, FOR_EACH = 0.005, 0.00005
SHARE = 10  # of the time of slow looks at most one part in so many is spent on them


class Turn:
    """Where the last claim stood.

    What was claimed leaves dead entries behind in the index. While a transaction anywhere holds an old snapshot nothing
    sweeps them up, and a claim from the front reads through all of them. Once that is slow, claims go on from the last
    one taken, and look from the front only now and then: what came late, or came back, is found then.
    """

    def __init__(self) -> None:
        self.route = 0
        """The route that was served last."""
        self._last: Claim | None = None
        self._look_at = 0.0

    def last(self) -> Claim | None:
        """The one to go on from; none when it is time to look from the front."""
        return self._last if time.monotonic() < self._look_at else None

    def took(self, taken: Sequence[Claim], seconds: float, *, looked: bool) -> None:
        """Remember what a claim gave, how long that took, and whether it looked from the front."""
        if looked:
            too_long = max(seconds - FOR_ITSELF - FOR_EACH * len(taken), 0.0)
            self._look_at = time.monotonic() + SHARE * too_long
        if taken:
            self._last = taken[-1]
            self.route = self._last.route
