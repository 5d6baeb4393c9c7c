"""Natural batching when a row is locked: what is sent again, what is sent alone, and who waits."""

import asyncio
from collections.abc import Sequence

import pytest

from flowfabric.errors import RowLocked
from flowfabric.postgres.batching import Batch
from tests.given import until
from tests.postgres.test_batching import Operation, Outcomes, in_flight, turns


async def test_a_locked_item_is_sent_again_and_delays_no_other() -> None:
    operation = Operation()
    batch = Batch(operation)
    [first], [second] = await in_flight(batch, "a"), await in_flight(batch, "b")
    operation.answers[0].set_result([RowLocked("locked by another transaction")])
    await turns()
    assert operation.batches == [["a"], ["b"]]
    await operation.answer()

    assert await second == "B"
    await until(lambda: len(operation.batches) == 3)
    await operation.answer()
    assert await first == "A"


async def test_a_locked_item_whose_caller_has_left_is_not_sent_again() -> None:
    operation = Operation()
    batch = Batch(operation)
    [call] = await in_flight(batch, "a")
    operation.answers[0].set_result([RowLocked("locked by another transaction")])
    await turns()
    call.cancel()
    await batch.close()

    assert operation.batches == [["a"]]


async def test_closing_waits_for_locked_items() -> None:
    operation = Operation()
    batch = Batch(operation)
    [call] = await in_flight(batch, "a")
    operation.answers[0].set_result([RowLocked("locked by another transaction")])
    closing = asyncio.create_task(batch.close())
    await until(lambda: len(operation.batches) == 2)
    assert not closing.done()
    await operation.answer()
    await closing

    assert await call == "A"


async def test_a_batch_that_meets_a_lock_is_sent_once_more_before_it_is_split() -> None:
    operation = Operation()
    calls = await in_flight(Batch(operation), "a", "b")
    operation.answers[0].set_exception(RowLocked("locked by another transaction"))
    await turns()
    await operation.answer()

    assert await asyncio.gather(*calls) == ["A", "B"]
    assert operation.batches == [["a", "b"], ["a", "b"]]


async def test_after_a_second_lock_the_items_are_sent_alone_and_only_the_locked_one_waits() -> None:
    locked, trips = {"b"}, []

    async def act(items: Sequence[str]) -> Outcomes:
        trips.append(list(items))
        await asyncio.sleep(0)
        if locked & set(items):
            raise RowLocked("locked by another transaction")
        return [item.upper() for item in items]

    batch = Batch(act)
    first, second, third = await in_flight(batch, "a", "b", "c")
    assert [await first, await third] == ["A", "C"]
    assert trips[:5] == [["a", "b", "c"], ["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert await batch("d") == "D"

    locked.clear()
    assert await second == "B"
    assert all("d" not in trip for trip in trips if len(trip) > 1)


async def test_a_caller_that_has_been_patient_for_long_enough_gets_the_lock_as_its_error() -> None:
    async def act(items: Sequence[str]) -> Outcomes:
        raise RowLocked("locked by another transaction")

    with pytest.raises(RowLocked):
        await Batch(act, patience=0.01)("a")


async def test_calls_of_a_split_batch_are_sent_before_those_that_stay_locked() -> None:
    sent: list[list[int]] = []
    gate = asyncio.Event()

    async def act(items: Sequence[int]) -> Sequence[int]:
        sent.append(list(items))
        if sent.count([-1]) == 2 and items == [-1]:
            await gate.wait()
        if min(items) < 0:
            raise RowLocked("locked by another transaction")
        return items

    batch = Batch(act)
    locked = [asyncio.create_task(batch(number)) for number in (-1, -2)]
    await until(lambda: sent.count([-1]) == 2 and len(batch._alone) == 1)  # one is being sent again, the other is next
    calls = [asyncio.create_task(batch(number)) for number in (5, -3)]
    await until(lambda: sent.count([5, -3]) == 2)
    before = sent.count([-2])
    gate.set()

    assert await calls[0] == 5
    assert sent[: sent.index([5])].count([-2]) == before
    for call in (*locked, calls[1]):
        call.cancel()


async def test_a_lock_that_lasts_is_logged_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    batch = Batch(Operation())
    for now in (105.0, 112.0, 115.0, 121.0, 123.0):
        batch._warn(now, 100.0)

    assert [record.args for record in caplog.records] == [(12.0,), (23.0,)]
