"""Submitting inside the caller's transaction: it commits or rolls back with the caller's own rows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from flowfabric import errors, ids
from flowfabric.engine import executions, routes
from flowfabric.model import Options, PublicState, SubmitOutcome
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked, stored
from tests.given import Given, submission

EVERYTHING: dict[str, object] = {"lane": "new", "needs": ["gpu"], "key": "k", "tags": {"a.b": "c"}, "payload": b"{}"}


@asynccontextmanager
async def undone(conn: Any) -> AsyncIterator[None]:
    """Run a transaction, or a savepoint inside one, and roll it back."""
    transaction = conn.transaction()
    await transaction.start()
    yield
    await transaction.rollback()


async def test_the_execution_and_the_callers_row_are_committed_together(conn: Connection, connect: Connect) -> None:
    other = await connect()
    await conn.execute("create table orders (id int)")
    async with conn.transaction():
        await conn.execute("insert into orders values (7)")
        submitted = await executions.submit(conn, submission(**EVERYTHING))
        with pytest.raises(errors.ExecutionNotFound):
            await executions.describe(other, submitted.execution_id)

    assert (await executions.describe(other, submitted.execution_id)).state.public_state is PublicState.WAITING
    assert await other.fetchval("select id from orders") == 7


async def test_a_rollback_leaves_nothing_at_all(conn: Connection, given: Given) -> None:
    await conn.execute("create table orders (id int)")
    before = await stored(given)

    async with undone(conn):
        await conn.execute("insert into orders values (7)")
        submitted = await executions.submit(conn, submission(**EVERYTHING))
        assert {table for table, count in (await stored(given)).items() if count == before[table]} == {"attempts"}

    assert await stored(given) == before
    assert await given.rows("select from orders") == []
    with pytest.raises(errors.ExecutionNotFound):
        await executions.describe(conn, submitted.execution_id)
    assert (await executions.submit(conn, submission(**EVERYTHING))).outcome is SubmitOutcome.CREATED


async def test_a_rollback_to_a_savepoint_frees_the_key(conn: Connection, given: Given) -> None:
    async with conn.transaction():
        async with undone(conn):
            await executions.submit(conn, submission(**EVERYTHING))
        again = await executions.submit(conn, submission(key="k", namespace="default"))

    assert again.outcome is SubmitOutcome.CREATED
    assert [row["name"] for row in await given.rows("select name from flowfabric.lanes")] == ["default"]
    assert await given.events() == ["lane_registered", "execution_submitted"]


async def test_a_transaction_sees_its_own_submissions(conn: Connection, given: Given) -> None:
    async with conn.transaction():
        first = await executions.submit(conn, submission(key="k"))
        by_key = await executions.submit(conn, submission(key="k"))
        by_id = await executions.submit(conn, submission(execution_id=first.execution_id))
        assert by_key.execution_id == by_id.execution_id == first.execution_id

    assert (by_key.outcome, by_id.outcome) == (SubmitOutcome.DUPLICATE, SubmitOutcome.DUPLICATE)
    assert await given.count("tickets") == 1


async def test_a_refusal_leaves_the_transaction_usable(conn: Connection, given: Given) -> None:
    async with conn.transaction():
        with pytest.raises(errors.InvalidLane):
            await executions.submit(conn, submission(lane=""))
        await executions.submit(conn, submission())

    assert await given.count("tickets") == 1


async def test_submits_to_a_known_route_do_not_wait_for_each_other(connect: Connect, given: Given) -> None:
    await given.submitted(lane="reports", needs=["gpu"])
    one, two = await connect(), await connect()
    await two.execute("set lock_timeout = '1ms'")
    async with one.transaction():
        await executions.submit(one, submission(lane="reports", needs=["gpu"], key="a", tags={"a.b": "c"}))

        answer = await executions.submit(two, submission(lane="reports", needs=["gpu"], key="b", tags={"a.b": "c"}))

        assert answer.outcome is SubmitOutcome.CREATED
        assert await given.count("tickets") == 2
    assert await given.count("tickets") == 3


async def test_first_submits_to_a_registered_route_do_not_wait_for_each_other(connect: Connect, given: Given) -> None:
    """Inserting a new route blocks other submitters of it until the transaction ends."""
    await routes.register_route(given.conn, Options(task="any", lane="reports", needs=["gpu"]))
    one, two = await connect(), await connect()
    await two.execute("set lock_timeout = '1ms'")
    async with one.transaction():
        await executions.submit(one, submission(lane="reports", needs=["gpu"]))
        await executions.submit(two, submission(lane="reports", needs=["gpu"]))

    assert await given.count("tickets") == 2


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("lane", ["new", "known"])
async def test_only_the_first_submit_to_a_route_can_wait(
    connect: Connect, given: Given, lane: str, commits: bool
) -> None:
    """Inserting a new route blocks other submitters of it until the transaction ends."""
    await given.submitted(lane="known")
    one, two = await connect(), await connect()
    first = one.transaction()
    await first.start()
    await executions.submit(one, submission(lane=lane, needs=["gpu"]))
    second = asyncio.create_task(executions.submit(two, submission(lane=lane, needs=["gpu"])))
    await blocked(given, two, second)
    await (first.commit() if commits else first.rollback())

    assert (await second).outcome is SubmitOutcome.CREATED
    assert await given.count("tickets") == (3 if commits else 2)
    assert await given.count("routes") == 2
    assert (await given.events()).count("lane_registered") == (2 if lane == "new" else 1)


async def test_a_refused_or_repeated_submit_to_a_new_route_does_not_wait_for_it(connect: Connect, given: Given) -> None:
    known = await given.submitted(key="k")
    one, two = await connect(), await connect()
    await two.execute("set lock_timeout = '1ms'")
    async with one.transaction():
        await executions.submit(one, submission(lane="new"))
        refused, by_id, by_key = await executions.submit_many(
            two,
            [
                submission(lane="new", payload=b"x" * 1_048_577),
                submission(lane="new", execution_id=known),
                submission(lane="new", key="k"),
            ],
        )

    assert isinstance(refused, errors.PayloadTooLarge)
    assert by_id == by_key
    assert getattr(by_id, "execution_id", None) == known


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_serializable_transaction_succeeds_or_reports_a_serialization_failure(
    connect: Connect, given: Given, isolation: str
) -> None:
    """A serialization failure is reported as such, not as another error."""
    await given.submitted()
    one, two = await connect(), await connect()

    async def submit_late(conn: asyncpg.Connection) -> None:
        async with conn.transaction(isolation=isolation):
            await conn.fetch("select from flowfabric.lanes")
            await executions.submit(two, submission(key="k"))
            await executions.submit(conn, submission(key="k", execution_id=ids.mint_execution_id()))

    with pytest.raises(errors.DatabaseUnavailable, match="repeat the call"):
        await submit_late(one)
    assert await given.count("tickets") == 2
    async with one.transaction(isolation=isolation):
        await executions.submit(one, submission(key="l"))
    assert await given.count("tickets") == 3
