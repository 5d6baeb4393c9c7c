"""Isolation: an execution that may have ended two workers runs alone, so that it takes no other run with it."""

import time
from collections.abc import Callable
from uuid import UUID

from flowfabric.model import Claim, Fence

PATIENCE = 30.0  # seconds it waits for other runs to end, and then as long again for which nothing else is claimed


class Isolation:
    """Closes a worker to new claims while an execution waits to run alone, and while it runs.

    Each lasts at most `patience` seconds: a long run neither blocks it for ever, nor does it block the worker.
    """

    def __init__(self, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._lease: UUID | None = None
        self._until = 0.0

    def wait(self, claim: Claim) -> None:
        """Close the worker until this claim has run."""
        self._lease = claim.fence.lease_id
        self._until = self._clock() + self._patience

    def may_start(self, claim: Claim, others: int) -> bool:
        """Whether this claim may start now, while so many other runs have not ended and been reported."""
        return claim.fence.lease_id != self._lease or not others or self._clock() >= self._until

    def start(self, claim: Claim) -> None:
        """The run begins, if this is the claim that runs alone."""
        if claim.fence.lease_id == self._lease:
            self._until = self._clock() + self._patience

    def end(self, fence: Fence) -> None:
        """Open the worker again, if this was the claim that ran alone."""
        if fence.lease_id == self._lease:
            self._lease = None

    @property
    def is_held(self) -> bool:
        """Whether an execution waits to run alone, or runs alone."""
        return self._lease is not None

    @property
    def is_closed(self) -> bool:
        """Whether the worker must not claim."""
        return self._lease is not None and self._clock() < self._until
