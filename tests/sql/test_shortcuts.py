"""Shortcuts: most calls skip the code for rare cases."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from flowfabric.engine import attempts, budgets, claims, executions, waits
from flowfabric.model import Completion
from tests.conftest import Connect
from tests.given import Given, claim, submission

KIB = 1024


@pytest.fixture
async def counted(conn: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    """A connection that counts function calls."""
    await conn.execute("set track_functions = 'all'")
    yield conn
    await conn.execute("reset track_functions")


async def calls(conn: asyncpg.Connection, function: str) -> int:
    """How often a function was called in this transaction."""
    count = await conn.fetchval(
        "select coalesce(pg_stat_get_xact_function_calls(p.oid), 0) from pg_proc p where p.proname = $1", function
    )
    return int(count)


async def test_the_only_ticket_is_claimed_without_a_choice(counted: asyncpg.Connection, given: Given) -> None:
    only = await given.submitted()

    async with counted.transaction():
        [taken] = await claim(counted, take=10)
        assert (taken.execution_id, await calls(counted, "_choose")) == (only, 0)


async def test_nothing_is_claimed_without_a_choice(counted: asyncpg.Connection) -> None:
    async with counted.transaction():
        assert (await claim(counted, take=10), await calls(counted, "_choose")) == ([], 0)


@pytest.mark.parametrize("other", [{}, {"lane": "default", "priority": 5}])
async def test_several_tickets_need_a_choice(
    counted: asyncpg.Connection, given: Given, other: dict[str, object]
) -> None:
    await given.submitted()
    await given.submitted(**other)

    async with counted.transaction():
        assert (len(await claim(counted, take=1)), await calls(counted, "_choose")) == (1, 1)


async def test_the_only_ticket_is_not_given_to_an_incapable_worker(counted: asyncpg.Connection, given: Given) -> None:
    await given.submitted(needs=["gpu"])

    assert await claim(counted, take=10) == []


async def test_the_only_ticket_is_skipped_while_it_is_locked(
    counted: asyncpg.Connection, given: Given, connect: Connect
) -> None:
    await given.submitted()
    other = await connect()

    async with other.transaction():
        assert len(await claim(other, take=10)) == 1
        assert await claim(counted, take=10) == []


async def test_the_only_ticket_of_another_partition_is_not_given(counted: asyncpg.Connection, given: Given) -> None:
    only = await given.submitted()

    others = await claims.claim(
        counted, "w", instance="w-1", lanes=["default"], take=1, partitions=[(only.partition + 1) % 256]
    )
    assert others == []


async def test_an_end_without_ties_closes_nothing(counted: asyncpg.Connection, given: Given) -> None:
    it = await given.claimed()

    async with counted.transaction():
        await attempts.complete(counted, it.fence)
        assert (await calls(counted, "_close_waits"), await calls(counted, "_return_reservations")) == (0, 0)


async def test_an_end_closes_existing_waitpoints(counted: asyncpg.Connection, given: Given) -> None:
    it = await given.claimed()
    await waits.create_waitpoint(counted, it.fence, "approval")

    async with counted.transaction():
        await attempts.complete(counted, it.fence)
        assert await calls(counted, "_close_waits") == 1
    assert [row["state"] for row in await given.rows("select state from flowfabric.waitpoints")] == ["closed"]


async def test_an_end_releases_reservations(counted: asyncpg.Connection, given: Given) -> None:
    await budgets.create_budget(counted, "team", hard_limits={"tokens": 100})
    it = await given.claimed()
    await budgets.reserve(counted, "team", {"tokens": 60}, fence=it.fence)

    await attempts.complete_many(counted, [Completion(fence=it.fence)])

    assert (await budgets.describe_budget(counted, "team")).reserved == {}


@pytest.mark.parametrize(("size", "large"), [(16 * KIB, None), (16 * KIB + 1, 16 * KIB + 1)])
async def test_only_large_payloads_are_recorded_on_the_ticket(
    conn: asyncpg.Connection, given: Given, size: int, large: int | None
) -> None:
    await executions.submit(conn, submission(payload=bytes(size)))
    await executions.submit_many(conn, [submission(payload=bytes(size)), submission(payload=b"{}")])

    noted = await given.rows("select bytes from flowfabric.tickets order by created_at")
    assert [row["bytes"] for row in noted] == [large, large, None]
