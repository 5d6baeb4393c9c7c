"""A clock that tests move, so that none of them ever sleeps."""

from datetime import datetime, timedelta
from importlib import resources
from typing import TYPE_CHECKING

from flowfabric import durations
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.testing.engine import Engine


class Clock:
    """The clock of a test's engine: it goes on by itself, and jumps when told to."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return "<clock of this test>"

    async def now(self) -> datetime:
        """What time it is for the engine."""
        return await self._engine.run(now)

    async def advance(self, by: str | timedelta | datetime, *, settle: bool = True) -> datetime:
        """Let time pass, up to a moment or by a span such as `"2d"`, with all that this brings about.

        What runs is let finish first. Then the clock goes from one moment at which something is due to the next, and
        what is due runs to its end each time. With `settle=False` it jumps at once, past what runs, and waits for
        nothing. Returns the time then. Raises `ValueError` for a time that has passed.
        """
        wanted = by if isinstance(by, datetime) else durations.read_duration(by)
        if settle:
            await self._engine.settle()
        now = await self.now()
        then = durations.read_timestamp(wanted) if isinstance(wanted, datetime) else now + wanted
        if then < now:
            raise ValueError(f"{then} has passed, it is {now}; the clock goes forward")
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
        """Let time pass up to a moment, and bring about nothing yet."""
        left = then - await self.now()
        if left > timedelta():
            await self._engine.run(lambda conn: pass_time(conn, left))


async def install_clock(conn: Connection) -> None:
    """Make the clock of this database movable. For tests: a database in use must never have it."""
    await call.script(conn, text("clock.sql"))


async def move_clock(conn: Connection, span: timedelta) -> datetime:
    """Move the clock, forward or back, for everything this database decides. Returns the time then.

    As if every process had been away meanwhile: leases lapse.
    """
    moved: datetime = await call.value(conn, "move_clock", span=span)
    return moved


async def pass_time(conn: Connection, span: timedelta) -> datetime:
    """Let time pass while the workers are alive, so that no lease lapses. Returns the time then."""
    then: datetime = await call.value(conn, "pass_time", span=span)
    return then


async def now(conn: Connection) -> datetime:
    """What time it is for this database."""
    at: datetime = await call.value(conn, "clock")
    return at


async def next_due(conn: Connection, *, waits: bool = True) -> datetime | None:
    """The next moment at which something happens by itself; without `waits`, that nobody answered does not count."""
    due: datetime | None = await call.value(conn, "next_due", waits=waits)
    return due


def text(name: str) -> str:
    """A script of this package."""
    return resources.files("flowfabric.testing").joinpath(name).read_text()
