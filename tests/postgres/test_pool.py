"""The pool: lending connections, replacing broken ones, and closing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.postgres.pool import Closing, Pool


class Line:
    """A connection as the pool sees it: open or closed, with a transaction or without."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


async def line() -> Line:
    return Line()


async def started(waiting: Awaitable[Any]) -> "asyncio.Task[Any]":
    """A task that has run as far as it can."""
    task = asyncio.ensure_future(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_the_connection_released_last_is_lent_first() -> None:
    pool = Pool(line, 3)
    first, second = await pool.borrow(1), await pool.borrow(1)
    pool.give_back(first)
    pool.give_back(second)

    assert await pool.borrow(1) is second
    assert (await pool.borrow(1), pool.in_use) == (first, 2)


async def test_waiting_callers_are_served_in_order() -> None:
    pool = Pool(line, 1)
    lent = await pool.borrow(1)
    first, second = [await started(pool.borrow(5)) for _ in range(2)]

    pool.give_back(lent)
    assert await first is lent
    assert not second.done()
    pool.give_back(lent)
    assert await second is lent


async def test_a_connection_passed_to_a_cancelled_caller_goes_to_the_next() -> None:
    pool = Pool(line, 1)
    lent = await pool.borrow(1)
    first, second = [await started(pool.borrow(5)) for _ in range(2)]

    pool.give_back(lent)
    first.cancel()

    assert await second is lent
    assert first.cancelled()


@pytest.mark.parametrize("spoil", [lambda lent: lent.terminate(), lambda lent: setattr(lent, "in_transaction", True)])
async def test_a_broken_connection_is_replaced_also_for_waiting_callers(spoil: Callable[[Line], None]) -> None:
    pool = Pool(line, 1)
    lent = await pool.borrow(1)
    waiting = await started(pool.borrow(5))
    spoil(lent)

    pool.give_back(lent)

    fresh = await waiting
    assert (fresh is not lent, lent.closed, fresh.closed) == (True, True, False)


async def test_a_connection_closed_while_idle_is_not_lent() -> None:
    pool = Pool(line, 1)
    idle = await pool.borrow(1)
    pool.give_back(idle)
    idle.terminate()

    assert await pool.borrow(1) is not idle


async def test_a_failed_attempt_to_connect_uses_no_slot() -> None:
    answers = [OSError("away"), None]

    async def connect() -> Line:
        if (error := answers.pop(0)) is not None:
            raise error
        return Line()

    pool = Pool(connect, 1)
    with pytest.raises(OSError, match="away"):
        await pool.borrow(1)

    assert not (await pool.borrow(1)).closed


async def test_a_caller_waits_no_longer_than_its_timeout() -> None:
    pool = Pool(line, 1)
    lent = await pool.borrow(1)
    with pytest.raises(TimeoutError):
        await pool.borrow(0.001)

    pool.give_back(lent)
    assert await pool.borrow(1) is lent


async def test_closing_refuses_waiting_callers_and_waits_for_lent_connections() -> None:
    pool = Pool(line, 2)
    lent, idle = await pool.borrow(1), await pool.borrow(1)
    waiting = await started(pool.borrow(5))
    pool.give_back(idle)
    assert await waiting is idle
    refused = await started(pool.borrow(5))
    closing = await started(pool.close())

    with pytest.raises(Closing):
        await refused
    with pytest.raises(Closing):
        await pool.borrow(1)
    assert not closing.done()
    pool.give_back(lent)
    pool.give_back(idle)
    await closing
    assert (lent.closed, idle.closed, pool.in_use) == (True, True, 0)


async def test_closing_that_is_cancelled_closes_lent_connections() -> None:
    pool = Pool(line, 1)
    lent = await pool.borrow(1)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await pool.close()

    assert lent.closed
