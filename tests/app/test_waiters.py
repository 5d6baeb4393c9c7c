"""Waiting for ends: notified immediately, or found by a few polls for any number of waiters."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from flowfabric.app.waiters import Waiters
from flowfabric.errors import DatabaseUnavailable, ShuttingDown
from flowfabric.ids import ExecutionId
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier


class Seen:
    """A poll that knows which executions have ended, and records each call."""

    def __init__(self) -> None:
        self.asked: list[Sequence[ExecutionId]] = []
        self.ended: set[ExecutionId] = set()
        self.away = 0
        self.why: Exception = DatabaseUnavailable("away")
        self._told = asyncio.Condition()

    async def asked_about(self, count: int) -> None:
        async with self._told:
            await self._told.wait_for(lambda: sum(map(len, self.asked)) >= count)

    async def look(self, execution_ids: Sequence[ExecutionId]) -> Sequence[ExecutionId]:
        self.asked.append(execution_ids)
        async with self._told:
            self._told.notify_all()
        if self.away:
            self.away -= 1
            raise self.why
        return [each for each in execution_ids if each in self.ended]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def ends(database: Database, seen: Seen) -> AsyncIterator[Waiters]:
    async with Notifier(database) as hints:
        made = Waiters(hints, seen.look)
        yield made
        await made.close()


def an_id() -> ExecutionId:
    return ExecutionId(0, uuid4())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_execution_that_has_already_ended_is_found_by_the_first_poll(ends: Waiters, seen: Seen) -> None:
    execution_id = an_id()
    seen.ended.add(execution_id)

    await ends.wait(execution_id)
    assert seen.asked == [[execution_id]]


async def test_a_notification_wakes_everyone_who_waits_for_the_execution(ends: Waiters, seen: Seen) -> None:
    execution_id, other = an_id(), an_id()
    waiting = [asyncio.create_task(ends.wait(each)) for each in (execution_id, execution_id, other)]
    await turns()
    ends.wake([str(execution_id)])
    await turns()

    assert [task.done() for task in waiting] == [True, True, False]
    waiting[2].cancel()


async def test_an_end_without_a_notification_is_found_by_polling(ends: Waiters, seen: Seen) -> None:
    execution_id = an_id()
    waiting = asyncio.create_task(ends.wait(execution_id))
    await turns()
    seen.ended.add(execution_id)

    await asyncio.wait_for(waiting, 10)


async def test_one_poll_covers_thousands_of_executions(ends: Waiters, seen: Seen) -> None:
    waiting = [asyncio.create_task(ends.wait(an_id())) for _ in range(5_000)]
    await seen.asked_about(15_000)  # each was polled about three times
    assert len(seen.asked) < 40

    for task in waiting:
        task.cancel()


async def test_many_waiters_for_one_execution_share_a_poll(ends: Waiters, seen: Seen) -> None:
    execution_id = an_id()
    waiting = [asyncio.create_task(ends.wait(execution_id)) for _ in range(100)]
    await seen.asked_about(3)

    assert [len(asked) for asked in seen.asked] == [1, 1, 1]
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("why", [DatabaseUnavailable("away"), RuntimeError("unexpected")])
async def test_a_poll_that_fails_is_repeated(ends: Waiters, seen: Seen, why: Exception) -> None:
    execution_id = an_id()
    seen.why = why
    seen.ended.add(execution_id)
    seen.away = 3

    await asyncio.wait_for(ends.wait(execution_id), 10)
    assert len(seen.asked) == 4


async def test_polling_continues_while_somebody_waits(ends: Waiters, seen: Seen) -> None:
    waiting = asyncio.create_task(ends.wait(an_id()))

    await asyncio.wait_for(seen.asked_about(7), 10)
    waiting.cancel()


async def test_nothing_is_polled_while_nobody_waits(ends: Waiters, seen: Seen) -> None:
    waiting = asyncio.create_task(ends.wait(an_id()))
    await turns()
    waiting.cancel()
    await turns()
    before = len(seen.asked)
    other = an_id()
    seen.ended.add(other)
    await ends.wait(other)

    assert seen.asked[before:] == [[other]]


async def test_closing_ends_every_wait(database: Database, seen: Seen) -> None:
    async with Notifier(database) as hints:
        ends = Waiters(hints, seen.look)
        waiting = asyncio.create_task(ends.wait(an_id()))
        await turns()
        await ends.close()
        for each in (waiting, ends.wait(an_id())):
            with pytest.raises(ShuttingDown):
                await asyncio.wait_for(each, 10)
