"""Executions past their deadline never stand in front of work that is ready."""

from datetime import timedelta

from flowfabric.engine import attempts, budgets, claims, executions, flows, quotas
from flowfabric.ids import ExecutionId
from flowfabric.postgres.driver import Connection
from tests.given import Given

MINUTE = timedelta(minutes=1)


async def late_members(given: Given, amount: int, **options: object) -> list[ExecutionId]:
    """Members of a flow, past their deadline; a claim cannot end them, because it would need the lock of their flow."""
    flow_id = (await flows.create_flow(given.conn, "report")).flow_id
    return [await given.submitted(flow=flow_id, deadline=MINUTE, **options) for _ in range(amount)]


async def test_late_members_of_a_flow_do_not_use_up_what_a_claim_takes(given: Given) -> None:
    late = await late_members(given, 3)
    good = [await given.submitted() for _ in range(2)]
    await given.time_passes(minutes=1)

    assert [claim.execution_id for claim in await given.claim()] == good[:1]
    assert [claim.execution_id for claim in await given.claim(take=5)] == good[1:]
    assert (await executions.expire_executions(given.conn)).moved == len(late)


async def test_late_members_at_a_higher_priority_do_not_hide_other_work(given: Given) -> None:
    await late_members(given, 3, priority=5)
    good = await given.submitted()
    await given.time_passes(minutes=1)

    assert [claim.execution_id for claim in await given.claim()] == [good]


async def test_late_members_do_not_use_up_a_quota(given: Given, conn: Connection) -> None:
    await quotas.create_quota(conn, "calls", max_concurrent=2)
    await late_members(given, 3, quotas=["calls"])
    good = [await given.submitted(quotas=["calls"]) for _ in range(2)]
    await given.time_passes(minutes=1)

    assert [claim.execution_id for claim in await given.claim(take=5)] == good


async def test_late_members_are_not_granted(given: Given, conn: Connection) -> None:
    await late_members(given, 3)
    good = await given.submitted()
    await given.time_passes(minutes=1)

    [grant] = await claims.issue_grant(conn, given.worker, instance=given.instance, lanes=["default"])

    assert grant.execution_id == good


async def test_a_late_execution_with_a_reservation_behind_another_late_one_is_left_out(
    given: Given, conn: Connection
) -> None:
    await budgets.create_budget(conn, "team-a", hard_limits={"tokens": 100})
    claim = await given.claimed(deadline=MINUTE, priority=1)
    await budgets.reserve(conn, "team-a", {"tokens": 10}, fence=claim.fence)
    await attempts.delay(conn, claim.fence, timedelta(0))
    await given.submitted(deadline=MINUTE, priority=2)
    good = await given.submitted()
    await given.time_passes(minutes=1)

    assert [claim.execution_id for claim in await given.claim()] == [good]
