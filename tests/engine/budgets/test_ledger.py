"""The ledger: what each execution has spent, and how to undo it."""

from datetime import timedelta

import pytest

from flowfabric import errors, ids
from flowfabric.engine import attempts, budgets, executions
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, read, settled, spend
from tests.given import Given


async def test_an_execution_has_a_line_per_budget_and_period(conn: Connection, given: Given) -> None:
    await make(conn)
    await make(conn, "team-b")
    claim = await given.claimed()
    await spend(conn, {"tokens": 5, "requests": 1}, fence=claim.fence)
    await settled(conn, 10, 7, claim.fence)
    await spend(conn, 3, "team-b", fence=claim.fence)
    await spend(conn, 50)
    await budgets.reset_budget(conn, TEAM, by="ops")
    await spend(conn, 1, fence=claim.fence)

    lines = await budgets.list_spending(conn, claim.execution_id)
    assert [(line.name, line.period, line.spent) for line in lines] == [
        (TEAM, 1, {"tokens": 12, "requests": 1}),
        (TEAM, 2, {"tokens": 1}),
        ("team-b", 1, {"tokens": 3}),
    ]


async def test_the_spending_of_an_execution_can_be_released_once(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    await spend(conn, 30, fence=claim.fence)
    await spend(conn, 50)
    await attempts.complete(conn, claim.fence)

    released = await budgets.release_usage(conn, TEAM, claim.execution_id, by="ops")

    assert (released.outcome, released.amounts) == ("released", {"tokens": 30})
    assert (await figures(conn))[0] == 50
    told = await given.event("usage_released")
    assert (told["execution_id"], told["amounts"]) == (str(claim.execution_id), {"tokens": 30})
    async with given.nothing_changes():
        assert (await budgets.release_usage(conn, TEAM, claim.execution_id, by="ops")).outcome == "noop"


async def test_after_a_reset_older_spending_is_not_released_from_the_new_period(conn: Connection, given: Given) -> None:
    """The ledger is kept by period."""
    await make(conn)
    claim = await given.claimed()
    await spend(conn, 30, fence=claim.fence)
    await budgets.reset_budget(conn, TEAM, by="ops")
    await spend(conn, 50)

    assert (await budgets.release_usage(conn, TEAM, claim.execution_id, by="ops")).outcome == "noop"
    assert (await figures(conn))[0] == 50


async def test_after_a_due_reset_that_is_not_stored_yet_older_spending_is_not_released(
    conn: Connection, given: Given
) -> None:
    await make(conn, reset_interval=timedelta(hours=1))
    claim = await given.claimed(lease=timedelta(minutes=59))
    await spend(conn, 30, fence=claim.fence)
    await given.time_passes(minutes=61)

    assert (await budgets.release_usage(conn, TEAM, claim.execution_id, by="ops")).outcome == "noop"
    await spend(conn, 50)
    assert (await read(conn)).used == {"tokens": 50}


async def test_overrun_is_not_in_the_ledger(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    await settled(conn, 60, 150, claim.fence)

    assert (await budgets.release_usage(conn, TEAM, claim.execution_id, by="ops")).amounts == {"tokens": 60}
    assert await figures(conn) == (0, 0, 90)


async def test_nothing_is_released_for_an_unknown_execution_or_budget(conn: Connection, given: Given) -> None:
    await make(conn)
    nobody = ids.mint_execution_id()

    async with given.nothing_changes():
        assert (await budgets.release_usage(conn, TEAM, nobody, by="ops")).outcome == "noop"
        with pytest.raises(errors.BudgetNotFound):
            await budgets.release_usage(conn, "nobody", nobody, by="ops")
        with pytest.raises(errors.InvalidBody):
            await budgets.release_usage(conn, TEAM, nobody, by="b" * 257)
        with pytest.raises(errors.ExecutionNotFound):
            await budgets.list_spending(conn, nobody)


async def test_the_ledger_of_an_execution_is_removed_with_its_record(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    await spend(conn, 30, fence=claim.fence)
    await attempts.complete(conn, claim.fence)
    await given.time_passes(days=8)

    await executions.remove_ended(conn)

    assert (await given.count("spending"), (await figures(conn))[0]) == (0, 30)
