"""Natural batching: which calls share a batch, which outcome each caller gets, and what happens on failures."""

import asyncio
import gc
import traceback
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from flowfabric.errors import FlowFabricError, LaneNotFound, LeaseLost, ShuttingDown
from flowfabric.postgres.batching import Batch

Outcomes = Sequence[str | FlowFabricError]
Call = asyncio.Task[str]


class Operation:
    """A set-based operation that answers each batch when the test calls `answer`."""

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
    """Let the event loop run everything that is ready; nothing here waits for the clock."""
    for _ in range(count):
        await asyncio.sleep(0)


async def in_flight(batch: Batch[str, str], *items: str) -> list[Call]:
    """Calls made in this order, which have run as far as they can."""
    calls = [asyncio.create_task(batch(item)) for item in items]
    await turns()
    return calls


@pytest.fixture(autouse=True)
async def _nothing_is_left_unretrieved() -> AsyncIterator[None]:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    gc.freeze()  # so that the collection below looks only at the objects of this test
    yield
    await turns()
    gc.collect()
    gc.unfreeze()
    assert complaints == []


async def test_a_lone_call_is_sent_immediately() -> None:
    operation = Operation()
    lone = asyncio.create_task(Batch(operation)("a"))

    await turns(2)  # one for the caller, one for the batch: there is no timer
    assert operation.batches == [["a"]]

    await operation.answer()
    assert await lone == "A"


async def test_calls_that_arrive_while_one_is_in_flight_share_the_next_batch() -> None:
    operation = Operation()
    batch = Batch(operation)
    first = await in_flight(batch, "a")
    rest = await in_flight(batch, "b", "c", "d")
    assert operation.batches == [["a"]]

    await operation.answer()
    assert operation.batches == [["a"], ["b", "c", "d"]]

    await operation.answer()
    assert await asyncio.gather(*first, *rest) == ["A", "B", "C", "D"]


async def test_two_hundred_concurrent_calls_take_a_few_round_trips_and_each_gets_its_own_outcome() -> None:
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


async def test_callers_that_call_again_share_the_next_batch_with_those_that_waited() -> None:
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


async def test_an_error_of_one_item_reaches_only_its_caller() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation), "a", "b", "c")
    operation.answers[0].set_result(["A", LaneNotFound("no lane b", lane="b"), "C"])

    assert await asyncio.gather(*calls, return_exceptions=True) == ["A", LaneNotFound("no lane b", lane="b"), "C"]


async def test_an_error_of_a_whole_batch_reaches_all_its_callers_and_no_others() -> None:
    operation = Operation()
    *doomed, spared = await in_flight(Batch(operation, most=2), "a", "b", "c")
    operation.answers[0].set_exception(OSError(104, "connection reset"))
    await turns()
    await operation.answer()

    for caller in doomed:
        with pytest.raises(ConnectionResetError, match="connection reset"):
            await caller
    assert await spared == "C"


async def test_each_caller_gets_its_own_copy_of_the_error_with_the_traceback() -> None:
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
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames == ["__call__", "_answer", "_try", "explode"]


async def test_an_exception_that_cannot_be_copied_still_reaches_every_caller() -> None:
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


async def test_the_wrong_number_of_outcomes_is_an_error_for_all_callers() -> None:
    operation = Operation()
    batch = Batch(operation)
    calls = await in_flight(batch, "a", "b")
    operation.answers[0].set_result(["A"])

    for caller in calls:
        with pytest.raises(RuntimeError, match=r"2 items.* 1 outcomes"):
            await caller

    [after] = await in_flight(batch, "c")
    await operation.answer()
    assert await after == "C"


async def test_a_batch_has_a_maximum_of_items_and_the_rest_follow_in_order() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most=2), *"abcde")
    for _ in range(3):
        await operation.answer()

    assert operation.batches == [["a", "b"], ["c", "d"], ["e"]]
    assert await asyncio.gather(*calls) == list("ABCDE")


async def test_a_batch_has_a_maximum_of_bytes_and_an_oversized_item_goes_alone() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most_bytes=4, size=len), "aa", "bb", "c", "dddd", "eeeeeeee", "f", "ggg")
    for _ in range(5):
        await operation.answer()

    assert operation.batches == [["aa", "bb"], ["c"], ["dddd"], ["eeeeeeee"], ["f", "ggg"]]
    assert len(await asyncio.gather(*calls)) == 7


async def test_an_item_that_cannot_be_sized_fails_alone() -> None:
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


async def test_items_that_do_not_fit_into_one_batch_fill_the_other_free_places() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation, most=2, in_flight=3), *"abcdefg")
    assert operation.batches == [["a", "b"], ["c", "d"], ["e", "f"]]

    for number in (2, 0, 1, 3):
        await operation.answer(number)
    assert await asyncio.gather(*calls) == list("ABCDEFG")


async def test_a_call_cancelled_while_it_waits_is_not_sent() -> None:
    operation = Operation()
    batch = Batch(operation, most_bytes=2, size=len)
    [first] = await in_flight(batch, "a")
    kept, dropped, last = await in_flight(batch, "b", "large", "c")
    dropped.cancel()
    await operation.answer()
    assert operation.batches == [["a"], ["b", "c"]]

    await operation.answer()
    assert (await first, await kept, await last) == ("A", "B", "C")


async def test_nothing_is_sent_when_all_waiting_calls_were_cancelled() -> None:
    operation = Operation()
    first, dropped = await in_flight(Batch(operation, most=1), "a", "b")
    dropped.cancel()
    await operation.answer()

    assert await first == "A"
    assert operation.batches == [["a"]]


async def test_a_caller_cancelled_in_flight_does_not_affect_the_others() -> None:
    operation = Operation()
    first, second = await in_flight(Batch(operation), "a", "b")
    first.cancel()
    await operation.answer()

    assert first.cancelled()
    assert await second == "B"


@pytest.mark.parametrize("fails", [True, False])
async def test_an_error_without_a_remaining_caller_is_not_logged(fails: bool) -> None:
    operation = Operation()
    gone, late = await in_flight(Batch(operation), "a", "b")
    gone.cancel()
    if fails:
        operation.answers[0].set_exception(OSError("gone"))
    else:
        operation.answers[0].set_result([LeaseLost("gone"), LeaseLost("gone")])
    await turns(1)
    late.cancel()  # it has its answer, but has not run since
    await turns()

    assert gone.cancelled()
    assert late.cancelled()


async def test_a_cancelled_batch_is_an_error_for_its_callers_and_the_next_one_is_sent() -> None:
    operation = Operation()
    cut, after = await in_flight(Batch(operation, most=1), "a", "b")
    operation.answers[0].cancel()
    await turns()
    await operation.answer()

    with pytest.raises(RuntimeError, match="not known"):
        await cut
    assert await after == "B"


async def test_close_rejects_new_calls_and_waits_for_accepted_ones() -> None:
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


async def test_cancelling_close_does_not_cancel_accepted_calls() -> None:
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
    """Run on a new event loop, and return what the loop reported to its exception handler."""
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
def test_limits_below_one_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Batch(Operation(), **limits)  # type: ignore[arg-type]
