"""Budget calls of a worker: usage reports in batches, reservations one at a time."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from flowfabric.app import App
from flowfabric.engine import budgets
from flowfabric.errors import FlowFabricError
from flowfabric.handler.journal import Place
from flowfabric.handler.runtime import Amounts
from flowfabric.model import Claim, Reserved, Settled, Usage, UsageReport
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.driver import Connection
from flowfabric.worker.leased import LeasedCalls

Answer = TypeVar("Answer", Usage, Reserved, Settled)


class Budgets:
    """Reports usage and makes reservations for runs. It calls `notify_ended` for a run that a hard limit has ended."""

    def __init__(self, app: App, leased: LeasedCalls, notify_ended: Callable[..., None]) -> None:
        self._app = app
        self._leased = leased
        self._notify_ended = notify_ended
        self._report = Batch(self._report_many, in_flight=2)

    async def close(self) -> None:
        """Return when every report has been answered."""
        await self._report.close()

    async def report(self, claim: Claim, report: UsageReport) -> Usage:
        """Charge a budget with what a run has used."""
        answer: Usage = await self._leased.persist(claim, lambda: self._report(report))
        return self._notify_if_ended(claim, answer)

    async def reserve(self, claim: Claim, budget: str, estimate: Amounts, ttl: timedelta, key: str) -> Reserved:
        """Reserve an amount of a budget, until the attempt ends at the latest."""

        async def reserve(conn: Connection) -> Reserved:
            return await budgets.reserve(
                conn, budget, estimate, fence=claim.fence, ttl=ttl, dedup_key=key, namespace=claim.namespace
            )

        answer: Reserved = await self._leased.run(claim, reserve)
        return self._notify_if_ended(claim, answer)

    async def settle(self, claim: Claim, reservation_id: UUID, actual: Amounts, place: Place | None) -> Settled:
        """Charge the actual cost of a reservation, and save its place in the journal."""
        step = None if place is None else (place.name, place.occurrence)

        async def settle(conn: Connection) -> Settled:
            return await budgets.settle(conn, reservation_id, actual, fence=claim.fence, step=step)

        answer: Settled = await self._leased.run(claim, settle)
        self._app.notifier.send(lanes=answer.lanes)
        return self._notify_if_ended(claim, answer)

    async def release(self, claim: Claim, reservation_id: UUID) -> None:
        """Release a reservation; the end of the attempt releases it too. Occupies no connection while it waits."""

        async def release(conn: Connection) -> Sequence[str]:
            return (await budgets.release(conn, reservation_id, fence=claim.fence)).lanes

        self._app.notifier.send(lanes=await self._app.database.run(release, repeat=True))

    def _notify_if_ended(self, claim: Claim, answer: Answer) -> Answer:
        if answer.action in ("fail", "cancel"):
            self._notify_ended(claim, ended=answer.ended)
        return answer

    async def _report_many(self, reports: Sequence[UsageReport]) -> list[Usage | FlowFabricError]:
        return await self._app.database.run(
            lambda conn: budgets.report_usage_many(conn, reports, wait=False), repeat=True, wait=False
        )
