"""Spending: the usage reports and reservations of a handler, counted once however often the handler runs.

Outside a step, a report is saved in the journal like a step. Inside a step it is not: when the step runs again, it
spends again and reports again.
"""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple, NoReturn, Self
from uuid import UUID, uuid4

from msgspec.structs import replace

from flowfabric import ids
from flowfabric.engine import budgets
from flowfabric.errors import FlowFabricError, ReservationNotFound
from flowfabric.handler.failures import Failures
from flowfabric.handler.frames import Output
from flowfabric.handler.journal import LONGEST_NAME, Place
from flowfabric.handler.runtime import Amounts, Runtime
from flowfabric.handler.waits import Leaving, Stop, Unwind
from flowfabric.model import Claim, Reserved, Settled, Usage, UsageReport

log = logging.getLogger("flowfabric.handler")


class Spender(NamedTuple):
    """Spends from budgets for one run."""

    runtime: Runtime
    claim: Claim
    leaving: Leaving
    output: Output
    failures: Failures

    async def report(self, place: Place | None, budget: str, amounts: Amounts) -> Usage:
        """Count usage, unless an earlier run has counted it. Raises `BudgetExhausted`, or unwinds the handler."""
        if place is not None and place.entry is not None:
            self.output.pass_entry(place)
            with self.leaving.noting_changes():
                first: Usage = place.read(place.entry.result, Usage)
            return first
        report = UsageReport(
            budget=budget,
            amounts=amounts,
            namespace=self.claim.namespace,
            fence=self.claim.fence,
            dedup_key=None if place is not None else uuid4().hex,  # the report is sent again if its reply is lost
            step=None if place is None else (place.name, place.occurrence),
        )
        with self.leaving.busy():
            await self.failures.save()
            await self.output.flush()
            answer = await self.runtime.report_usage(self.claim, report)
        if place is not None:
            self.output.saved()
        self.check(budget, answer)
        return answer

    def check(self, budget: str, answer: Usage | Reserved | Settled) -> None:
        """On a hard breach, raise `BudgetExhausted`, or unwind the handler because the engine ended or suspended it."""
        if answer.outcome == "hard_breach":
            if answer.action == "refuse":
                refused = budgets.exhausted(budget, answer)
                self.failures.add(f"budget:{budget}", 1, refused)
                raise refused
            self.stop()

    def stop(self) -> NoReturn:
        """Unwind the handler: the lease is gone, so there is nothing to report."""
        self.leaving.stopped = True
        raise Stop


class Reservation:
    """An amount of a budget that is reserved before it is spent: `async with ctx.reserve("team-a", tokens=4_000)`.

    At the end of the block the amounts passed to `settle` are spent, or the whole estimate if `settle` was not called.
    If the block raises, the reservation is released.
    """

    def __init__(self, spender: Spender, place: Place | None, budget: str, estimate: Amounts, ttl: timedelta) -> None:
        self.budget = budget
        self.estimate = estimate
        self.expires_at: datetime | None = None
        self._spender = spender
        self._place = place
        self._ttl = ttl
        self._entered = False
        self._reservation_id: UUID | None = None
        self._settled: Settled | None = None
        if place is not None and place.entry is not None:
            self._settled = Settled(outcome="settled")

    def __repr__(self) -> str:
        return f"<reservation of budget {self.budget}>"

    @property
    def is_begun(self) -> bool:
        """Whether the block was entered."""
        return self._entered

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError(f"{self!r} was entered before; call ctx.reserve again for another reservation")
        self._entered = True
        if self._settled is not None:
            return self  # an earlier run has settled it: nothing more is reserved or counted
        runtime, claim, leaving, _, _ = self._spender
        with leaving.busy():
            answer = await runtime.reserve(claim, self.budget, self.estimate, self._ttl, self._key())
        self._spender.check(self.budget, answer)
        self._reservation_id, self.expires_at = answer.reservation_id, answer.expires_at
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            if self._reservation_id is not None:
                await self.settle()
            self._pass_entry()
        elif not isinstance(error, Unwind):  # a suspended run keeps its reservation and finds it again
            try:
                await self.release()
            except FlowFabricError as refused:
                log.info(
                    "could not release a reservation of budget %s for %s; the end of the attempt will release it: %s",
                    *(self.budget, self._spender.claim.execution_id, refused),
                )

    async def settle(self, **actual: int) -> Settled:
        """Spend the actual amounts, or the estimate if none are given; the unspent rest is released immediately.

        More than the estimate counts if it fits under the hard limit. If it does not, the estimate is spent, the rest
        is counted as the budget's `overrun`, and the answer is `hard_breach`. Nothing is raised, because the handler
        already has what it paid for.
        """
        if self._reservation_id is None:
            self._pass_entry()
            first = self._settled or Settled(outcome="settled")
            return replace(first, outcome="already_applied", first=first.outcome)
        amounts = actual or self.estimate
        runtime, claim, leaving, output, failures = self._spender
        with leaving.busy():
            await failures.save()
            await output.flush()
            try:
                answer = await runtime.settle(claim, self._reservation_id, amounts, self._place)
            except ReservationNotFound:  # it has expired: report the usage without it
                answer = await self._report(amounts)
        output.saved()
        self._reservation_id, self._settled = None, answer
        if answer.outcome == "hard_breach" and answer.action != "refuse":
            self._spender.stop()
        return answer

    async def release(self) -> None:
        """Release the whole reservation, because nothing was spent. Safe to repeat."""
        reservation_id, self._reservation_id = self._reservation_id, None
        if reservation_id is not None:
            await self._spender.runtime.release(self._spender.claim, reservation_id)

    def _pass_entry(self) -> None:
        if self._place is not None:
            self._spender.output.pass_entry(self._place)

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
        """The key under which a resumed run, or a call repeated after a lost reply, finds the reservation again."""
        if self._place is None:
            return uuid4().hex
        return f"{self._spender.claim.execution_id}:{self._place.occurrence}"


def place_name(operation: str, budget: str, namespace: str) -> str:
    """Return the name of a budget operation in the journal; a budget with a long name is named by its id."""
    name = f"{operation}:{budget}"
    if len(name.encode(errors="surrogatepass")) <= LONGEST_NAME:
        return name
    return f"{operation}:{ids.resolve_named_id('budget', namespace, budget)}"
