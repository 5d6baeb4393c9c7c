"""What a worker tells about its runs, for `ff dev`."""

from datetime import datetime
from typing import Protocol

from flowfabric.model import Claim
from flowfabric.worker.run import Outcome


class Observer(Protocol):
    """Is called on the event loop of the worker, so it must return quickly."""

    def started(self, claim: Claim) -> None:
        """A run begins."""

    def ended(self, claim: Claim, outcome: Outcome) -> None:
        """A run has ended; its outcome is being reported."""

    def failed(self, claim: Claim, reason: str, again_at: datetime | None) -> None:
        """A failure is reported: the execution runs again then, or has failed for good."""


class Nobody:
    """Observes nothing."""

    def started(self, claim: Claim) -> None: ...
    def ended(self, claim: Claim, outcome: Outcome) -> None: ...
    def failed(self, claim: Claim, reason: str, again_at: datetime | None) -> None: ...
