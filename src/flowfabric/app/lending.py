"""Lending: a worker of this process lends free slots to submissions and signals, which then may come back leased."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from msgspec.structs import replace

from flowfabric.model import Claim, Options, Slots


class Loan:
    """Free slots for one call. When the block ends, the worker gets them back, with what the call has claimed."""

    def __init__(self, slots: Slots, returned: "Callable[[Loan], None]") -> None:
        self.slots = slots
        self.claimed: Sequence[Claim] | None = None
        """What the call has claimed; `None` while it is not known, because there is no reply."""
        self.asked_at = 0.0
        """When the call was sent, on the monotonic clock."""
        self._returned = returned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._returned(self)

    def ask(self) -> Slots:
        """Return the slots for a call that is sent now: its leases count from now on."""
        slots = replace(self.slots, repeated=self.asked_at > 0)
        self.asked_at = time.monotonic()
        return slots


class Lender(Protocol):
    """A worker that can lend slots."""

    def lend(self, wanted: Sequence[Options | None]) -> Loan | None:
        """Lend as many slots as this worker could fill with executions of these options; unknown ones are `None`."""


class Lenders:
    """The workers that run on the app of this process; usually there is none, or one."""

    def __init__(self) -> None:
        self._lenders: list[Lender] = []

    def add(self, lender: Lender) -> Callable[[], None]:
        """Let this worker lend slots. Returns a function that ends it."""
        self._lenders.append(lender)
        return lambda: self._lenders.remove(lender)

    def lend(self, wanted: Callable[[], Sequence[Options | None]]) -> Loan | None:
        """Borrow slots from the first worker that has some; `None` if none has."""
        for lender in self._lenders:
            if (loan := lender.lend(wanted())) is not None:
                return loan
        return None
