"""Admission: an exhausted budget blocks its work without writing to it."""

from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric import errors
from flowfabric.engine import budgets, executions, routes
from flowfabric.errors import FlowFabricError
from flowfabric.ids import budget_id
from flowfabric.model import Options, PublicState
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, make, spend
from tests.given import Given, submission


async def is_closed(given: Given, *names: str) -> bool:
    ids = [budget_id("default", name) for name in names]
    [row] = await given.rows("select flowfabric._budgets_closed($1, flowfabric.clock()) as closed", ids)
    return bool(row["closed"])


async def words(given: Given, *names: str) -> str | None:
    ids = [budget_id("default", name) for name in names]
    [row] = await given.rows("select flowfabric._budget_words($1, flowfabric.clock())::text as words", ids)
    return str(row["words"]) if row["words"] else None


async def test_an_exhausted_budget_blocks_its_work_and_no_other_work(conn: Connection, given: Given) -> None:
    """An exhausted budget does not stop the scan for other work, and raising it releases the blocked work."""
    await make(conn)
    await spend(conn, 100)
    blocked = await given.submitted(budgets=[TEAM])
    free = await given.submitted()

    assert [claim.execution_id for claim in await given.claim(take=10)] == [free]
    found = await executions.describe(conn, blocked)
    assert (found.state.public_state, found.state.eligibility_state) == (PublicState.RATE_LIMITED, "blocked_by_budget")
    assert "budget team-a has used 100 of 100 tokens" in found.explanation.sentence
    await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 101}, by="ops")
    assert [claim.execution_id for claim in await given.claim(take=10)] == [blocked]


async def test_a_strict_budget_is_closed_while_used_and_reserved_reach_a_limit(conn: Connection, given: Given) -> None:
    await make(conn, hard_limits={"tokens": 100, "calls": 2})
    assert not await is_closed(given, TEAM)
    await spend(conn, 99)
    assert not await is_closed(given, TEAM)
    held = await budgets.reserve(conn, TEAM, {"tokens": 1})
    assert await is_closed(given, TEAM)
    assert held.reservation_id is not None
    await budgets.release(conn, held.reservation_id)
    assert not await is_closed(given, TEAM)
    await spend(conn, {"calls": 2})
    assert await is_closed(given, TEAM)
    await budgets.change_budget(conn, TEAM, mode="observe", by="ops")
    assert not await is_closed(given, TEAM)


async def test_a_due_reset_and_an_expired_reservation_open_the_budget_before_any_sweep(
    conn: Connection, given: Given
) -> None:
    await make(conn, reset_interval=timedelta(hours=2))
    await make(conn, "team-b")
    await spend(conn, 100)
    await budgets.reserve(conn, "team-b", {"tokens": 60}, ttl=timedelta(minutes=30))
    await budgets.reserve(conn, "team-b", {"tokens": 40}, ttl=timedelta(minutes=60))
    assert await is_closed(given, TEAM)
    assert await is_closed(given, "team-b")

    await given.time_passes(minutes=31)
    assert not await is_closed(given, "team-b")
    await given.time_passes(minutes=90)
    assert not await is_closed(given, TEAM, "team-b")
    assert await words(given, TEAM, "team-b") is None


async def test_a_budget_stays_closed_if_it_is_full_after_a_reservation_expires(conn: Connection, given: Given) -> None:
    await make(conn, hard_limits={"calls": 1, "tokens": 10})
    await budgets.reserve(conn, TEAM, {"tokens": 10}, ttl=timedelta(minutes=1))
    await spend(conn, {"calls": 1})
    await given.time_passes(minutes=2)

    assert await is_closed(given, TEAM)
    assert '"dimension": "calls"' in (await words(given, TEAM) or "")


async def test_one_closed_budget_closes_the_route_and_the_first_is_named(conn: Connection, given: Given) -> None:
    for name in ("a", "b", "c"):
        await make(conn, name)
    await spend(conn, 100, "b")
    await spend(conn, 100, "c")

    assert not await is_closed(given)
    assert not await is_closed(given, "a")
    assert await is_closed(given, "a", "b", "c")
    told = await words(given, "a", "c", "b") or ""
    assert '"name": "c"' in told
    assert '"used": 100' in told
    assert '"hard_limit": 100' in told


async def test_a_missing_budget_counts_as_closed(given: Given) -> None:
    assert await is_closed(given, "nobody")


async def test_budgets_are_part_of_the_route_each_once_and_in_order(conn: Connection, given: Given) -> None:
    """Budgets given by name, by id, twice or in another order lead to the same route."""
    for name in ("a", "b"):
        await make(conn, name)
    ids = sorted(budget_id("default", name) for name in "ab")
    for named in (["a", "b"], ["b", "a", "b"], [str(ids[0]), str(ids[1]).upper()]):
        await given.submitted(budgets=named)

    [row] = await given.rows("select budgets from flowfabric.routes")
    assert [UUID(str(each)) for each in row["budgets"]] == ids
    number = await routes.register_route(conn, Options(task="report", budgets=["b", "a"]))
    assert number == (await given.rows("select id from flowfabric.routes"))[0]["id"]


async def test_an_unknown_budget_is_refused_only_for_its_item(conn: Connection, given: Given) -> None:
    await make(conn)
    await make(conn, "elsewhere", namespace="acme")
    wrong = [["nobody"], [TEAM, "elsewhere"], [7], "team-a", [f"b{number}" for number in range(17)]]

    answers = await executions.submit_many(
        conn, [submission(budgets=[TEAM]), *(submission(budgets=each) for each in wrong), submission()]
    )

    assert [type(answer).__name__ if isinstance(answer, FlowFabricError) else "created" for answer in answers] == [
        "created", "BudgetNotFound", "BudgetNotFound", "InvalidBody", "InvalidBody", "InvalidBody", "created",
    ]  # fmt: skip
    assert (await given.count("executions"), await given.count("routes")) == (2, 2)
    with pytest.raises(errors.BudgetNotFound):
        await routes.register_route(conn, Options(task="report", budgets=["nobody"]))


async def test_a_budget_exhausted_between_two_claims_blocks_the_remaining_work(conn: Connection, given: Given) -> None:
    await make(conn)
    await executions.submit_many(conn, [submission(budgets=[TEAM])] * 3)

    [first] = await given.claim()
    await spend(conn, 100, fence=first.fence)
    assert await given.claim(take=5) == []
    reset = await budgets.reset_budget(conn, TEAM, by="ops")
    assert reset.lanes == ["default"]
    assert len(await given.claim(take=5)) == 2
