"""The slots that a worker has lent to submissions and signals of its process, so that they can come back leased."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from msgspec.structs import replace

from flowfabric.app.lending import Loan
from flowfabric.app.tasks import Task
from flowfabric.model import Claim, Options, Slots
from flowfabric.worker.claiming import Position
from flowfabric.worker.heartbeat import Registration
from flowfabric.worker.limits import Limits


class Lending:
    """Lends free slots, and remembers the claims whose replies did not arrive.

    `about` describes the worker, and `free` tells how many slots it can lend now. `received` gets what the calls have
    claimed.
    """

    def __init__(
        self,
        about: Registration,
        tasks: Mapping[str, Task[..., Any]],
        limits: Limits,
        position: Position,
        free: Callable[[], int],
        received: Callable[[Sequence[Claim], float], None],
    ) -> None:
        self._slots = Slots(
            worker=about.worker,
            instance=about.instance,
            lanes=about.lanes,
            capabilities=about.capabilities,
            namespace=about.namespace,
            lease=about.lease,
        )
        self._tasks = tasks
        self._limits = limits
        self._position = position
        self._free = free
        self._received = received
        self._loans: set[Loan] = set()
        self._all_back = asyncio.Event()
        self.unanswered: dict[UUID, None] = {}
        """The requests of claims that may have taken executions; the next claims repeat them."""

    @property
    def lent(self) -> int:
        """How many slots are lent now."""
        return sum(loan.slots.free for loan in self._loans)

    def lend(self, wanted: Sequence[Options | None]) -> Loan | None:
        """Lend a slot for each of these options that suits the worker, as far as it has free slots."""
        free = self._free()
        if free <= 0 or not (amount := sum(options is None or self._suits(options) for options in wanted)):
            return None
        slots = replace(self._slots, free=min(free, amount), request=uuid4(), after_route=self._position.route)
        loan = Loan(slots, self._returned)
        self._loans.add(loan)
        self._all_back.clear()
        return loan

    def _suits(self, options: Options) -> bool:
        """Whether the worker would start an execution with these options as soon as it has claimed it."""
        task = self._tasks.get(options.task)
        return (
            task is not None
            and options.lane in self._slots.lanes
            and self._slots.namespace in (None, options.namespace)
            and self._limits.has_room(task)
        )

    async def wait(self, seconds: float) -> None:
        """Wait until all slots are back, but no longer than that."""
        if self._loans:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_back.wait(), seconds)

    def _returned(self, loan: Loan) -> None:
        self._loans.discard(loan)
        if not self._loans:
            self._all_back.set()
        if loan.claimed is None and loan.asked_at > 0:
            self.unanswered[loan.slots.request] = None
        self._received(loan.claimed or (), loan.asked_at)
