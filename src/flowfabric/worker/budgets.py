"""Spending of runs: reports of many in one call, reservations one by one."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from flowfabric.app import App
from flowfabric.engine import budgets, steps
from flowfabric.errors import FlowFabricError
from flowfabric.handler.journal import Place
from flowfabric.handler.runtime import Amounts
from flowfabric.model import Claim, Reserved, Settled, Step, Usage, UsageReport
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.driver import Connection
from flowfabric.worker.leased import LeasedCalls

Answer = TypeVar("Answer", Usage, Reserved, Settled)


class Budgets:
    """Tells the engine what runs spend. `ended` hears of those that a hard limit has ended."""

    def __init__(self, app: App, leased: LeasedCalls, ended: Callable[[Claim], None]) -> None:
        self._app = app
        self._leased = leased
        self._ended = ended
        self._report = Batch(self._report_all, in_flight=2)

    async def close(self) -> None:
        """Return when everything that was said has arrived."""
        await self._report.close()

    async def report(self, claim: Claim, report: UsageReport) -> Usage:
        """Count what was used."""
        answer: Usage = await self._leased.persist(claim, lambda: self._report(report))
        return self._heard(claim, answer)

    async def reserve(self, claim: Claim, budget: str, estimate: Amounts, ttl: timedelta, key: str) -> Reserved:
        """Set something aside, for this attempt at most."""

        async def reserve(conn: Connection) -> Reserved:
            return await budgets.reserve(
                conn, budget, estimate, fence=claim.fence, ttl=ttl, dedup_key=key, namespace=claim.namespace
            )

        answer: Reserved = await self._leased.run(claim, reserve)
        return self._heard(claim, answer)

    async def settle(self, claim: Claim, reservation_id: UUID, actual: Amounts, place: Place | None) -> Settled:
        """Say what a reservation has cost, and that this place of the journal has said so, or neither."""

        async def settle(conn: Connection) -> Settled:
            async with conn.transaction():
                if place is not None:  # before: a hard limit may take the lease away
                    saved = Step(fence=claim.fence, name=place.name, occurrence=place.occurrence, result=b"true")
                    await steps.save_step(conn, saved)
                return await budgets.settle(conn, reservation_id, actual, fence=claim.fence)

        answer: Settled = await self._leased.run(claim, settle)
        self._app.notifier.send(lanes=answer.lanes)
        return self._heard(claim, answer)

    async def release(self, claim: Claim, reservation_id: UUID) -> None:
        """Give back what was set aside. Tried once: the end of the attempt does so too."""

        async def release(conn: Connection) -> Sequence[str]:
            return (await budgets.release(conn, reservation_id, fence=claim.fence)).lanes

        self._app.notifier.send(lanes=await self._app.database.run(release))

    def _heard(self, claim: Claim, answer: Answer) -> Answer:
        if answer.action in ("fail", "cancel"):
            self._ended(claim)
        return answer

    async def _report_all(self, reports: Sequence[UsageReport]) -> list[Usage | FlowFabricError]:
        return await self._app.database.run(lambda conn: budgets.report_usage_many(conn, reports), repeat=True)
