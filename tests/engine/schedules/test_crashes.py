"""One execution per tick, whichever process sweeps and whatever crashes, also across clock changes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flowfabric import testing
from flowfabric.engine import schedules
from flowfabric.errors import DatabaseUnavailable
from flowfabric.postgres.driver import Connection, Row
from tests.conftest import SOAK
from tests.engine.schedules.oracle import CHANGES, CRONS, expected
from tests.engine.schedules.scene import DAY, MINUTE, at, create, fired, moment
from tests.given import Given

SWEEPERS = 3


class Move(NamedTuple):
    """Some minutes pass, then a process sweeps in this way and fails at that statement."""

    minutes: int
    how: str
    statement: int


class Wire:
    """A connection that calls a function at one statement."""

    def __init__(self, conn: Any, statement: int, instead: Callable[[Awaitable[Sequence[Row]]], Any]) -> None:
        self._conn, self._left, self._instead = conn, statement, instead

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        self._left -= 1
        fetching = self._conn.fetch(query, *arguments)
        found: Sequence[Row] = await (fetching if self._left else self._instead(fetching))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


async def dies_before(fetching: Any) -> None:
    fetching.close()
    raise ConnectionResetError("gone before it was asked")


async def dies_after(fetching: Awaitable[Sequence[Row]]) -> None:
    await fetching
    raise ConnectionResetError("gone with the reply")


class Play:
    """A schedule that catches up all ticks, and sweepers that fail."""

    def __init__(self, conns: Sequence[Any]) -> None:
        self.conns = conns
        self.sweeps: dict[str, Callable[[int], Awaitable[object]]] = {
            "well": lambda _: schedules.fire_schedules(self.conns[0]),
            "dies_before": lambda statement: self.breaks(dies_before, statement),
            "dies_after": lambda statement: self.breaks(dies_after, statement),
            "overtaken": lambda statement: self.breaks(self.overtaken, statement),
            "rolled_back": self.rolled_back,
            "together": self.together,
        }

    async def run(self, tz: str, around: str, cron: str, forgetful: bool, moves: Sequence[Move]) -> None:
        given_, name, self.forgetful = Given(self.conns[0]), f"s{uuid4().hex}", forgetful
        await at(given_, str((moment(around) - 180 * MINUTE).replace(tzinfo=None, second=20)))
        begin = await testing.now(self.conns[0])
        await create(self.conns[0], name, task=name, cron=cron, tz=tz, catch_up="all", catch_up_window=30 * DAY)
        for move in moves:
            await given_.time_passes(minutes=move.minutes)
            with suppress(DatabaseUnavailable):
                await self.sweeps[move.how](move.statement)
            await self.forget()
        end = await testing.now(self.conns[0])
        while (await schedules.fire_schedules(self.conns[0])).moved:
            pass
        right = expected(cron, tz, begin, end)
        assert await fired(given_, name) == right
        [row] = await given_.rows("select count(*) from flowfabric.executions where task = $1", name)
        assert forgetful or row["count"] == len(right)
        await schedules.delete_schedule(self.conns[0], name, by="test")

    async def forget(self) -> None:
        """With a short retention, no id remains that shows what was submitted."""
        if self.forgetful:
            await self.conns[2].execute("delete from flowfabric.executions; delete from flowfabric.tickets")

    async def breaks(self, how: Callable[[Any], Any], statement: int) -> None:
        wire: Connection = Wire(self.conns[0], statement, how)
        await schedules.fire_schedules(wire)

    async def overtaken(self, fetching: Awaitable[Sequence[Row]]) -> Sequence[Row]:
        await schedules.fire_schedules(self.conns[1], limit=1)
        await self.forget()
        return await fetching

    async def rolled_back(self, statement: int) -> None:
        crash = self.conns[1].transaction()
        await crash.start()
        await schedules.fire_schedules(self.conns[1], limit=statement)
        await crash.rollback()

    async def together(self, statement: int) -> None:
        await asyncio.gather(*(schedules.fire_schedules(conn, limit=statement) for conn in self.conns))


async def play(url: str, *story: Any) -> None:
    conns = [await asyncpg.connect(url) for _ in range(SWEEPERS)]
    try:
        await Play(conns).run(*story)
    finally:
        for conn in conns:
            await conn.close()


WAYS = ["well", "dies_before", "dies_after", "overtaken", "rolled_back", "together"]
MOVES = st.builds(Move, st.integers(0, 90), st.sampled_from(WAYS), st.integers(1, 6))


def test_every_tick_is_run_exactly_once_whatever_crashes_and_however_clocks_change(database_url: str) -> None:
    @settings(deadline=None, max_examples=400 if SOAK else 20, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(CHANGES), st.sampled_from(CRONS), st.booleans(), st.lists(MOVES, min_size=1, max_size=8))
    def story(change: tuple[str, str], cron: str, forgetful: bool, moves: list[Move]) -> None:
        asyncio.run(play(database_url, *change, cron, forgetful, moves))

    for way in WAYS:  # at the statement that fires, besides the random ones
        story = example(CHANGES[0], "*/15 * * * *", True, [Move(90, way, 2)])(story)
    story()
