"""Deduplication of reports, by dedup key or by step in the journal."""

from typing import Any
from uuid import UUID

import pytest

from flowfabric import errors, ids
from flowfabric.engine import attempts, budgets, claims, executions, steps
from flowfabric.model import Fence, Step, Usage
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, report_of, spend
from tests.given import Given

INVALID_STEPS: list[Any] = [("", 1), ("u" * 129, 1), ("usage", 0), ("usage", 2**40), "usage"]


async def reserved(conn: Connection, fence: Fence | None = None) -> UUID:
    """Reserve 20 tokens and return the id of the reservation."""
    answer = await budgets.reserve(conn, TEAM, {"tokens": 20}, fence=fence)
    assert answer.reservation_id is not None
    return answer.reservation_id


def partition(name: str) -> int:
    return ids.named_partition(ids.budget_id("default", name), 32)


async def test_a_dedup_key_counts_once_per_budget(conn: Connection) -> None:
    """The second budget is in the same partition, where a key must not be shared either."""
    names = (f"team-{number}" for number in range(2, 10_000))
    neighbour = next(name for name in names if partition(name) == partition(TEAM))
    await make(conn)
    await make(conn, neighbour)

    assert (await spend(conn, 10, dedup_key="k")).outcome == "ok"
    assert await spend(conn, 10, dedup_key="k") == Usage(outcome="already_applied")
    assert (await spend(conn, 10, neighbour, dedup_key="k")).outcome == "ok"
    assert ((await figures(conn))[0], (await figures(conn, neighbour))[0]) == (10, 10)


async def test_a_breach_with_a_dedup_key_can_be_retried_after_the_limit_was_raised(conn: Connection) -> None:
    """A refused report does not use up its key."""
    await make(conn)

    assert (await spend(conn, 110, dedup_key="k")).outcome == "hard_breach"
    await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 200}, by="ops")
    assert (await spend(conn, 110, dedup_key="k")).outcome == "ok"
    assert (await spend(conn, 110, dedup_key="k")).outcome == "already_applied"


async def test_a_dedup_key_expires_a_day_after_its_first_use(conn: Connection, given: Given) -> None:
    await make(conn)
    await spend(conn, 10, dedup_key="k")
    await given.time_passes(hours=23, minutes=59)
    assert (await spend(conn, 10, dedup_key="k")).outcome == "already_applied"
    await given.time_passes(minutes=2)

    assert (await spend(conn, 10, dedup_key="k")).outcome == "ok"
    assert (await figures(conn))[0] == 20


async def test_an_empty_dedup_key_is_ignored_and_a_key_counts_once_in_a_batch(conn: Connection) -> None:
    await make(conn)
    keys = ["", "", "k", "k"]

    answers = await budgets.report_usage_many(conn, [report_of(1, dedup_key=key) for key in keys])

    assert [getattr(answer, "outcome", None) for answer in answers] == ["ok", "ok", "ok", "already_applied"]


async def test_the_sweep_deletes_expired_dedup_keys(conn: Connection, given: Given) -> None:
    await make(conn)
    await spend(conn, 1, dedup_key="old")
    await given.time_passes(hours=12)
    await spend(conn, 1, dedup_key="young")
    await given.time_passes(hours=13)

    assert (await executions.remove_idempotency_keys(conn)).moved == 1
    assert [row["key"] for row in await given.rows("select key from flowfabric.usage_keys")] == ["young"]


async def test_a_report_with_a_step_counts_once_however_often_the_handler_runs(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed(policy={"retry": {"max_retries": 1}})
    step = ("usage:team-a", 1)

    assert (await spend(conn, 10, fence=claim.fence, step=step)).outcome == "ok"
    assert (await spend(conn, 10, fence=claim.fence, step=("usage:team-a", 2))).outcome == "ok"
    await attempts.fail(conn, claim.fence, "it broke")
    await given.time_passes(days=3)
    [again] = await given.claim()
    assert (await spend(conn, 10, fence=again.fence, step=step)).outcome == "already_applied"
    assert (await figures(conn))[0] == 20
    journal = await steps.read_journal(conn, claim.execution_id)
    assert [(entry.kind, entry.name, entry.occurrence) for entry in journal] == [("step", *step), ("step", step[0], 2)]


async def test_the_journal_stores_the_first_answer(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 5})
    claim = await given.claimed()

    first = await spend(conn, 10, fence=claim.fence, step=("usage:team-a", 1))

    [entry] = await steps.read_journal(conn, claim.execution_id)
    assert first.outcome == "soft_breach"
    assert b'"soft_breach"' in (entry.result or b"")


async def test_neither_a_hard_breach_nor_a_lost_lease_saves_a_step(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()

    await spend(conn, 110, fence=claim.fence, step=("usage:team-a", 1))
    await claims.revoke(conn, claim.execution_id, by="ops")
    with pytest.raises(errors.LeaseLost):
        await spend(conn, 10, fence=claim.fence, step=("usage:team-a", 1))
    assert (await given.count("steps"), (await figures(conn))[0]) == (0, 0)


async def test_a_settlement_is_saved_as_a_step_and_repeating_it_changes_nothing(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 5})
    claim = await given.claimed()
    held = await reserved(conn, claim.fence)

    first = await budgets.settle(conn, held, {"tokens": 10}, fence=claim.fence, step=("reserve", 1))
    async with given.nothing_changes():
        again = await budgets.settle(conn, held, {"tokens": 10}, fence=claim.fence, step=("reserve", 1))
    assert (first.outcome, again.outcome, again.first, again.used) == (
        *("soft_breach", "already_applied", "soft_breach", first.used),
    )
    [entry] = await steps.read_journal(conn, claim.execution_id)
    assert (entry.kind, entry.name, entry.occurrence, entry.result) == ("step", "reserve", 1, b"true")


async def test_a_reservation_and_its_step_may_have_been_settled_and_saved_apart(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    settled, unsettled = await reserved(conn, claim.fence), await reserved(conn, claim.fence)
    await budgets.settle(conn, settled, {"tokens": 10}, fence=claim.fence)
    await steps.save_step(conn, Step(fence=claim.fence, name="reserve", occurrence=2, result=b"7"))

    one = await budgets.settle(conn, settled, {"tokens": 10}, fence=claim.fence, step=("reserve", 1))
    two = await budgets.settle(conn, unsettled, {"tokens": 10}, fence=claim.fence, step=("reserve", 2))
    assert (one.outcome, two.outcome, (await figures(conn))[0]) == ("already_applied", "settled", 20)
    journal = await steps.read_journal(conn, claim.execution_id)
    assert [entry.result for entry in journal] == [b"true", b"7"], "the first result of a step is kept"


@pytest.mark.parametrize("action", ["refuse", "fail", "suspend"])
async def test_a_settlement_over_the_limit_saves_its_step(conn: Connection, given: Given, action: Any) -> None:
    await make(conn, on_hard_limit=action)
    claim = await given.claimed()
    held = await reserved(conn, claim.fence)

    answer = await budgets.settle(conn, held, {"tokens": 110}, fence=claim.fence, step=("reserve", 1))
    assert (answer.outcome, answer.action) == ("hard_breach", action)
    assert [entry.name for entry in await steps.read_journal(conn, claim.execution_id)] == ["reserve"]


async def test_a_settlement_that_is_refused_saves_no_step(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    held = await reserved(conn, claim.fence)
    await budgets.release(conn, held, fence=claim.fence)

    async with given.nothing_changes():
        with pytest.raises(errors.ReservationNotFound):
            await budgets.settle(conn, held, {"tokens": 10}, fence=claim.fence, step=("reserve", 1))


async def test_an_invalid_step_is_refused_and_changes_nothing(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()

    free, held = await reserved(conn), await reserved(conn, claim.fence)
    async with given.nothing_changes():
        with pytest.raises(errors.FenceRequired):
            await spend(conn, 1, step=("usage", 1))
        with pytest.raises(errors.FenceRequired):
            await budgets.settle(conn, free, {"tokens": 1}, step=("usage", 1))
        for step in INVALID_STEPS:
            with pytest.raises(errors.InvalidName):
                await spend(conn, 1, fence=claim.fence, step=step)
            with pytest.raises(errors.InvalidName):
                await budgets.settle(conn, held, {"tokens": 1}, fence=claim.fence, step=step)


async def test_an_execution_with_the_maximum_of_steps_saves_no_more(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    await conn.execute(
        "insert into flowfabric.steps (partition, execution, name, occurrence, kind, at) "
        "select $1, $2, 's', n, 'step', now() from generate_series(1, 10000) n",
        claim.execution_id.partition,
        claim.execution_id.uuid,
    )

    held = await reserved(conn, claim.fence)
    with pytest.raises(errors.TooManySteps):
        await spend(conn, 1, fence=claim.fence, step=("usage", 1))
    with pytest.raises(errors.TooManySteps):
        await budgets.settle(conn, held, {"tokens": 1}, fence=claim.fence, step=("reserve", 1))
    assert (await budgets.settle(conn, held, {"tokens": 1}, fence=claim.fence, step=("s", 1))).outcome == "settled"
    assert (await figures(conn))[0] == 1
