"""Idempotency keys: one key, one execution, until its window has expired and its execution has ended."""

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric import errors, ids, testing
from flowfabric.engine import executions, lanes
from flowfabric.errors import FlowFabricError, InvalidBody, KeyConflict, LaneDraining
from flowfabric.ids import ExecutionId
from flowfabric.model import Submission, SubmitOutcome, Submitted
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked, stored
from tests.given import Given, submission

CREATED, DUPLICATE = SubmitOutcome.CREATED, SubmitOutcome.DUPLICATE
DAY_MS = 86_400_000


async def submit(conn: Connection, **options: object) -> tuple[SubmitOutcome, ExecutionId]:
    answer = await executions.submit(conn, submission(**options))
    return answer.outcome, answer.execution_id


async def submit_together(conn: Connection, batch: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
    """Submit in a transaction, where a deadlock is not retried."""
    async with conn.transaction():
        return await executions.submit_many(conn, batch)


async def remove(conn: Connection, execution_id: ExecutionId) -> None:
    """Remove an ended execution, as retention does; its key stays for a day at least."""
    await conn.execute("delete from flowfabric.executions where id = $1", execution_id.uuid)


async def test_a_key_finds_the_first_execution_whatever_id_and_partition_a_retry_mints(
    conn: Connection, given: Given
) -> None:
    """The partition of a key depends on the key, not on the new id."""
    first = ExecutionId(3, uuid4())
    assert await submit(conn, key="order-7", namespace="a", execution_id=first) == (CREATED, first)
    before = await stored(given)

    for partition in (0, 3, 255):
        again = await submit(conn, key="order-7", namespace="a", execution_id=ExecutionId(partition, uuid4()))
        assert again == (DUPLICATE, first)
    assert await stored(given) == before


async def test_a_key_is_scoped_by_namespace_and_not_by_lane(conn: Connection) -> None:
    _, first = await submit(conn, key="order-7", namespace="a")

    assert await submit(conn, key="order-7", namespace="a", lane="other") == (DUPLICATE, first)
    outcome, other = await submit(conn, key="order-7", namespace="b")
    assert (outcome, other != first) == (CREATED, True)
    assert await submit(conn, key="order-7", namespace="b") == (DUPLICATE, other)


async def test_keys_differ_by_every_character(conn: Connection, given: Given) -> None:
    keys = ["a", "A", "a ", "ä", "a\u0308", "a\n", "é", "k" * 256, "k" * 255 + "l"]

    assert [(await submit(conn, key=key))[0] for key in keys] == [CREATED] * len(keys)
    assert await given.count("idempotency_keys") == len(keys)


async def test_an_empty_key_is_refused(conn: Connection, given: Given) -> None:
    with pytest.raises(InvalidBody, match="idempotency key '' is invalid; use 1 to 256 bytes"):
        await submit(conn, key="")
    assert (await given.count("executions"), await given.count("idempotency_keys")) == (0, 0)


async def test_a_key_is_in_use_for_as_long_as_the_record_of_its_execution(conn: Connection, given: Given) -> None:
    first = await given.cancelled(key="k")

    await given.time_passes(days=6)
    assert await submit(conn, key="k") == (DUPLICATE, first)
    assert (await executions.remove_idempotency_keys(conn)).moved == 1
    assert await submit(conn, key="k") == (DUPLICATE, first)
    await given.time_passes(days=2)
    await executions.remove_ended(conn)
    outcome, second = await submit(conn, key="k")
    assert (outcome, second != first) == (CREATED, True)


async def test_a_key_with_a_window_is_in_use_until_it_expires_even_if_its_execution_has_ended(
    conn: Connection, given: Given
) -> None:
    first = await given.cancelled(key="k", policy={"dedup_window_ms": DAY_MS})

    await given.time_passes(hours=23, minutes=59)
    assert await submit(conn, key="k") == (DUPLICATE, first)
    await given.time_passes(minutes=1)
    outcome, second = await submit(conn, key="k")
    assert (outcome, second != first) == (CREATED, True)
    assert await submit(conn, key="k") == (DUPLICATE, second)


async def test_a_key_is_in_use_beyond_its_window_while_its_execution_is_unfinished(
    conn: Connection, given: Given
) -> None:
    _, first = await submit(conn, key="k", policy={"dedup_window_ms": 1_000})

    await given.time_passes(days=40)
    assert await submit(conn, key="k") == (DUPLICATE, first)
    await executions.cancel(conn, first, reason="not wanted", by="ops")
    assert (await submit(conn, key="k"))[0] is CREATED


async def test_a_window_of_zero_lasts_as_long_as_the_execution(conn: Connection) -> None:
    _, first = await submit(conn, key="k", policy={"dedup_window_ms": 0})
    assert await submit(conn, key="k", policy={"dedup_window_ms": 0}) == (DUPLICATE, first)

    await executions.cancel(conn, first, reason="not wanted", by="ops")

    assert (await submit(conn, key="k", policy={"dedup_window_ms": 0}))[0] is CREATED


async def test_the_window_of_a_key_is_set_by_the_execution_that_owns_it(conn: Connection, given: Given) -> None:
    first = await given.cancelled(key="k", policy={"dedup_window_ms": 30 * DAY_MS})

    await given.time_passes(days=29)
    assert await submit(conn, key="k", policy={"dedup_window_ms": 0}) == (DUPLICATE, first)
    await given.time_passes(days=1)
    assert (await submit(conn, key="k", policy={"dedup_window_ms": 0}))[0] is CREATED


async def test_a_key_stays_until_its_window_expires_after_its_execution_is_removed(
    conn: Connection, given: Given
) -> None:
    first = await given.cancelled(key="k")
    await remove(conn, first)

    assert await submit(conn, key="k") == (DUPLICATE, first)
    assert await submit(conn, key="k", execution_id=first) == (DUPLICATE, first)
    assert await given.count("executions") == 0


async def test_a_key_acquired_again_gets_a_new_window(conn: Connection, given: Given) -> None:
    first = await given.cancelled(key="k")
    await remove(conn, first)
    await given.time_passes(days=1)

    assert await submit(conn, key="k", execution_id=first) == (CREATED, first)
    await executions.cancel(conn, first, reason="not wanted", by="ops")
    assert await submit(conn, key="k") == (DUPLICATE, first)


async def test_an_id_in_use_leaves_the_key_free(conn: Connection, given: Given) -> None:
    first = await given.submitted()

    assert await submit(conn, execution_id=first, key="k") == (DUPLICATE, first)

    assert await given.count("idempotency_keys") == 0
    assert (await submit(conn, key="k"))[0] is CREATED


@pytest.mark.parametrize("expired", [False, True])
async def test_a_second_submit_of_a_key_waits_and_finds_what_the_first_has_committed(
    conn: Connection, connect: Connect, given: Given, expired: bool
) -> None:
    if expired:
        await given.cancelled(key="k", policy={"dedup_window_ms": DAY_MS})
        await given.time_passes(days=1)
    one, two = await connect(), await connect()
    async with one.transaction():
        first = await submit(one, key="k")
        second = await blocked(given, two, asyncio.create_task(submit(two, key="k")))

    assert first[0] is CREATED
    assert await second == (DUPLICATE, first[1])
    assert await given.count("tickets") == 1


@pytest.mark.parametrize("expired", [False, True])
async def test_a_second_submit_of_a_key_is_created_when_the_first_rolls_back(
    connect: Connect, given: Given, expired: bool
) -> None:
    if expired:
        await given.cancelled(key="k", policy={"dedup_window_ms": DAY_MS})
        await given.time_passes(days=1)
    one, two = await connect(), await connect()
    first = one.transaction()
    await first.start()
    assert (await submit(one, key="k"))[0] is CREATED
    second = await blocked(given, two, asyncio.create_task(submit(two, key="k")))
    await first.rollback()

    outcome, execution_id = await second
    assert outcome is CREATED
    assert await submit(one, key="k") == (DUPLICATE, execution_id)
    assert await given.count("tickets") == 1


async def test_a_key_that_the_sweep_deletes_while_a_submit_waits_for_it_is_free(connect: Connect, given: Given) -> None:
    await given.cancelled(key="k", policy={"dedup_window_ms": DAY_MS})
    await given.time_passes(days=1)
    one, two = await connect(), await connect()
    async with one.transaction():
        await one.execute("delete from flowfabric.idempotency_keys")
        second = await blocked(given, two, asyncio.create_task(submit(two, key="k")))

    assert (await second)[0] is CREATED
    assert await given.count("idempotency_keys") == 1


async def test_two_concurrent_submits_of_one_id_create_one_execution(connect: Connect, given: Given) -> None:
    mine = ids.mint_execution_id()
    one, two = await connect(), await connect()
    async with one.transaction():
        assert await submit(one, execution_id=mine) == (CREATED, mine)
        second = await blocked(given, two, asyncio.create_task(submit(two, execution_id=mine)))

    assert await second == (DUPLICATE, mine)
    assert await given.count("tickets") == 1


async def test_twenty_submits_of_one_key_at_once_make_one_execution(connect: Connect, given: Given) -> None:
    connections = [await connect() for _ in range(20)]

    answers = await asyncio.gather(*[submit(conn, key="k") for conn in connections])

    assert [outcome for outcome, _ in answers].count(CREATED) == 1
    assert len({execution_id for _, execution_id in answers}) == 1
    assert await given.count("tickets") == 1


def key_partition(key: str) -> int:
    return ids.idempotency_partition("default", key)


LETTERS = ["a", "m", "z"]
KEYS = sorted(LETTERS, key=key_partition)
CONTENDED: dict[str, Sequence[object]] = {
    "key": KEYS,
    "execution_id": [ExecutionId(partition, uuid4()) for partition in (1, 2, 3)],
    "lane": LETTERS,
}


@pytest.mark.parametrize("by", CONTENDED)
async def test_batches_that_share_keys_ids_or_new_lanes_in_opposite_order_do_not_deadlock(
    connect: Connect, given: Given, by: str
) -> None:
    """Both wait for the middle item, which a third transaction has locked: locking out of order would deadlock."""
    await given.submitted()
    batch = [submission(**{by: name}) for name in CONTENDED[by]]
    third, one, two = await connect(), await connect(), await connect()
    middle = third.transaction()
    await middle.start()
    await executions.submit(third, batch[1])
    first = await blocked(given, one, asyncio.create_task(submit_together(one, batch)))
    second = await blocked(given, two, asyncio.create_task(submit_together(two, batch[::-1])))
    await middle.rollback()

    answers = [*await first, *await second]
    outcomes = sorted(answer.outcome for answer in answers if isinstance(answer, Submitted))
    assert outcomes == ([CREATED] * 6 if by == "lane" else [CREATED] * 3 + [DUPLICATE] * 3)


async def test_a_duplicate_creates_no_lane_and_no_route(conn: Connection, given: Given) -> None:
    _, first = await submit(conn, key="k")
    before = await stored(given)

    assert await submit(conn, key="k", lane="new", needs=["gpu"]) == (DUPLICATE, first)
    assert await stored(given) == before


async def test_a_refused_submission_does_not_acquire_its_key(conn: Connection, given: Given) -> None:
    refused, accepted = await executions.submit_many(conn, [submission(key="k", tags={"": "v"}), submission(key="k")])

    assert isinstance(accepted, Submitted)
    assert (accepted.outcome, type(refused)) == (CREATED, errors.InvalidTagKey)
    assert await given.count("idempotency_keys") == 1


async def test_a_repeated_submission_to_a_draining_lane_is_a_duplicate(conn: Connection, given: Given) -> None:
    first = await given.submitted(lane="reports", key="k")
    await lanes.drain_lane(conn, "reports", by="ops")

    by_key, by_id, new = await executions.submit_many(
        conn,
        [
            submission(lane="reports", key="k"),
            submission(lane="reports", execution_id=first),
            submission(lane="reports", key="other"),
        ],
    )

    assert by_key == by_id == Submitted(SubmitOutcome.DUPLICATE, first)
    assert isinstance(new, LaneDraining)
    assert await given.count("idempotency_keys") == 1


async def test_a_repeated_submission_after_its_deadline_is_a_duplicate(conn: Connection, given: Given) -> None:
    deadline = await testing.now(conn) + timedelta(hours=1)
    first = await given.submitted(key="k", deadline=deadline)
    await given.time_passes(hours=2)

    assert await executions.submit(conn, submission(key="k", deadline=deadline)) == Submitted(
        SubmitOutcome.DUPLICATE, first
    )


SAME = [
    (b'{"a": 1, "b": [2]}', b'{"b":[2],"a":1.0}'),
    (rb'"\u00e4"', '"ä"'.encode()),
    (b"\x00 not JSON", b"\x00 not JSON"),
    (None, None),
]
OTHER = [
    (b'{"a": 1}', b'{"a": 2}'),
    (b'{"a": 1}', b'{"a": "1"}'),
    (b"[1, 2]", b"[2, 1]"),
    (None, b"{}"),
    (b"{}", None),
    (b"\x00 not JSON", b"{}"),
    (rb'"\u0000"', rb'"\u0001"'),
    (b"[" * 100_000, b"[" * 100_001),
    (b"1e999999", b"1e999998"),
]


@pytest.mark.parametrize(("first", "again"), SAME)
async def test_the_same_key_with_the_same_arguments_is_a_duplicate(
    conn: Connection, first: bytes | None, again: bytes | None
) -> None:
    _, owner = await submit(conn, key="order-7", payload=first)

    assert await submit(conn, key="order-7", payload=again, lane="other", priority=7) == (DUPLICATE, owner)


@pytest.mark.parametrize(("first", "again"), OTHER)
async def test_the_same_key_with_other_arguments_is_refused_with_the_id_of_the_first_execution(
    conn: Connection, given: Given, first: bytes | None, again: bytes | None
) -> None:
    _, owner = await submit(conn, key="order-7", payload=first)

    async with given.nothing_changes():
        with pytest.raises(KeyConflict, match=r"key 'order-7' belongs to .* which has other arguments") as refused:
            await submit(conn, key="order-7", payload=again)
    assert refused.value.fields == {"execution_id": str(owner)}


async def test_the_same_key_for_another_task_is_refused(conn: Connection, given: Given) -> None:
    _, owner = await submit(conn, key="order-7", task="ship")

    async with given.nothing_changes():
        with pytest.raises(KeyConflict, match=f"belongs to execution {re.escape(str(owner))} of task 'ship'; use"):
            await submit(conn, key="order-7", task="refund")


async def test_a_conflict_in_a_batch_harms_no_other_item(conn: Connection) -> None:
    _, owner = await submit(conn, key="a", payload=b"1")

    first, again, other, old, older = await executions.submit_many(
        conn,
        [
            submission(key="new", payload=b"1"),
            submission(key="new", payload=b"1.0"),
            submission(key="new", payload=b"2"),
            submission(key="a", payload=b"2"),
            submission(key="a", payload=b" 1"),
        ],
    )

    assert isinstance(first, Submitted)
    assert again == Submitted(DUPLICATE, first.execution_id)
    assert isinstance(other, KeyConflict)
    assert other.fields == {"execution_id": str(first.execution_id)}
    assert isinstance(old, KeyConflict)
    assert older == Submitted(DUPLICATE, owner)


async def test_a_conflict_is_found_after_the_end_and_on_a_draining_lane(conn: Connection, given: Given) -> None:
    await given.cancelled(key="k", payload=b"1")
    await lanes.drain_lane(conn, "default", by="ops")

    with pytest.raises(KeyConflict):
        await submit(conn, key="k", payload=b"2")
    assert (await submit(conn, key="k", payload=b"1"))[0] is DUPLICATE


async def test_a_submit_that_waited_for_its_key_finds_the_conflict(connect: Connect, given: Given) -> None:
    one, two = await connect(), await connect()
    async with one.transaction():
        await submit(one, key="k", payload=b"1")
        second = await blocked(given, two, asyncio.create_task(submit(two, key="k", payload=b"2")))

    with pytest.raises(KeyConflict):
        await second
