"""A clock that tests can move, so that no test has to sleep."""

from datetime import datetime, timedelta
from importlib import resources
from typing import TYPE_CHECKING

from flowfabric import durations
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.testing.engine import Engine


class Clock:
    """The clock of a test's engine: it runs in real time, and `advance` moves it forward."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return "<clock of this test>"

    async def now(self) -> datetime:
        """Return the current time of the engine."""
        return await self._engine.run(now)

    async def advance(self, by: str | timedelta | datetime, *, settle: bool = True) -> datetime:
        """Move the clock forward, by a duration such as `"2d"` or to a moment, and run everything that falls due.

        Running handlers finish first. Then the clock moves from one due time to the next, and the work that is due runs
        to its end each time. With `settle=False` the clock jumps immediately, and nothing is waited for. Returns the
        new time. Raises `ValueError` for a time in the past.
        """
        wanted = by if isinstance(by, datetime) else durations.read_duration(by)
        if settle:
            await self._engine.settle()
        now = await self.now()
        then = durations.read_timestamp(wanted) if isinstance(wanted, datetime) else now + wanted
        if then < now:
            raise ValueError(f"{then} is in the past, because it is {now}; the clock only moves forward")
        if not settle:
            await self.pass_until(then)
            await self._engine.sweep()
            return await self.now()
        while (due := await self._engine.run(next_due)) is not None and due <= then:
            await self.pass_until(due)
            await self._engine.settle()
        await self.pass_until(then)
        await self._engine.settle()
        return await self.now()

    async def pass_until(self, then: datetime) -> None:
        """Move the clock to a moment without running anything."""
        left = then - await self.now()
        if left > timedelta():
            await self._engine.run(lambda conn: pass_time(conn, left))


async def install_clock(conn: Connection) -> None:
    """Make the clock of this database movable. Only for tests: never install it in a production database."""
    await call.script(conn, text("clock.sql"))


async def move_clock(conn: Connection, span: timedelta) -> datetime:
    """Move the clock of this database, forward or back, and return the new time.

    Leases expire, as if every process had been unavailable meanwhile.
    """
    moved: datetime = await call.value(conn, "move_clock", span=span)
    return moved


async def pass_time(conn: Connection, span: timedelta) -> datetime:
    """Move the clock as if the workers were alive meanwhile, so that no lease expires; return the new time."""
    then: datetime = await call.value(conn, "pass_time", span=span)
    return then


async def now(conn: Connection) -> datetime:
    """Return the current time of this database."""
    at: datetime = await call.value(conn, "clock")
    return at


async def next_due(conn: Connection, *, waits: bool = True) -> datetime | None:
    """Return the next due time; without `waits`, ignore timeouts of unanswered waits, deadlines and schedules."""
    due: datetime | None = await call.value(conn, "next_due", waits=waits)
    return due


def text(name: str) -> str:
    """Read a SQL script of this package."""
    return resources.files("flowfabric.testing").joinpath(name).read_text()
