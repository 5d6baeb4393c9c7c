"""Admission by quotas: a limit per window, a limit of concurrent executions, and never more."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, claims, executions, lanes, quotas, routes, waits
from flowfabric.model import FailureClass, Options, Quota, Suspension
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission

SECOND = timedelta(seconds=1)
ANSWER = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])


async def used(conn: Connection, name: str = "model") -> tuple[int, int, int]:
    """The admissions in the window, the slots in use, and the room."""
    shown: Quota = await quotas.describe_quota(conn, name)
    return shown.in_window, shown.held_count, shown.room


async def submitted(given: Given, count: int, **options: object) -> None:
    await executions.submit_many(given.conn, [submission(**{"quotas": ["model"], **options})] * count)


async def test_the_third_of_two_per_window_waits_until_the_first_leaves_the_window(
    conn: Connection, given: Given
) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=2)
    await submitted(given, 3)

    assert len(await given.claim()) == 1
    await given.time_passes(seconds=30)
    assert len(await given.claim(take=10)) == 1
    assert await given.claim(take=10) == []
    await given.time_passes(seconds=29)
    assert await given.claim(take=10) == []
    await given.time_passes(seconds=1)
    assert len(await given.claim(take=10)) == 1
    assert await used(conn) == (2, 3, 0)


async def test_a_full_window_opens_when_its_oldest_entry_leaves(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=2, window_seconds=10)
    await submitted(given, 3)
    [first] = await given.claim()
    await given.time_passes(seconds=5)
    await given.claim()

    shown = await quotas.describe_quota(conn, "model")

    assert shown.next_room_at is not None
    assert shown.next_room_at - first.attempt.started_at == pytest.approx(timedelta(seconds=10), abs=SECOND / 1000)


async def test_a_resumed_attempt_takes_no_second_entry_while_its_first_is_in_the_window(
    conn: Connection, given: Given
) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=2)
    await submitted(given, 1)
    [claim] = await given.claim()

    await attempts.delay(conn, claim.fence)
    [again] = await given.claim(lease=timedelta(hours=1))
    assert (again.attempt.number, await used(conn)) == (1, (1, 1, 1))
    await given.time_passes(seconds=61)
    assert await used(conn) == (0, 1, 2)
    await attempts.delay(conn, again.fence)
    await given.claim()
    assert await used(conn) == (1, 1, 1)


async def test_a_retry_takes_an_entry_of_its_own(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=3)
    await submitted(given, 1, policy={"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 1}}})
    [claim] = await given.claim()

    await attempts.fail(conn, claim.fence, "it broke")
    await given.time_passes(seconds=1)
    await given.claim()

    assert await used(conn) == (2, 1, 1)


async def test_a_reclaim_takes_an_entry_of_its_own(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=3, window_seconds=3600)
    await submitted(given, 1)
    await given.claim()

    await given.time_passes(minutes=1)
    await claims.expire_leases(conn)
    [again] = await given.claim()

    assert (again.attempt.type, await used(conn)) == ("reclaim", (2, 1, 1))


async def complete(given: Given) -> None:
    [claim] = await given.claim()
    await attempts.complete(given.conn, claim.fence)


async def fail(given: Given) -> None:
    [claim] = await given.claim()
    await attempts.fail(given.conn, claim.fence, "it broke", class_=FailureClass.PERMANENT)


async def retry(given: Given) -> None:
    [claim] = await given.claim()
    await attempts.fail(given.conn, claim.fence, "it broke")


async def delay(given: Given) -> None:
    [claim] = await given.claim()
    await attempts.delay(given.conn, claim.fence, timedelta(hours=1))


async def suspend(given: Given) -> None:
    [claim] = await given.claim()
    await waits.suspend(given.conn, claim.fence, ANSWER)


async def cancel(given: Given) -> None:
    [claim] = await given.claim()
    await executions.cancel(given.conn, claim.execution_id, reason="not wanted")


async def expire(given: Given) -> None:
    await given.claim(lease=timedelta(hours=1))
    await given.time_passes(minutes=30)
    await executions.expire_executions(given.conn)


async def revoke(given: Given) -> None:
    [claim] = await given.claim()
    await claims.revoke(given.conn, claim.execution_id, by="ops")
    await executions.cancel(given.conn, claim.execution_id, reason="not wanted")


async def expire_lease(given: Given) -> None:
    [claim] = await given.claim()
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    await executions.cancel(given.conn, claim.execution_id, reason="not wanted")


async def expire_grant(given: Given) -> None:
    [grant] = await claims.issue_grant(given.conn, "pool", instance="pool-1", lanes=["default"])
    await given.time_passes(minutes=1)
    await claims.expire_grants(given.conn)
    await executions.cancel(given.conn, grant.execution_id, reason="not wanted")


async def cancel_grant(given: Given) -> None:
    [grant] = await claims.issue_grant(given.conn, "pool", instance="pool-1", lanes=["default"])
    await executions.cancel(given.conn, grant.execution_id, reason="not wanted")


FREE = [complete, fail, retry, delay, suspend, cancel, expire, revoke, expire_lease, expire_grant, cancel_grant]


@pytest.mark.parametrize("free", FREE)
async def test_a_slot_is_free_when_its_execution_no_longer_runs(
    conn: Connection, given: Given, free: Callable[[Given], Awaitable[None]]
) -> None:
    """A slot is held exactly as long as the lease or the grant."""
    await quotas.create_quota(conn, "model", max_concurrent=1)
    policy = {"retry": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 3_600_000}}}
    await submitted(given, 1, policy=policy, deadline=timedelta(minutes=20))
    await submitted(given, 2)

    await free(given)
    assert (await used(conn))[1:] == (0, 1)
    assert len(await given.claim(take=10)) == 1
    assert (await used(conn))[1:] == (1, 0)
    assert await given.claim(take=10) == []


async def test_a_slot_is_not_freed_twice(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=1)
    await submitted(given, 3)
    [claim] = await given.claim()
    await attempts.complete(conn, claim.fence)

    with pytest.raises(errors.ExecutionNotActive):
        await attempts.complete(conn, claim.fence)
    await claims.expire_leases(conn)
    await quotas.trim_windows(conn)

    assert (await used(conn))[1:] == (0, 1)
    assert len(await given.claim(take=10)) == 1


async def test_a_granted_execution_holds_its_slot_and_its_entry(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=5, max_concurrent=1, window_seconds=3600)
    await submitted(given, 2)
    [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"], take=10)

    assert await used(conn) == (1, 1, 0)
    assert await given.claim(take=10) == []
    claim = await claims.claim_granted(conn, grant.grant_key, "pool", instance="pool-1")
    assert await used(conn) == (1, 1, 0)
    await attempts.delay(conn, claim.fence, timedelta(days=1))
    assert await used(conn) == (1, 0, 1)


async def test_an_expired_grant_frees_its_slot_and_its_entry(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=1, max_concurrent=1, window_seconds=3600)
    await submitted(given, 1)
    for _ in range(3):
        [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"])
        assert await used(conn) == (1, 1, 0)
        await given.time_passes(seconds=11)
        assert await used(conn) == (0, 0, 1)

    with pytest.raises(errors.GrantExpired):
        await claims.claim_granted(conn, grant.grant_key, "pool", instance="pool-1")
    assert len(await given.claim()) == 1
    assert await used(conn) == (1, 1, 0)


async def test_an_expired_grant_frees_only_its_own_entry(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=3, window_seconds=3600)
    await submitted(given, 1)
    [claim] = await given.claim()
    await attempts.delay(conn, claim.fence)

    await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"])
    assert await used(conn) == (1, 1, 2)
    await given.time_passes(seconds=11)
    await claims.expire_grants(conn)
    assert await used(conn) == (1, 0, 2)


async def test_a_grant_that_outlives_its_entry_is_not_admitted_twice(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=1, window_seconds=1)
    await submitted(given, 1)
    [grant] = await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"])

    await given.time_passes(seconds=5)
    await claims.claim_granted(conn, grant.grant_key, "pool", instance="pool-1")

    assert await used(conn) == (0, 1, 1)


async def test_two_routes_that_share_a_quota_share_its_room_in_turn(conn: Connection, given: Given) -> None:
    """Room is counted per quota, not per route."""
    await quotas.create_quota(conn, "model", max_concurrent=3)
    await submitted(given, 5, lane="a")
    await submitted(given, 5, lane="b")

    taken = await given.claim(lanes=["a", "b"], take=10)

    assert sorted(claim.lane for claim in taken) == ["a", "a", "b"]
    assert await given.claim(lanes=["a", "b"], take=10) == []


async def test_the_smallest_room_of_several_quotas_decides(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=5)
    await quotas.create_quota(conn, "slow", max_requests_per_window=2)
    await submitted(given, 5, quotas=["slow", "model", "slow"])
    await submitted(given, 5)

    taken = await given.claim(take=10)

    assert len(taken) == 5
    assert (await used(conn), await used(conn, "slow")) == ((5, 5, 0), (2, 2, 0))


async def test_a_full_quota_does_not_block_work_without_a_quota(conn: Connection, given: Given) -> None:
    """A closed route does not stop the scan for other work."""
    await quotas.create_quota(conn, "model", max_concurrent=1)
    await submitted(given, 3, priority=9)
    plain = [await given.submitted() for _ in range(2)]
    low = await given.submitted(quotas=["model"])

    taken = await given.claim(take=10)

    assert [claim.execution_id for claim in taken][1:] == plain
    assert (await given.ticket(low))["eligibility"] == "eligible_now"


async def test_executions_that_are_not_admitted_are_not_written(conn: Connection, given: Given) -> None:
    """A claim writes nothing on work it does not take."""
    await quotas.create_quota(conn, "model", max_concurrent=1)
    await submitted(given, 3)
    await given.claim()

    async with given.nothing_changes():
        assert await given.claim(take=10) == []
        assert await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"], take=10) == []


async def test_a_change_applies_to_the_next_claim(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=3, max_requests_per_window=3)
    await submitted(given, 10)
    first = await given.claim(take=10)

    await quotas.change_quota(conn, "model", by="ops", max_concurrent=1, max_requests_per_window=100)
    assert await used(conn) == (3, 3, 0)
    for claim in first[:2]:
        await claims.renew(conn, claim.fence)
        await attempts.complete(conn, claim.fence)
        assert await given.claim(take=10) == []
    await attempts.complete(conn, first[2].fence)
    assert len(await given.claim(take=10)) == 1
    await quotas.change_quota(conn, "model", by="ops", max_concurrent=4)
    assert len(await given.claim(take=10)) == 3


async def test_a_concurrency_limit_added_later_counts_running_executions(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=100)
    await submitted(given, 4)
    await given.claim(take=3)

    await quotas.change_quota(conn, "model", by="ops", max_concurrent=3)

    assert await given.claim(take=10) == []


async def test_round_robin_continues_after_closed_routes(conn: Connection, given: Given) -> None:
    for number in range(10):
        await quotas.create_quota(conn, f"q{number}", max_concurrent=1)
        await submitted(given, 3, lane="many", namespace="default", quotas=[f"q{number}"])
    assert len(await given.claim(lanes=["many"], take=7)) == 7

    rest = await given.claim(lanes=["many"], take=2)
    last = await given.claim(lanes=["many"], take=100, after_route=rest[-1].route)

    assert len({claim.route for claim in [*rest, *last]}) == 3
    assert await given.claim(lanes=["many"], take=100) == []


async def test_every_open_route_gets_one_execution_before_any_gets_a_second(conn: Connection, given: Given) -> None:
    for number in range(6):
        await quotas.create_quota(conn, f"q{number}", max_concurrent=1 if number < 3 else 9)
        await submitted(given, 3, lane="many", quotas=[f"q{number}"])
    assert len({claim.route for claim in await given.claim(lanes=["many"], take=3)}) == 3

    taken = await given.claim(lanes=["many"], take=3)

    assert len({claim.route for claim in taken}) == 3


async def test_work_below_many_closed_priorities_is_claimed_in_order(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=1)
    for priority in range(10, 40):
        await submitted(given, 1, priority=priority)
        await submitted(given, 1, priority=priority, quotas=[], needs=["gpu"])
    plain = [await given.submitted(priority=priority) for priority in (25, 11, 5)]

    first, *rest = await given.claim(take=10)

    assert first.priority == 39
    assert [claim.execution_id for claim in rest] == plain
    await attempts.complete(conn, first.fence)
    assert [claim.priority for claim in await given.claim(take=10)] == [38]


async def test_only_executions_within_the_payload_limit_are_admitted(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=100)
    await submitted(given, 20, payload=b"x" * 1_000_000)

    taken = await given.claim(take=20)

    assert len(taken) == 16
    assert await used(conn) == (16, 16, 84)


async def test_an_execution_past_its_deadline_takes_no_room(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=1, max_concurrent=1)
    late = await given.submitted(quotas=["model"], deadline=timedelta(seconds=1))
    in_time = await given.submitted(quotas=["model"])
    await given.time_passes(seconds=2)

    assert [claim.execution_id for claim in await given.claim(take=5)] == [in_time]
    assert (await executions.describe(conn, late)).state.public_state == "expired"
    assert await used(conn) == (1, 1, 0)


async def test_a_missing_quota_closes_its_routes(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=100)
    execution_id = await given.submitted(quotas=["model"])
    await conn.execute("delete from flowfabric.quotas")

    assert await given.claim() == []
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "blocked_by_quota"


async def test_a_clock_set_back_admits_nothing_twice(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=2)
    await submitted(given, 5)
    await given.claim()

    await given.time_passes(hours=-1)
    assert len(await given.claim(take=10)) == 1
    assert await given.claim(take=10) == []


async def test_an_unknown_quota_is_refused(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=1)

    async with given.nothing_changes():
        for named in (["nobody"], ["model", "nobody"], ["00000000-0000-8000-8000-000000000007"]):
            with pytest.raises(errors.QuotaNotFound, match=named[-1]):
                await given.submitted(quotas=named)
        with pytest.raises(errors.QuotaNotFound):
            await given.submitted(quotas=["model"], namespace="other")


async def test_16_quotas_are_accepted_and_more_are_refused(conn: Connection, given: Given) -> None:
    names = [f"q{number}" for number in range(17)]
    for name in names:
        await quotas.create_quota(conn, name, max_concurrent=1)

    with pytest.raises(errors.InvalidBody, match="16"):
        await given.submitted(quotas=names)
    await given.submitted(quotas=names[:16])
    assert len(await given.claim()) == 1
    assert await given.count("quota_slots") == 16


async def test_a_quota_given_by_name_or_id_is_the_same_route(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "default")
    made = await quotas.create_quota(conn, "model", max_concurrent=1)
    number = await routes.register_route(conn, Options(task="k", quotas=["model"]))

    for named in (["model"], [str(made.quota_id)], ["model", str(made.quota_id).upper()]):
        execution_id = await given.submitted(quotas=named)
        assert (await given.ticket(execution_id))["route"] == number
    assert (await executions.describe(conn, execution_id)).quotas == [made.quota_id]
    assert await given.count("routes") == 1


async def test_trimming_deletes_only_rows_that_no_longer_count(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=10)
    await submitted(given, 5)
    for claim in await given.claim(take=2):
        await attempts.complete(conn, claim.fence)
    await given.time_passes(seconds=61)
    await given.claim(take=3)

    assert (await quotas.trim_windows(conn, limit=1)).moved == 1
    assert (await quotas.trim_windows(conn)).moved == 3
    assert (await quotas.trim_windows(conn)).moved == 0
    assert (await given.count("quota_entries"), await given.count("quota_slots")) == (3, 3)
    assert await used(conn) == (3, 3, 7)
