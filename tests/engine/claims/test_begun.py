"""The begin of a run: only a run that has begun counts as a reclaim, and what may have ended two workers runs alone."""

from uuid import uuid4

import pytest

from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import InvalidLimit, LeaseLost, RowLocked
from flowfabric.ids import ExecutionId
from flowfabric.model import Begin, Begun, Claim
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given


async def claim(given: Given, *, slots: int, take: int = 1, **options: object) -> list[Claim]:
    """Claim as a worker with so many free slots does."""
    return await claims.claim(
        given.conn, given.worker, instance=given.instance, lanes=["default"], take=take, slots=slots,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


async def begun(given: Given, *, slots: int = 1) -> Claim:
    """A claim whose run has begun."""
    [taken] = await claim(given, slots=slots)
    assert await claims.mark_begun_many(given.conn, [Begin(fence=taken.fence)]) == [Begun()]
    return taken


async def expired(given: Given) -> None:
    """Every lease expires, and what comes back later is due."""
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    await given.time_passes(minutes=1)


async def reclaims(given: Given, execution_id: ExecutionId) -> int:
    return (await executions.describe(given.conn, execution_id)).counts.reclaims


async def test_a_lease_that_expires_before_its_run_has_begun_is_no_reclaim(given: Given) -> None:
    execution_id = await given.submitted(policy={"max_reclaim_count": 1})
    for _ in range(3):
        [taken] = await claim(given, slots=1)
        await expired(given)

    assert taken.attempt.type == "reclaim"
    assert await reclaims(given, execution_id) == 0
    assert (await given.event("lease_expired"))["counted"] is False
    assert not await given.count("tickets where crashes <> 1")


async def test_a_run_that_had_begun_counts_and_ends_at_its_cap(given: Given) -> None:
    execution_id = await given.submitted(policy={"max_reclaim_count": 1})
    await claim(given, slots=1)
    await expired(given)
    for number in (0, 1):
        await begun(given)
        assert await reclaims(given, execution_id) == number
        await expired(given)

    result = await executions.get_result(given.conn, execution_id)
    assert result.failure is not None
    assert result.failure.reason == "max_reclaims_exceeded"


async def test_a_claim_without_slots_counts_as_the_begin_of_its_run(given: Given) -> None:
    execution_id = await given.submitted()
    for _ in range(2):
        [taken] = await given.claim()
        assert not taken.must_mark
        await expired(given)
    await given.claim()

    assert await reclaims(given, execution_id) == 2


async def test_an_execution_whose_lease_expired_is_never_claimed_ahead_and_nothing_overtakes_it(given: Given) -> None:
    first = await given.submitted()
    await claim(given, slots=1)
    await expired(given)
    second = await given.submitted()

    assert await claim(given, slots=0, take=10) == []
    taken = await claim(given, slots=1, take=10)
    assert [(each.execution_id, each.must_mark) for each in taken] == [(first, True), (second, False)]


async def test_an_execution_that_no_lease_may_expire_of_is_marked_from_the_first_time(given: Given) -> None:
    execution_id = await given.submitted(policy={"max_reclaim_count": 0})
    [taken] = await claim(given, slots=1)
    assert taken.must_mark
    await expired(given)
    assert (await executions.get_result(given.conn, execution_id)).outcome is None

    await begun(given)
    await expired(given)
    assert (await executions.get_result(given.conn, execution_id)).outcome == "failed"


async def test_from_the_second_expiry_on_an_execution_comes_back_later_each_time_and_runs_alone(given: Given) -> None:
    execution_id = await given.submitted()
    await claim(given, slots=1)
    await expired(given)
    pauses = []
    for _ in range(3):
        await begun(given)
        now = await given.time_passes(minutes=1)
        await claims.expire_leases(given.conn)
        described = await executions.describe(given.conn, execution_id)
        assert described.state.public_state == "delayed"
        explained = await executions.explain(given.conn, execution_id)
        assert explained.releases_at is not None
        pauses.append(round((explained.releases_at - now).total_seconds()))
        assert await claim(given, slots=1) == []
        await given.time_passes(minutes=1)

    assert pauses == [1, 2, 3]
    assert explained.sentence.startswith("4 leases expired while it ran")
    behind = await given.submitted()
    [alone] = await claim(given, slots=10, take=10)
    assert (alone.execution_id, alone.alone) == (execution_id, True)
    [other] = await claim(given, slots=10, take=10)
    assert (other.execution_id, other.alone) == (behind, False)


async def test_the_pause_of_an_execution_ends_at_a_minute(given: Given) -> None:
    execution_id = await given.submitted(policy={"max_reclaim_count": 10_000})
    await begun(given)
    await given.rows("update flowfabric.tickets set crashes = 32767")
    now = await given.time_passes(minutes=1)

    await claims.expire_leases(given.conn)

    releases_at = (await executions.explain(given.conn, execution_id)).releases_at
    assert releases_at is not None
    assert round((releases_at - now).total_seconds()) == 60


async def test_an_execution_that_suspended_since_its_leases_expired_no_longer_runs_alone(given: Given) -> None:
    await given.submitted()
    for _ in range(2):
        await begun(given)
        await expired(given)
    taken = await begun(given)
    assert taken.alone
    await attempts.delay(given.conn, taken.fence)

    [resumed] = await claim(given, slots=1)
    assert (resumed.must_mark, resumed.alone) == (True, False)


async def test_a_repeated_claim_tells_again_what_must_be_marked_and_what_runs_alone(given: Given) -> None:
    await given.submitted()
    for _ in range(2):
        await begun(given)
        await expired(given)
    request = uuid4()
    [first] = await claim(given, slots=1, request=request)

    [again] = await claim(given, slots=1, request=request, repeated=True)

    assert (again.fence, again.must_mark, again.alone) == (first.fence, True, True)


async def test_a_mark_under_a_lost_lease_is_refused_and_its_neighbours_are_marked(given: Given) -> None:
    await given.submitted()
    lost = await begun(given)
    await expired(given)
    await given.submitted()
    kept, other = await claim(given, slots=2, take=2)

    begins = [Begin(fence=each.fence) for each in (lost, kept, other, kept)]
    refused, *marked = await claims.mark_begun_many(given.conn, begins)

    assert isinstance(refused, LeaseLost)
    assert marked == [Begun()] * 3
    assert await given.count("tickets where begun") == 2


async def test_a_mark_of_a_locked_execution_is_refused_without_waiting(
    conn: Connection, connect: Connect, given: Given
) -> None:
    await given.submitted()
    await given.submitted()
    locked, free = await claim(given, slots=2, take=2)
    other = await connect()
    async with other.transaction():
        await other.execute("select from flowfabric.tickets where id = $1 for update", locked.execution_id.uuid)

        begins = [Begin(fence=each.fence) for each in (locked, free)]
        refused, marked = await claims.mark_begun_many(conn, begins, wait=False)

    assert isinstance(refused, RowLocked)
    assert marked == Begun()


async def test_a_negative_number_of_slots_is_refused(given: Given) -> None:
    with pytest.raises(InvalidLimit, match="slots -1 is invalid; use 0 or more"):
        await claim(given, slots=-1)
