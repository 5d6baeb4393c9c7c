"""Natural batching under arbitrary schedules of calls, cancellations and failures."""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.errors import FlowFabricError, LeaseLost
from flowfabric.postgres.batching import Batch
from tests.conftest import SOAK
from tests.postgres.test_batching import complaints_of, turns


@pytest.fixture(autouse=True)
def _only_objects_of_the_test_are_collected() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


class Item(NamedTuple):
    number: int
    size: int
    refused: bool


class Run(NamedTuple):
    """One call of `run`: its items, and whether it is to fail."""

    items: list[Item]
    fails: asyncio.Future[bool]


class Failed(Exception):
    """The run of a whole batch failed."""


Move = tuple[Literal["call", "cancel", "finish", "turn"], int, bool]
kinds = st.sampled_from(["call", "call", "call", "cancel", "finish", "turn"])
schedules = st.lists(st.tuples(kinds, st.integers(0, 9), st.booleans()), min_size=20, max_size=60)


class Play:
    """A schedule of moves on one batch, and its result."""

    def __init__(self, most: int, most_bytes: int, in_flight: int) -> None:
        self.most, self.most_bytes, self.in_flight = most, most_bytes, in_flight
        self.calls: list[asyncio.Task[int]] = []
        self.cancelled: set[int] = set()
        self.runs: list[Run] = []

    def open_runs(self) -> list[Run]:
        return [run for run in self.runs if not run.fails.done()]

    async def run(self, items: Sequence[Item]) -> Sequence[int | FlowFabricError]:
        assert len(self.open_runs()) < self.in_flight
        run = Run(list(items), asyncio.get_running_loop().create_future())
        self.runs.append(run)
        if await run.fails:
            raise Failed(items[0].number)
        return [LeaseLost("refused", item=item.number) if item.refused else item.number for item in items]

    async def play(self, schedule: list[Move]) -> None:
        batch: Batch[Item, int] = Batch(
            self.run, most=self.most, most_bytes=self.most_bytes, size=lambda item: item.size, in_flight=self.in_flight
        )
        for move in schedule:
            await self.move(batch, move)
        await self.finish_all()
        await self.a_lone_call_is_sent_immediately(batch)
        await self.finish_all()
        await batch.close()
        assert all(caller.done() for caller in self.calls)

    async def move(self, batch: Batch[Item, int], move: Move) -> None:
        match move:
            case "call", size, refused:
                self.calls.append(asyncio.create_task(batch(Item(len(self.calls), size, refused))))
            case "cancel", back, _ if back < len(self.calls) and self.calls[~back].cancel():
                self.cancelled.add(len(self.calls) + ~back)
            case "finish", which, fails if open_runs := self.open_runs():
                open_runs[which % len(open_runs)].fails.set_result(fails)
            case "turn", count, _:
                await turns(count % 4)

    async def finish_all(self) -> None:
        await turns()
        while open_runs := self.open_runs():
            open_runs[0].fails.set_result(False)
            await turns()

    async def a_lone_call_is_sent_immediately(self, batch: Batch[Item, int]) -> None:
        await self.move(batch, ("call", 1, False))
        await turns(2)
        [lone] = self.open_runs()
        assert [item.number for item in lone.items] == [len(self.calls) - 1]

    def every_caller_got_its_own_outcome(self) -> None:
        ends = {item.number: (run, item) for run in self.runs for item in run.items}
        for number, caller in enumerate(self.calls):
            if number in self.cancelled:
                assert caller.cancelled()
                continue
            run, item = ends[number]
            if run.fails.result():
                assert repr(caller.exception()) == repr(Failed(run.items[0].number))
            elif item.refused:
                assert caller.exception() == LeaseLost("refused", item=number)
            else:
                assert caller.result() == number

    def nothing_was_lost_repeated_or_reordered(self) -> None:
        numbers = [item.number for run in self.runs for item in run.items]
        assert numbers == sorted(set(numbers))
        assert set(range(len(self.calls))) - set(numbers) <= self.cancelled

    def limits_were_kept(self) -> None:
        for run in self.runs:
            assert 1 <= len(run.items) <= self.most
            assert sum(item.size for item in run.items) <= self.most_bytes or len(run.items) == 1


@settings(max_examples=1_000 if SOAK else 40, deadline=None)
@given(most=st.integers(1, 8), most_bytes=st.integers(4, 40), in_flight=st.integers(1, 3), schedule=schedules)
def test_in_any_schedule_every_caller_gets_its_own_outcome_and_nothing_is_lost_or_repeated(
    most: int, most_bytes: int, in_flight: int, schedule: list[Move]
) -> None:
    play = Play(most, most_bytes, in_flight)
    assert complaints_of(play.play(schedule)) == []
    play.every_caller_got_its_own_outcome()
    play.nothing_was_lost_repeated_or_reordered()
    play.limits_were_kept()
