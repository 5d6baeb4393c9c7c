"""Many suspensions in one call: each item has its own answer, and an invalid or locked one harms no other."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, budgets, executions, waits
from flowfabric.errors import ExecutionNotActive, InvalidSuspension, LeaseLost, RowLocked
from flowfabric.model import Claim, ExecutionToSuspend, Suspended, Wish
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.budgets.scene import report_of
from tests.engine.waits.scene import ANY, Waiting, state, to, wish
from tests.given import Given, submission


async def several(given: Given, amount: int) -> list[Claim]:
    """So many executions under a lease."""
    await executions.submit_many(given.conn, [submission()] * amount)
    return await given.claim(take=amount)


async def test_each_item_has_its_own_answer(conn: Connection, given: Given) -> None:
    good, bad, stale, early = await several(given, 4)
    made = await waits.create_waitpoint(conn, early.fence, "w")
    await waits.deliver_signal(conn, to(early.execution_id, made.waitpoint_id, made.token))
    await attempts.complete(conn, stale.fence)

    answers = await waits.suspend_many(
        conn,
        [
            ExecutionToSuspend(fence=bad.fence, waits=[wish(), wish({"kind": "single", "waitpoint": "x"}, ["y"])]),
            ExecutionToSuspend(fence=good.fence, waits=[wish(ANY)]),
            ExecutionToSuspend(fence=stale.fence, waits=[wish(ANY)]),
            ExecutionToSuspend(fence=early.fence, waits=[wish(ANY)]),
        ],
    )

    assert isinstance(answers[0], InvalidSuspension)
    assert isinstance(answers[1], Suspended)
    assert isinstance(answers[2], ExecutionNotActive)
    assert isinstance(answers[3], Suspended)
    assert (answers[1].outcome, answers[3].outcome) == ("suspended", "already_satisfied")
    assert [await state(conn, claim.execution_id) for claim in (bad, good, early)] == ["active", "suspended", "active"]
    done = await waits.deliver_signal(conn, Waiting(good, answers[1]).signal())
    assert done.effect == "resume_condition_satisfied"


async def test_a_second_suspension_of_the_same_execution_sees_the_first(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    item = ExecutionToSuspend(fence=claim.fence, waits=[wish()])

    first, second = await waits.suspend_many(conn, [item, item])

    assert isinstance(first, Suspended)
    assert isinstance(second, ExecutionNotActive)
    assert (await given.events(claim.execution_id)).count("execution_suspended") == 1


async def test_without_waiting_a_locked_execution_delays_no_other(given: Given, connect: Connect) -> None:
    held, free = await several(given, 2)
    other = await connect()
    items = [ExecutionToSuspend(fence=claim.fence, waits=[wish()]) for claim in (held, free)]

    async with other.transaction():
        await executions.change_priority(other, held.execution_id, 7, by="ops")
        answers = await waits.suspend_many(given.conn, items, wait=False)

    assert isinstance(answers[0], RowLocked)
    assert isinstance(answers[1], Suspended)


async def test_a_thousand_executions_suspend_in_one_call(conn: Connection, given: Given) -> None:
    claims = await several(given, 1_000)

    answers = await waits.suspend_many(
        conn, [ExecutionToSuspend(fence=claim.fence, waits=[wish(ANY)]) for claim in claims]
    )

    assert all(isinstance(answer, Suspended) for answer in answers)
    assert len({answer.waitpoints[0].token for answer in answers if isinstance(answer, Suspended)}) == 1_000
    sent = [
        Waiting(claim, answer).signal() for claim, answer in zip(claims, answers, strict=True)
        if isinstance(answer, Suspended)
    ]  # fmt: skip
    assert {getattr(done, "effect", done) for done in await waits.deliver_signals(conn, sent)} == {
        "resume_condition_satisfied"
    }


async def test_an_empty_list_of_waits_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidSuspension) as refused:
            await waits.suspend(conn, claim.fence, [])

    assert refused.value.fields == {"cause": "waits_empty"}


async def test_the_same_place_twice_is_one_wait(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    twice = [Wish(name="answer", occurrence=1, what=wish(ANY)), Wish(name="answer", occurrence=1, what=wish(ANY))]

    await waits.suspend(conn, claim.fence, twice)

    assert len(await waits.list_waits(conn, claim.execution_id)) == 1


async def test_waits_on_the_same_waitpoint_follow_each_other(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    wishes = [Wish(name="more", occurrence=number, what=wish(ANY)) for number in (1, 2)]
    asked = Waiting(claim, await waits.suspend(conn, claim.fence, wishes))

    assert (await waits.deliver_signal(conn, asked.signal())).effect == "resume_condition_satisfied"
    [claim] = await given.claim()
    assert [entry.occurrence for entry in claim.journal.entries] == [1] if claim.journal else False
    assert (await waits.suspend(conn, claim.fence, wishes[1:])).outcome == "suspended"


async def test_closing_a_waitpoint_touches_no_index(conn: Connection, given: Given) -> None:
    claims = await several(given, 20)
    for claim in claims:
        asked = Waiting(claim, await waits.suspend(conn, claim.fence, wish(ANY)))
        await waits.deliver_signal(conn, asked.signal())
    await given.rows("select pg_stat_force_next_flush()")
    [row] = await given.rows(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'flowfabric.waitpoints'::regclass"
    )

    assert (row["n_tup_upd"], row["n_tup_hot_upd"]) == (20, 20)


@pytest.mark.parametrize("stale", [True, False])
async def test_a_suspension_that_a_budget_made_is_not_ended_by_an_earlier_wait(given: Given, stale: bool) -> None:
    """A wait that stayed open while the run continued ends, and the execution still waits for its budget."""
    claim = await given.claimed()
    point = await waits.create_waitpoint(given.conn, claim.fence, "w")
    nap = Wish(name="nap", occurrence=1, what=claim.expires_at + timedelta(hours=1))
    await waits.suspend(given.conn, claim.fence, [Wish(name="w", occurrence=1, what=wish(ANY)), nap])
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)
    [claim] = await given.claim()
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 1}, on_hard_limit="suspend")
    await budgets.report_usage(given.conn, report_of(5, "team", fence=claim.fence))
    if stale:
        await waits.deliver_signal(given.conn, to(claim.execution_id, point.waitpoint_id, point.token))

    [listed] = (await waits.list_suspended(given.conn)).items
    assert listed.reason_code == "paused_by_budget"
    await budgets.change_budget(given.conn, "team", hard_limits={"tokens": 10}, by="ops")
    [claim] = await given.claim()
    assert {entry.name: entry.by for entry in claim.journal.entries} == (  # type: ignore[union-attr]
        {"nap": "timeout", "w": "signal"} if stale else {"nap": "timeout"}
    )


async def test_a_lost_lease_is_told_before_the_waits_are_read(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(hours=1)

    [answer] = await waits.suspend_many(conn, [ExecutionToSuspend(fence=claim.fence, waits=[wish({"kind": "?"})])])

    assert isinstance(answer, LeaseLost)
