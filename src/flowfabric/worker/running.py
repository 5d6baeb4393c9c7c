"""The steps that run in a worker: their durations, and reports of those that have run for long."""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self
from uuid import UUID

from flowfabric.handler.journal import Place
from flowfabric.model import Fence, ReportedStep

LONG = 1.0  # seconds after which a step is reported; shorter ones cost nothing


class Running:
    """The steps that run now. Handlers begin and end them; the thread of the heartbeat reads them."""

    def __init__(self) -> None:
        self._steps: set[Step] = set()
        self._guard = threading.Lock()

    def step(self, fence: Fence, place: Place) -> "Step":
        """A step, which runs while this context manager is entered."""
        return Step(self, fence.lease_id, place)

    def unreported(self) -> set[UUID]:
        """The leases with steps that run for long and have not been reported."""
        long_ago = time.monotonic() - LONG
        return {step.lease_id for step in self._all() if step.began <= long_ago and not step.is_reported}

    def report(self) -> Mapping[UUID, Sequence["Step"]]:
        """All steps that run for long, by lease."""
        long_ago = time.monotonic() - LONG
        found: defaultdict[UUID, list[Step]] = defaultdict(list)
        for step in self._all():
            if step.began <= long_ago:
                found[step.lease_id].append(step)
        return found

    def add(self, step: "Step") -> None:
        with self._guard:
            self._steps.add(step)

    def remove(self, step: "Step") -> None:
        with self._guard:
            self._steps.discard(step)

    def _all(self) -> Collection["Step"]:
        with self._guard:
            return list(self._steps)


class Step:
    """A step that runs, for as long as this context manager is entered."""

    __slots__ = ("_running", "began", "is_reported", "lease_id", "place")

    def __init__(self, running: Running, lease_id: UUID, place: Place) -> None:
        self._running = running
        self.lease_id = lease_id
        self.place = place
        self.is_reported = False

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._running.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.remove(self)

    @property
    def elapsed(self) -> timedelta:
        """How long it has been running."""
        return timedelta(seconds=time.monotonic() - self.began)

    def reported(self) -> ReportedStep:
        """The step as it is reported to the engine."""
        place = self.place
        return ReportedStep(name=place.name, occurrence=place.occurrence, number=place.number, elapsed=self.elapsed)
