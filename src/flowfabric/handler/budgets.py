"""Spending: what a handler reports and sets aside, counted once however often it runs.

Outside a step a report has its place in the journal, like a step. Inside one it has none: whoever runs the step again
spends again, and the report says so.
"""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple, NoReturn, Self
from uuid import UUID, uuid4

from msgspec.structs import replace

from flowfabric import ids
from flowfabric.blocking import Wrapped
from flowfabric.engine import budgets
from flowfabric.errors import FlowFabricError, ReservationNotFound
from flowfabric.handler.journal import LONGEST_NAME, Place
from flowfabric.handler.runtime import Amounts, Runtime
from flowfabric.handler.waits import Leaving, Stop, Unwind
from flowfabric.model import Claim, Reserved, Settled, Usage, UsageReport

log = logging.getLogger("flowfabric.handler")


class Spender(NamedTuple):
    """A run, as one who spends."""

    runtime: Runtime
    claim: Claim
    leaving: Leaving

    async def report(self, place: Place | None, budget: str, amounts: Amounts) -> Usage:
        """Count what was used, unless an earlier run has. Raises `BudgetExhausted`, or leaves the handler."""
        if place is not None and place.entry is not None:
            first: Usage = place.read(place.entry.result, Usage)
            return first
        report = UsageReport(
            budget=budget,
            amounts=amounts,
            namespace=self.claim.namespace,
            fence=self.claim.fence,
            dedup_key=None if place is not None else uuid4().hex,  # its reply may be lost, and it is sent again
            step=None if place is None else (place.name, place.occurrence),
        )
        with self.leaving.busy():
            answer = await self.runtime.report_usage(self.claim, report)
        self.check(budget, answer)
        return answer

    def check(self, budget: str, answer: Usage | Reserved | Settled) -> None:
        """Do what a hard breach asks for: raise it, or leave the handler, since the run has ended or steps aside."""
        if answer.outcome == "hard_breach":
            if answer.action == "refuse":
                raise budgets.exhausted(budget, answer)
            self.stop()

    def stop(self) -> NoReturn:
        """Leave the handler: the lease is gone, and there is nothing to report."""
        self.leaving.stopped = True
        raise Stop


class Reservation(Wrapped):
    """What a handler has set aside for something that costs: `async with ctx.reserve("team-a", tokens=4_000) as held`.

    At the end of the block what `settle` was told is spent, or the whole estimate when it was told nothing. When the
    block raises, it is given back.
    """

    def __init__(self, spender: Spender, place: Place | None, budget: str, estimate: Amounts, ttl: timedelta) -> None:
        self.budget = budget
        self.estimate = estimate
        self.expires_at: datetime | None = None
        self._spender = spender
        self._place = place
        self._ttl = ttl
        self._entered = False
        self._held: UUID | None = None
        self._settled: Settled | None = None
        if place is not None and place.entry is not None:
            self._settled = Settled(outcome="settled")

    def __repr__(self) -> str:
        return f"<reservation of budget {self.budget}>"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError(f"{self} is entered once; ask for another")
        self._entered = True
        if self._settled is not None:
            return self  # by an earlier run: nothing more is set aside or counted
        runtime, claim, leaving = self._spender
        with leaving.busy():
            answer = await runtime.reserve(claim, self.budget, self.estimate, self._ttl, self._key())
        self._spender.check(self.budget, answer)
        self._held, self.expires_at = answer.reservation_id, answer.expires_at
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            if self._held is not None:
                await self.settle()
        elif not isinstance(error, Unwind):  # a run that waits keeps it, and finds it again
            try:
                await self.release()
            except FlowFabricError as refused:
                log.info("%s is left to its attempt, which gives it back: %s", self, refused)

    async def settle(self, **actual: int) -> Settled:
        """Say what it has cost; without amounts, what was estimated. What was not spent is free again at once.

        More than the estimate counts if it fits under the hard limit. If it does not, the estimate is spent, the rest
        is the budget's `overrun`, and the answer is `hard_breach`. Nothing is raised: what was paid for is there.
        """
        if self._held is None:
            first = self._settled or Settled(outcome="settled")
            return replace(first, outcome="already_applied", first=first.outcome)
        amounts = actual or self.estimate
        runtime, claim, leaving = self._spender
        with leaving.busy():
            try:
                answer = await runtime.settle(claim, self._held, amounts, self._place)
            except ReservationNotFound:  # it has lapsed: what was spent is said without it
                answer = await self._report(amounts)
        self._held, self._settled = None, answer
        if answer.outcome == "hard_breach" and answer.action != "refuse":
            self._spender.stop()
        return answer

    async def release(self) -> None:
        """Give all of it back, because nothing was spent. Safe to repeat."""
        held, self._held = self._held, None
        if held is not None:
            await self._spender.runtime.release(self._spender.claim, held)

    async def _report(self, amounts: Amounts) -> Settled:
        usage = await self._spender.report(self._place, self.budget, amounts)
        if usage.outcome == "soft_breach":
            return Settled(
                outcome="soft_breach",
                dimension=usage.dimension,
                used=usage.used,
                reserved=usage.reserved,
                soft_limit=usage.soft_limit,
            )
        return Settled(outcome="settled")

    def _key(self) -> str:
        """What the reservation is found by again: by a run that goes on after a wait, and when a reply was lost."""
        if self._place is None:
            return uuid4().hex
        return f"{self._spender.claim.execution_id}:{self._place.occurrence}"


def place_name(what: str, budget: str, namespace: str) -> str:
    """The name in the journal of what is done to a budget; a long one is known by its id."""
    name = f"{what}:{budget}"
    if len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
        return name
    return f"{what}:{ids.resolve_named_id('budget', namespace, budget)}"
