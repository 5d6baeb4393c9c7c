"""Changing executions: cancel, and change the priority."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from flowfabric.engine import attempts, executions
from flowfabric.errors import (
    ExecutionEnded,
    ExecutionNotFound,
    FenceRequired,
    InvalidBody,
    InvalidText,
    LeaseLost,
    PartialFence,
)
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import PriorityChange, PublicState
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.standins import claimed, ended, stored
from tests.given import Given


async def everything(given: Given) -> list[object]:
    """Everything that a refused change must not modify."""
    tables = ["executions", "tickets", "attempts", "events", "lanes"]
    return [await given.rows(f"select * from flowfabric.{table} order by 1, 2, 3") for table in tables]


async def in_state(given: Given, state: str) -> ExecutionId:
    match state:
        case "waiting":
            return await given.submitted()
        case "delayed":
            return await given.submitted(delay=timedelta(hours=1))
        case "held":
            return await given.held()
        case _:
            execution_id = await given.submitted()
            await claimed(given, execution_id)
            return execution_id


@pytest.mark.parametrize("state", ["waiting", "delayed", "held", "active"])
async def test_an_operator_can_cancel_an_execution_in_any_unfinished_state(
    conn: Connection, given: Given, state: str
) -> None:
    execution_id = await in_state(given, state)

    ended = await executions.cancel(conn, execution_id, reason="not wanted", by="ada")
    assert ended.public_state is PublicState.CANCELLED

    found = await executions.describe(conn, execution_id)
    assert (found.state.public_state, found.lease, found.attempt) == ("cancelled", None, None)
    assert await given.count("tickets") == 0
    before = await everything(given)
    ended = await executions.cancel(conn, execution_id, reason="once more", by="bob")
    assert ended.public_state is PublicState.CANCELLED
    assert await everything(given) == before
    assert (await given.events(execution_id)).count("execution_cancelled") == 1


async def test_the_event_of_a_cancellation_names_the_operator_and_the_reason(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"a.b": "c"})
    await executions.cancel(conn, execution_id, reason="not wanted", by="ada")

    [event] = await given.rows(
        "select by, tags, flowfabric._event_detail(e) as detail from flowfabric.events e "
        "where kind = 'execution_cancelled'"
    )
    detail = msgspec.json.decode(event["detail"])
    assert (event["by"], event["tags"]) == ("ada", '{"a.b": "c"}')
    assert (detail["source"], detail["reason"]) == ("operator_override", "not wanted")


async def test_cancelling_ends_the_current_attempt(conn: Connection, given: Given) -> None:
    execution_id = await in_state(given, "active")
    await executions.cancel(conn, execution_id)

    [attempt] = (await attempts.list_attempts(conn, execution_id)).items
    assert (attempt.number, attempt.lifecycle, attempt.worker) == (1, "ended_cancelled", "pool")


@pytest.mark.parametrize("outcome", ["success", "failed", "expired", "skipped"])
async def test_an_execution_that_ended_otherwise_cannot_be_cancelled(
    conn: Connection, given: Given, outcome: str
) -> None:
    execution_id = await given.submitted()
    await ended(given, execution_id, outcome)
    before = await everything(given)

    with pytest.raises(ExecutionEnded) as refused:
        await executions.cancel(conn, execution_id)

    assert refused.value.fields == {"outcome": outcome}
    assert await everything(given) == before


async def test_an_execution_that_does_not_exist_cannot_be_changed(conn: Connection, given: Given) -> None:
    before = await everything(given)

    with pytest.raises(ExecutionNotFound):
        await executions.cancel(conn, mint_execution_id())
    with pytest.raises(ExecutionNotFound):
        await executions.change_priority(conn, mint_execution_id(), 5, by="ada")
    assert await everything(given) == before


async def test_a_lease_holder_must_pass_its_fence(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    fence = await claimed(given, execution_id)
    before = await everything(given)

    with pytest.raises(FenceRequired):
        await executions.cancel(conn, execution_id, source="lease_holder")
    for stale in [
        msgspec.structs.replace(fence, epoch=2),
        msgspec.structs.replace(fence, epoch=0),
        msgspec.structs.replace(fence, attempt=2),
        msgspec.structs.replace(fence, lease_id=uuid4()),
    ]:
        with pytest.raises(LeaseLost) as refused:
            await executions.cancel(conn, execution_id, source="lease_holder", fence=stale)
        assert refused.value.fields == {"cause": "superseded"}
    assert await everything(given) == before

    cancelled = await executions.cancel(conn, execution_id, source="lease_holder", fence=fence)
    assert cancelled.public_state is PublicState.CANCELLED


@pytest.mark.parametrize("missing", ["lease_id", "epoch", "attempt"])
async def test_a_partial_fence_is_refused(conn: Connection, given: Given, missing: str) -> None:
    execution_id = await given.submitted()
    fence = await claimed(given, execution_id)
    parts = {name: getattr(fence, name) for name in ("lease_id", "epoch", "attempt") if name != missing}
    before = await everything(given)

    with pytest.raises(PartialFence):
        await call.value(
            conn, "cancel", partition=execution_id.partition, id=execution_id.uuid, source="lease_holder", **parts
        )
    assert await everything(given) == before


async def test_an_expired_lease_cannot_cancel(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    fence = await claimed(given, execution_id, seconds=30)
    await given.time_passes(seconds=30)

    with pytest.raises(LeaseLost) as refused:
        await executions.cancel(conn, execution_id, source="lease_holder", fence=fence)

    assert refused.value.fields == {"cause": "expired"}
    assert (await executions.describe(conn, execution_id)).state.public_state == "active"


async def test_a_reclaimed_lease_cannot_cancel(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    fence = await claimed(given, execution_id)
    await stored(
        given,
        execution_id,
        "phase = 'runnable', reason = 'waiting_for_worker', attempt_state = 'pending_reclaim_attempt', "
        "lease_end = 'revoked'",
    )

    with pytest.raises(LeaseLost) as refused:
        await executions.cancel(conn, execution_id, source="lease_holder", fence=fence)

    assert refused.value.fields == {"cause": "revoked"}
    assert (await executions.describe(conn, execution_id)).state.public_state == "waiting"


async def test_any_source_may_cancel_an_execution_without_a_lease(conn: Connection, given: Given) -> None:
    waits, runs = await given.submitted(), await in_state(given, "active")

    assert (await executions.cancel(conn, waits, source="a script")).public_state is PublicState.CANCELLED
    with pytest.raises(FenceRequired):
        await executions.cancel(conn, runs, source="a script")


async def test_the_fence_of_another_execution_is_refused(conn: Connection, given: Given) -> None:
    mine, other = await given.submitted(), await given.submitted()
    fence = await claimed(given, mine)
    await claimed(given, other)

    with pytest.raises(LeaseLost):
        await executions.cancel(conn, other, source="lease_holder", fence=fence)
    assert (await executions.describe(conn, other)).state.public_state == "active"


async def test_a_long_or_unstorable_reason_is_truncated_and_cleaned(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await executions.cancel(conn, execution_id, reason="\0" + "é" * 5_000)

    failure = (await executions.get_result(conn, execution_id)).failure
    assert failure is not None
    assert failure.reason == "\ufffd" + "é" * 2_046  # 3 + 2 * 2 046 bytes of 4 096


async def test_invalid_texts_are_refused(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    before = await everything(given)

    with pytest.raises(InvalidText):
        await executions.cancel(conn, execution_id, by="a\0")
    with pytest.raises(InvalidText):
        await executions.cancel(conn, execution_id, source="\ud800")
    with pytest.raises(InvalidBody) as refused:
        await executions.cancel(conn, execution_id, by="é" * 129)
    assert refused.value.fields == {"field": "by"}
    with pytest.raises(InvalidBody):
        await executions.change_priority(conn, execution_id, 5, by="x" * 257)
    assert await everything(given) == before

    await executions.change_priority(conn, execution_id, 5, by="é" * 128)


async def test_two_concurrent_cancels_end_the_execution_once(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    execution_id = await given.submitted()

    async with one.transaction():
        await executions.cancel(one, execution_id, by="one")
        second = asyncio.create_task(executions.cancel(other, execution_id, by="other"))
        await blocked(given, other, second)
    assert (await second).public_state is PublicState.CANCELLED

    assert (await given.events(execution_id)).count("execution_cancelled") == 1


@pytest.mark.parametrize("wanted", [0, 17, 9_000])
async def test_a_changed_priority_is_stored_once(conn: Connection, given: Given, wanted: int) -> None:
    execution_id = await given.submitted(priority=5)

    assert await executions.change_priority(conn, execution_id, wanted, by="ada") == PriorityChange(
        priority=wanted, previous=5
    )

    assert (await executions.describe(conn, execution_id)).priority == wanted
    assert (await executions.change_priority(conn, execution_id, wanted, by="ada")).previous == wanted
    assert (await given.events(execution_id)).count("priority_changed") == 1


async def test_sql_refuses_an_invalid_priority_too(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()

    for wanted in (9_001, -1):
        place = {"partition": execution_id.partition, "id": execution_id.uuid}
        with pytest.raises(InvalidBody, match=f"priority {wanted} is invalid; use 0 to 9000"):
            await call.row(conn, "change_priority", **place, wanted=wanted, by="ada")


@pytest.mark.parametrize("state", ["waiting", "delayed", "held", "active"])
async def test_the_priority_of_any_unfinished_execution_can_change(conn: Connection, given: Given, state: str) -> None:
    execution_id = await in_state(given, state)
    before = (await executions.describe(conn, execution_id)).state

    await executions.change_priority(conn, execution_id, 8, by="ada")

    found = await executions.describe(conn, execution_id)
    assert (found.priority, found.state) == (8, before)
    [event] = await given.rows("select by, detail from flowfabric.events where kind = 'priority_changed'")
    assert (event["by"], msgspec.json.decode(event["detail"])) == ("ada", {"priority": 8, "previous": 0})


async def test_the_priority_of_an_ended_execution_cannot_change(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled(priority=4)
    before = await everything(given)

    with pytest.raises(ExecutionEnded) as refused:
        await executions.change_priority(conn, execution_id, 5, by="ada")

    assert refused.value.fields == {"outcome": "cancelled"}
    assert await everything(given) == before
    assert (await executions.describe(conn, execution_id)).priority == 4
