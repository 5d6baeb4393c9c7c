"""Retention: which ended executions and idempotency keys are removed, and which are kept."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, executions
from flowfabric.errors import ExecutionNotActive, ExecutionNotFound
from flowfabric.ids import ExecutionId
from flowfabric.model import Completion, SubmitOutcome
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given, submission

DAY = timedelta(days=1)
DAY_MS = 86_400_000


async def is_there(given: Given, execution_id: ExecutionId) -> bool:
    return bool(await given.rows("select from flowfabric.executions where id = $1", execution_id.uuid))


async def test_an_ended_execution_is_removed_with_everything_that_belongs_to_it(conn: Connection, given: Given) -> None:
    execution_id = await given.completed(tags={"a.b": "c"})
    await given.time_passes(days=6.9)
    async with given.nothing_changes():
        assert (await executions.remove_ended(conn)).moved == 0
    await given.time_passes(days=0.1)

    assert (await executions.remove_ended(conn)).moved == 1

    for table in ("executions", "tickets", "attempts", "tags", "removals"):
        assert await given.count(table) == 0, table
    with pytest.raises(ExecutionNotFound):
        await executions.describe(conn, execution_id)
    assert "execution_completed" in await given.events(execution_id)


async def test_an_unfinished_execution_is_never_removed(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    ids = [claim.execution_id, await given.submitted(), await given.submitted(delay=DAY), await given.held()]
    await given.time_passes(days=1_000)

    assert (await executions.remove_ended(conn, retention=timedelta(0))).moved == 0
    assert all([await is_there(given, one) for one in ids])


async def test_the_retention_of_the_policy_takes_precedence(conn: Connection, given: Given) -> None:
    short = await given.completed(policy={"retention_ms": DAY_MS})
    usual = await given.completed()
    long = await given.completed(policy={"retention_ms": 30 * DAY_MS})
    left = []
    for _ in range(4):
        await executions.remove_ended(conn)
        left.append([await is_there(given, one) for one in (short, usual, long)])
        await given.time_passes(days=1 if len(left) == 1 else 6 if len(left) == 2 else 23)

    assert left == [[True, True, True], [False, True, True], [False, False, True], [False, False, False]]


async def test_the_deployments_retention_is_a_setting(conn: Connection, given: Given) -> None:
    await given.completed()
    await given.time_passes(days=1)

    assert (await executions.remove_ended(conn, retention=2 * DAY)).moved == 0
    assert (await executions.remove_ended(conn, retention=DAY)).moved == 1


async def test_a_retention_of_zero_removes_immediately(conn: Connection, given: Given) -> None:
    await given.completed(policy={"retention_ms": 0})

    assert (await executions.remove_ended(conn)).moved == 1
    assert await given.count("executions") == 0


async def test_the_retention_of_a_replayed_execution_starts_at_its_new_end(conn: Connection, given: Given) -> None:
    execution_id = await given.completed(tags={"a.b": "c"})
    await given.time_passes(days=6)
    await executions.replay(conn, execution_id, by="ops")
    await given.time_passes(days=6)
    await executions.remove_ended(conn)
    assert await is_there(given, execution_id)

    [claim] = await given.claim()
    await attempts.complete(conn, claim.fence)
    await executions.remove_ended(conn)
    assert await is_there(given, execution_id)
    assert (len((await attempts.list_attempts(conn, execution_id)).items), await given.count("tags")) == (2, 1)

    await given.time_passes(days=7)
    await executions.remove_ended(conn)
    assert not await is_there(given, execution_id)
    assert await given.count("removals") == 0


async def test_a_late_call_about_a_removed_execution_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.complete(conn, claim.fence)
    with pytest.raises(ExecutionNotActive):
        await attempts.complete(conn, claim.fence)
    await given.time_passes(days=7)
    await executions.remove_ended(conn)

    with pytest.raises(ExecutionNotFound):
        await attempts.complete(conn, claim.fence)


async def test_the_sweep_removes_the_oldest_first_up_to_its_limit(conn: Connection, given: Given) -> None:
    ids = []
    for at in range(6):
        ids.append(await given.completed(policy={"retention_ms": 7 * DAY_MS} if at % 2 else {}))
        await given.time_passes(minutes=1)
    await given.time_passes(days=7)

    assert (await executions.remove_ended(conn, limit=2, passing=1)).moved == 2
    assert [await is_there(given, one) for one in ids] == [True, False, False, True, True, True]
    assert (await executions.remove_ended(conn, limit=2)).moved == 2
    assert (await executions.remove_ended(conn, limit=5)).moved == 2


async def test_executions_that_ended_in_one_call_share_an_entry_and_are_removed_together(
    conn: Connection, given: Given
) -> None:
    for _ in range(4):
        await given.submitted()
    claimed = await given.claim(take=4)
    await attempts.complete_many(conn, [Completion(fence=claim.fence) for claim in claimed])
    replayed = claimed[2].execution_id
    await executions.replay(conn, replayed, by="ops")
    assert await given.count("removals") == 1
    await given.time_passes(days=7)

    assert (await executions.remove_ended(conn, limit=1)).moved == 4
    assert [row["id"] for row in await given.rows("select id from flowfabric.executions")] == [replayed.uuid]
    assert await given.count("removals") == 0


async def test_two_concurrent_sweeps_do_not_wait_for_each_other(given: Given, connect: Connect) -> None:
    for _ in range(3):
        await given.completed()
    await given.time_passes(days=7)
    other = await connect()
    async with other.transaction():
        assert (await executions.remove_ended(other, limit=2)).moved == 2
        assert (await executions.remove_ended(given.conn)).moved <= 1

    assert (await executions.remove_ended(given.conn)).moved <= 1
    assert await given.count("executions") == 0


async def test_a_key_stays_until_its_window_expires(conn: Connection, given: Given) -> None:
    execution_id = await given.completed(key="k", policy={"retention_ms": 0, "dedup_window_ms": 2 * DAY_MS})
    await executions.remove_ended(conn)
    assert (await executions.remove_idempotency_keys(conn)).moved == 0

    again = await executions.submit(conn, submission(key="k"))

    assert (again.outcome, again.execution_id) == (SubmitOutcome.DUPLICATE, execution_id)
    assert not await is_there(given, execution_id)


async def test_a_key_is_deleted_after_its_window_and_its_execution_have_ended(conn: Connection, given: Given) -> None:
    window = {"dedup_window_ms": DAY_MS}
    unfinished = await given.submitted(key="a", policy=window)
    ended = await given.cancelled(key="b", policy=window)
    await given.time_passes(hours=23)
    assert (await executions.remove_idempotency_keys(conn)).moved == 0
    await given.time_passes(hours=1)

    assert (await executions.remove_idempotency_keys(conn)).moved == 1
    assert (await executions.submit(conn, submission(key="a"))).execution_id == unfinished
    assert (await executions.submit(conn, submission(key="b"))).execution_id != ended
    await executions.cancel(conn, unfinished, by="ops")
    assert (await executions.remove_idempotency_keys(conn)).moved == 1


async def test_the_sweep_deletes_keys_up_to_its_limit(conn: Connection, given: Given) -> None:
    for number in range(5):
        await given.cancelled(key=f"k{number}", policy={"dedup_window_ms": DAY_MS})
        await given.time_passes(minutes=1)
    await given.time_passes(days=1)

    assert (await executions.remove_idempotency_keys(conn, limit=2, passing=1)).moved == 2
    left = await given.rows("select key from flowfabric.idempotency_keys order by 1")
    assert [row["key"] for row in left] == ["k0", "k3", "k4"]
    assert (await executions.remove_idempotency_keys(conn)).moved == 3
