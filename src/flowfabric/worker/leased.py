"""Calls under a lease: repeated while the database is unavailable, for as long as the lease lasts."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from flowfabric.app import App
from flowfabric.errors import DatabaseUnavailable, LeaseLost, RowLocked, Unavailable
from flowfabric.model import Claim, Fence
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.worker")

T = TypeVar("T")

PAUSE = 0.1  # seconds between two tries
MARGIN = 1.0  # seconds before its expiry at which a lease counts as lost, or a tenth of the lease


class Leases(Protocol):
    """The leases that a worker renews."""

    def holds(self, fence: Fence) -> bool: ...
    def add(self, fences: Iterable[Fence], asked_at: float) -> None: ...
    def release(self, fence: Fence) -> float | None: ...


class LeasedCalls:
    """Makes the calls of a worker. A lease under which no call succeeds is not renewed; `lose` ends its run."""

    def __init__(self, app: App, leases: Leases, *, lease: float, lose: Callable[[Fence], None]) -> None:
        self._app = app
        self._leases = leases
        self._lease = lease
        self._lose = lose
        self._not_renewed: dict[UUID, float] = {}  # when these leases expire, by this machine's clock

    def holds(self, fence: Fence) -> bool:
        """Whether this instance has the lease, as far as it knows."""
        return self._leases.holds(fence) or fence.lease_id in self._not_renewed

    async def run(self, claim: Claim, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation that is safe to repeat."""
        return await self.persist(claim, lambda: self._app.database.run(operation, repeat=True))

    async def persist(self, claim: Claim, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call again and again while the database is unavailable, so that finished work is not thrown away.

        From the first failure until a call succeeds, the lease is not renewed, even if the heartbeat has a connection
        that works: otherwise nobody could run an execution that this worker holds and cannot report. Raises
        `LeaseLost` when the lease has expired meanwhile.
        """
        while True:
            try:
                return await call()
            except RowLocked as error:
                if not self.holds(claim.fence):
                    raise LeaseLost("the lease expired while another transaction had locked the execution") from error
                log.warning("%s %s waits for a lock, retrying: %s", claim.task, claim.execution_id, error.message)
            except DatabaseUnavailable as error:
                return await self.repeat(claim, call, error)

    async def repeat(self, claim: Claim, call: Callable[[], Awaitable[T]], error: Unavailable) -> T:
        """Repeat a call that failed with this error, as `persist` does."""
        backoff = Backoff(PAUSE, PAUSE)
        while (left := self._stop_renewing(claim.fence) - time.monotonic()) > 0:
            log.warning(
                "%s %s waits for the database, its lease expires in %.1f s, retrying in %g s: %s",
                *(claim.task, claim.execution_id, left, backoff.current, error.message),
            )
            try:
                async with asyncio.timeout(left):
                    await backoff.wait()
                    answer = await call()
            except TimeoutError:
                continue
            except (DatabaseUnavailable, RowLocked) as again:
                error = again
                continue
            self._renew_again(claim.fence)
            return answer
        self._not_renewed.pop(claim.fence.lease_id, None)
        self._lose(claim.fence)
        raise LeaseLost(f"the database was unavailable for longer than the lease: {error.message}") from error

    def _stop_renewing(self, fence: Fence) -> float:
        """Let the lease expire, and return when that is, a little early; 0 if it is lost already."""
        expires_at = self._leases.release(fence)
        if expires_at is not None:
            self._not_renewed[fence.lease_id] = expires_at
        return self._not_renewed.get(fence.lease_id, 0.0) - min(self._lease / 10, MARGIN)

    def _renew_again(self, fence: Fence) -> None:
        if (expires_at := self._not_renewed.pop(fence.lease_id, None)) is not None:
            self._leases.add([fence], expires_at - self._lease)
