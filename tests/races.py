"""Two calls at once: the first has acted but not committed when the second arrives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from flowfabric.postgres.driver import Connection
from tests.given import Given

Call = Callable[[Connection], Awaitable[Any]]


class Race:
    """Two sessions that make one call each; the fixture `race` opens them."""

    def __init__(self, given: Given, one: asyncpg.Connection, two: asyncpg.Connection) -> None:
        self.given, self.one, self.two = given, one, two

    async def both(self, first: Call, second: Call, *, commits: bool = True, meanwhile: float = 0) -> tuple[Any, Any]:
        """Run both and return both answers, or the error that the second raised.

        The second must block on the first, which then commits or rolls back, `meanwhile` seconds of the clock later.
        """
        transaction = self.one.transaction()
        await transaction.start()
        answer = await first(self.one)
        later = asyncio.ensure_future(second(self.two))
        await self.given.blocked(self.two, later)
        if meanwhile:
            await self.given.time_passes(seconds=meanwhile)
        await (transaction.commit() if commits else transaction.rollback())
        return answer, (await asyncio.gather(later, return_exceptions=True))[0]

    async def waits(self, first: Call, second: Call, *, commits: bool = True) -> Any:
        """Return the answer of the second call, which must block on the first, or the error that it raised."""
        return (await self.both(first, second, commits=commits))[1]

    async def passes(self, first: Call, second: Call) -> Any:
        """Return the answer of the second call, which must not wait for the first."""
        async with self.one.transaction():
            await first(self.one)
            async with asyncio.timeout(10):
                return await second(self.two)
