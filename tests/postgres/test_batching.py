"""Natural batching: who goes with whom, who gets what, and what happens when something breaks."""

import asyncio
import gc
import traceback
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.errors import FlowFabricError, LaneNotFound, LeaseLost, ShuttingDown
from flowfabric.postgres.batching import Batch
from tests.conftest import SOAK

Outcomes = Sequence[str | FlowFabricError]
Call = asyncio.Task[str]


class Operation:
    """A set-based operation that answers each batch when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.answers: list[asyncio.Future[Outcomes]] = []

    async def __call__(self, items: Sequence[str]) -> Outcomes:
        self.batches.append(list(items))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def answer(self, number: int = -1) -> None:
        """Let one batch succeed, each item with its own name in capitals."""
        self.answers[number].set_result([item.upper() for item in self.batches[number]])
        await turns()


async def turns(count: int = 8) -> None:
    """Let the loop run everything that is ready; nothing here ever waits for the clock."""
    for _ in range(count):
        await asyncio.sleep(0)


async def in_flight(batch: Batch[str, str], *items: str) -> list[Call]:
    """Calls that have been made, in this order, and have gone as far as they can."""
    calls = [asyncio.create_task(batch(item)) for item in items]
    await turns()
    return calls


@pytest.fixture(autouse=True)
async def _nothing_is_left_unretrieved() -> AsyncIterator[None]:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await turns()
    gc.collect()
    assert complaints == []


async def test_a_lone_call_goes_at_once_and_alone() -> None:
    operation = Operation()
    lone = asyncio.create_task(Batch(operation)("a"))

    await turns(2)  # one for the caller, one for the batch: no timer fits in between
    assert operation.batches == [["a"]]

    await operation.answer()
    assert await lone == "A"


async def test_calls_that_arrive_while_one_is_in_flight_go_together_in_the_next() -> None:
    operation = Operation()
    batch = Batch(operation)
    first = await in_flight(batch, "a")
    rest = await in_flight(batch, "b", "c", "d")
    assert operation.batches == [["a"]]

    await operation.answer()
    assert operation.batches == [["a"], ["b", "c", "d"]]

    await operation.answer()
    assert await asyncio.gather(*first, *rest) == ["A", "B", "C", "D"]


async def test_two_hundred_concurrent_calls_take_a_few_round_trips_and_each_gets_its_own() -> None:
    """Behaviour 29."""
    trips: list[list[int]] = []

    async def halve(items: Sequence[int]) -> list[int | FlowFabricError]:
        trips.append(list(items))
        await asyncio.sleep(0)
        return [LeaseLost("odd", item=item) if item % 2 else item // 2 for item in items]

    batch = Batch(halve)
    got = await asyncio.gather(*(batch(item) for item in range(200)), return_exceptions=True)
    assert got == [LeaseLost("odd", item=item) if item % 2 else item // 2 for item in range(200)]
    assert len(trips) <= 3

    lone = asyncio.create_task(batch(8))
    await turns(2)
    assert trips[-1] == [8]
    assert await lone == 4


async def test_callers_that_call_again_at_once_share_the_next_batch_with_those_that_waited() -> None:
    operation = Operation()
    batch = Batch(operation)

    async def twice(item: str) -> None:
        await batch(item)
        await batch(item)

    pair = asyncio.gather(twice("a"), twice("b"))
    await turns()
    [late] = await in_flight(batch, "c")
    for _ in range(2):
        await operation.answer()

    assert operation.batches == [["a", "b"], ["c", "a", "b"]]
    await asyncio.gather(pair, late)


async def test_a_refusal_reaches_only_the_caller_it_belongs_to() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation), "a", "b", "c")
    operation.answers[0].set_result(["A", LaneNotFound("no lane b", lane="b"), "C"])

    assert await asyncio.gather(*calls, return_exceptions=True) == ["A", LaneNotFound("no lane b", lane="b"), "C"]


async def test_what_run_raises_reaches_all_callers_of_that_batch_and_only_those() -> None:
    operation = Operation()
    *doomed, spared = await in_flight(Batch(operation, most=2), "a", "b", "c")
    operation.answers[0].set_exception(OSError(104, "connection reset"))
    await turns()
    await operation.answer()

    for caller in doomed:
        with pytest.raises(ConnectionResetError, match="connection reset"):
            await caller
    assert await spared == "C"


async def test_each_caller_raises_its_own_copy_that_still_shows_where_run_failed() -> None:
    async def explode(items: Sequence[str]) -> Outcomes:
        try:
            raise KeyError("the reason")
        except KeyError as reason:
            raise LeaseLost("all of it", cause="expired") from reason

    batch = Batch(explode)
    raised = await asyncio.gather(*(batch(item) for item in "abc"), return_exceptions=True)

    assert raised == [LeaseLost("all of it", cause="expired")] * 3
    assert len({id(error) for error in raised}) == 3
    for error in raised:
        assert isinstance(error, LeaseLost)
        assert isinstance(error.__cause__, KeyError)
        assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["__call__", "_send", "explode"]


async def test_an_exception_that_cannot_be_copied_still_reaches_everyone() -> None:
    class NeedsMore(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} {two}")

    class SaysMore(Exception):
        def __init__(self, what: str) -> None:
            super().__init__(f"it was {what}")

    for error in (NeedsMore("this", "that"), SaysMore("late")):
        operation = Operation()
        calls = await in_flight(Batch(operation), "a", "b")
        operation.answers[0].set_exception(error)
        assert [str(raised) for raised in await asyncio.gather(*calls, return_exceptions=True)] == [str(error)] * 2


async def test_the_wrong_number_of_outcomes_is_an_error_for_all_and_not_a_hang() -> None:
    operation = Operation()
    batch = Batch(operation)
    calls = await in_flight(batch, "a", "b")
    operation.answers[0].set_result(["A"])

    for caller in calls:
        with pytest.raises(RuntimeError, match="2 items were sent and 1 outcomes came back"):
            await caller

    [after] = await in_flight(batch, "c")
    await operation.answer()
    assert await after == "C"


async def test_a_batch_ends_at_most_items_and_the_rest_follow_in_order() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most=2), *"abcde")
    for _ in range(3):
        await operation.answer()

    assert operation.batches == [["a", "b"], ["c", "d"], ["e"]]
    assert await asyncio.gather(*calls) == list("ABCDE")


async def test_a_batch_ends_at_most_bytes_and_an_oversized_item_goes_alone() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most_bytes=4, size=len), "aa", "bb", "c", "dddd", "eeeeeeee", "f", "ggg")
    for _ in range(5):
        await operation.answer()

    assert operation.batches == [["aa", "bb"], ["c"], ["dddd"], ["eeeeeeee"], ["f", "ggg"]]
    assert len(await asyncio.gather(*calls)) == 7


async def test_an_item_that_cannot_be_sized_is_its_own_callers_problem() -> None:
    operation = Operation()
    bad, good = await in_flight(Batch(operation, size=int), "x", "1")
    await operation.answer()

    with pytest.raises(ValueError, match="invalid literal"):
        await bad
    assert await good == "1"


async def test_as_many_batches_as_allowed_are_in_flight_at_once() -> None:
    operation = Operation()
    batch = Batch(operation, in_flight=2)
    calls = [*await in_flight(batch, "a"), *await in_flight(batch, "b"), *await in_flight(batch, "c", "d")]
    assert operation.batches == [["a"], ["b"]]

    await operation.answer(1)
    assert operation.batches == [["a"], ["b"], ["c", "d"]]

    await operation.answer(2)
    await operation.answer(0)
    assert await asyncio.gather(*calls) == list("ABCD")


async def test_what_one_batch_cannot_hold_uses_the_other_free_places_at_once() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most=2, in_flight=3), *"abcdefg")
    assert operation.batches == [["a", "b"], ["c", "d"], ["e", "f"]]

    for number in (2, 0, 1, 3):
        await operation.answer(number)
    assert await asyncio.gather(*calls) == list("ABCDEFG")


async def test_a_call_cancelled_while_it_waits_is_left_out() -> None:
    operation = Operation()
    batch = Batch(operation, most_bytes=2, size=len)
    [first] = await in_flight(batch, "a")
    kept, dropped, last = await in_flight(batch, "b", "large", "c")
    dropped.cancel()
    await operation.answer()
    assert operation.batches == [["a"], ["b", "c"]]

    await operation.answer()
    assert (await first, await kept, await last) == ("A", "B", "C")


async def test_when_all_that_waited_were_cancelled_nothing_is_run() -> None:
    operation = Operation()
    first, dropped = await in_flight(Batch(operation, most=1), "a", "b")
    dropped.cancel()
    await operation.answer()

    assert await first == "A"
    assert operation.batches == [["a"]]


async def test_a_caller_cancelled_in_flight_harms_nobody_even_when_its_call_began_the_batch() -> None:
    operation = Operation()
    first, second = await in_flight(Batch(operation), "a", "b")
    first.cancel()
    await operation.answer()

    assert first.cancelled()
    assert await second == "B"


@pytest.mark.parametrize("fails", [True, False])
async def test_when_nobody_is_left_to_hear_a_failure_or_a_refusal_nothing_is_logged(fails: bool) -> None:
    operation = Operation()
    gone, late = await in_flight(Batch(operation), "a", "b")
    gone.cancel()
    if fails:
        operation.answers[0].set_exception(OSError("gone"))
    else:
        operation.answers[0].set_result([LeaseLost("gone"), LeaseLost("gone")])
    await turns(1)
    late.cancel()  # its answer is there, but it has not seen it yet
    await turns()

    assert gone.cancelled()
    assert late.cancelled()


async def test_a_cancelled_run_is_an_error_to_its_callers_and_the_next_batch_goes_on() -> None:
    operation = Operation()
    cut, after = await in_flight(Batch(operation, most=1), "a", "b")
    operation.answers[0].cancel()
    await turns()
    await operation.answer()

    with pytest.raises(RuntimeError, match="it is not known whether it took effect"):
        await cut
    assert await after == "B"


async def test_close_refuses_new_calls_and_waits_for_those_it_took() -> None:
    operation = Operation()
    batch = Batch(operation, most=1)
    calls = await in_flight(batch, "a", "b")
    closing = [asyncio.create_task(batch.close()), asyncio.create_task(batch.close())]
    await turns()
    with pytest.raises(ShuttingDown):
        await batch("c")

    await operation.answer()
    assert operation.batches == [["a"], ["b"]]
    assert not any(closed.done() for closed in closing)

    await operation.answer()
    await asyncio.gather(*closing)
    assert [caller.result() for caller in calls] == ["A", "B"]


async def test_an_impatient_close_cuts_nothing_off() -> None:
    operation = Operation()
    batch = Batch(operation)
    [caller] = await in_flight(batch, "a")
    closing = asyncio.create_task(batch.close())
    await turns()
    closing.cancel()
    await operation.answer()

    assert closing.cancelled()
    assert await caller == "A"


def complaints_of(main: Coroutine[Any, Any, None], expect: type[BaseException] | None = None) -> list[dict[str, Any]]:
    """Run on a loop of its own, as an application would, and give back what the loop complained about."""
    complaints: list[dict[str, Any]] = []
    with pytest.raises(expect) if expect else nullcontext(), asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        runner.run(main)
    gc.collect()
    return complaints


def test_a_process_that_ends_in_the_middle_ends_quietly() -> None:
    calls: list[Call] = []

    async def main() -> None:
        calls.extend(await in_flight(Batch(Operation(), most=1), "a", "b", "c"))

    assert complaints_of(main()) == []
    assert all(caller.cancelled() for caller in calls)


def test_an_interrupt_in_run_ends_the_process_quietly() -> None:
    async def interrupt(items: Sequence[str]) -> Outcomes:
        raise KeyboardInterrupt

    async def main() -> None:
        await Batch(interrupt)("a")

    assert complaints_of(main(), expect=KeyboardInterrupt) == []


def test_an_instance_belongs_to_the_loop_it_was_first_used_on() -> None:
    async def echo(items: Sequence[str]) -> Outcomes:
        return items

    batch = Batch(echo)
    assert asyncio.run(batch("a")) == "a"
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(batch("b"))


@pytest.mark.parametrize("limits", [{"most": 0}, {"in_flight": 0}])
def test_limits_under_which_nothing_would_go_out_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Batch(Operation(), **limits)  # type: ignore[arg-type]


class Item(NamedTuple):
    number: int
    size: int
    refused: bool


class Run(NamedTuple):
    """One call of `run`: what it was given, and whether it is to fail."""

    items: list[Item]
    fails: asyncio.Future[bool]


class Failed(Exception):
    """The run of a whole batch failed."""


Move = tuple[Literal["call", "cancel", "finish", "turn"], int, bool]
kinds = st.sampled_from(["call", "call", "call", "cancel", "finish", "turn"])
schedules = st.lists(st.tuples(kinds, st.integers(0, 9), st.booleans()), min_size=20, max_size=60)


class Play:
    """A schedule of moves on one batch, and what came of it."""

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
        await self.a_lone_call_goes_at_once(batch)
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

    async def a_lone_call_goes_at_once(self, batch: Batch[Item, int]) -> None:
        await self.move(batch, ("call", 1, False))
        await turns(2)
        [lone] = self.open_runs()
        assert [item.number for item in lone.items] == [len(self.calls) - 1]

    def everyone_got_their_own(self) -> None:
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
def test_whatever_the_schedule_everyone_gets_their_own_and_nothing_is_lost_or_repeated(
    most: int, most_bytes: int, in_flight: int, schedule: list[Move]
) -> None:
    play = Play(most, most_bytes, in_flight)
    assert complaints_of(play.play(schedule)) == []
    play.everyone_got_their_own()
    play.nothing_was_lost_repeated_or_reordered()
    play.limits_were_kept()
