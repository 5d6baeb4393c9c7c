"""Calls under a lease: repeated while the database is unavailable, for as long as the lease lasts."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.app import App
from flowfabric.errors import DatabaseUnavailable, LeaseLost
from flowfabric.model import Claim, Fence
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.driver import Connection

log = logging.getLogger("flowfabric.worker")

T = TypeVar("T")

PAUSE = 0.1  # seconds between two tries


class LeasedCalls:
    """Makes the calls of a worker; `holds` tells whether a lease is still ours."""

    def __init__(self, app: App, holds: Callable[[Fence], bool]) -> None:
        self._app = app
        self._holds = holds

    async def run(self, claim: Claim, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation that is safe to repeat."""
        return await self.persist(claim, lambda: self._app.database.run(operation, repeat=True))

    async def persist(self, claim: Claim, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call again and again while the database is unavailable, so that finished work is not thrown away.

        Raises `LeaseLost` if the lease expires first.
        """
        backoff = Backoff(PAUSE, PAUSE)
        while True:
            try:
                return await call()
            except DatabaseUnavailable as error:
                if not self._holds(claim.fence):
                    raise LeaseLost(
                        f"the database was unavailable for longer than the lease: {error.message}"
                    ) from error
                log.warning(
                    "could not reach the database for %s %s; retrying in %g s: %s",
                    *(claim.task, claim.execution_id, backoff.current, error.message),
                )
            await backoff.wait()
