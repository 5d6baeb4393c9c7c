"""Executions that are held because their code has changed."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from flowfabric.cli import remedies
from flowfabric.doctor.work import judge_work
from flowfabric.engine import attempts, claims, doctor, executions, holds
from flowfabric.engine.overview import overview
from flowfabric.engine.steps import save_step
from flowfabric.errors import ExecutionNotActive, InvalidBody, InvalidText, LeaseLost
from flowfabric.ids import ExecutionId
from flowfabric.model import Begin, ChangedCode, Claim, Held, HoldChange, Step
from flowfabric.postgres.driver import Connection
from tests.given import Given

HELD = Held(outcome=HoldChange.HELD)


async def changed(given: Given, **options: Any) -> ExecutionId:
    """An execution that is held because its code has changed."""
    claim = await given.claimed(**options)
    await holds.hold_changed(given.conn, claim.fence, "an earlier run saved 'charge'", steps=["charge"])
    return claim.execution_id


async def test_an_execution_whose_code_has_changed_is_held(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    assert await holds.hold_changed(conn, claim.fence, "saved 'charge'", steps=["charge"]) == HELD

    found = await executions.describe(conn, claim.execution_id)
    assert (found.state.eligibility_state, found.state.blocking_reason) == ("blocked_by_operator", "code_changed")
    assert (found.explanation.waits_for, found.explanation.released_by) == ("operator", "unhold")
    assert "because its code has changed: saved 'charge'; deploy a fix" in found.explanation.sentence
    assert await given.claim() == []
    event = await given.event("execution_held")
    assert (event["code_changed"], event["steps"], event["reason"]) == (True, ["charge"], "saved 'charge'")


async def test_the_attempt_continues_after_unhold(conn: Connection, given: Given) -> None:
    claim = await given.claimed(policy={"attempt_timeout_ms": 60_000})
    await save_step(conn, Step(fence=claim.fence, name="charge", occurrence=1, result=b"7"))
    await given.time_passes(seconds=20)
    await claims.renew(conn, claim.fence)
    await holds.hold_changed(conn, claim.fence, "changed")
    await given.time_passes(hours=3)

    await holds.unhold(conn, claim.execution_id, by="ops")

    [again] = await given.claim()
    assert (again.attempt.number, again.resumed, again.fence.epoch) == (1, True, 2)
    assert again.journal is not None
    assert [entry.name for entry in again.journal.entries] == ["charge"]
    assert again.attempt_deadline is not None
    left = again.attempt_deadline - again.expires_at + timedelta(seconds=30)
    assert timedelta(seconds=39) < left <= timedelta(seconds=40)


async def test_a_stale_report_of_changed_code_is_refused(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await attempts.delay(conn, claim.fence)
    before = await given.ticket(claim.execution_id)

    with pytest.raises(ExecutionNotActive):
        await holds.hold_changed(conn, claim.fence, "changed")
    [again] = await given.claim()
    with pytest.raises(LeaseLost):
        await holds.hold_changed(conn, claim.fence, "changed")
    assert before["reason"] == "waiting_for_worker"
    assert (await given.ticket(again.execution_id))["phase"] == "active"


async def test_one_bad_report_of_many_does_not_harm_the_others(conn: Connection, given: Given) -> None:
    claimed: list[Claim] = [await given.claimed(lane=lane) for lane in "abcd"]
    steps = [["x"], ["x"] * 101, ["\0"], ["y"] * 100]

    answers = await holds.hold_changed_many(
        conn, [ChangedCode(fence=c.fence, reason="r", steps=s) for c, s in zip(claimed, steps, strict=True)]
    )

    assert [type(answer) for answer in answers] == [Held, InvalidBody, InvalidText, Held]
    phases = [(await given.ticket(claim.execution_id))["phase"] for claim in claimed]
    assert phases == ["runnable", "active", "active", "runnable"]


async def test_the_same_execution_twice_in_one_call_is_held_once(conn: Connection, given: Given) -> None:
    claim = await given.claimed()

    answers = await holds.hold_changed_many(conn, [ChangedCode(fence=claim.fence, reason="r")] * 2)

    assert [type(answer) for answer in answers] == [Held, ExecutionNotActive]
    assert (await given.events(claim.execution_id)).count("execution_held") == 1


async def test_overview_and_doctor_show_executions_whose_code_has_changed(conn: Connection, given: Given) -> None:
    execution_id = await changed(given)
    await given.held()

    stuck = {each.reason: each for each in (await overview(conn)).stuck}
    assert stuck.keys() == {"code_changed", "blocked_by_operator"}
    assert stuck["code_changed"].subject == str(execution_id)
    assert f"ff executions unhold {execution_id}" in remedies.stuck_remedy(stuck["code_changed"])
    [finding] = judge_work(await doctor.diagnose(conn))
    assert (finding.check, finding.value, finding.level) == ("code", "1 waiting", "wrong")
    assert "because its code has changed: an earlier run saved 'charge'" in finding.problem


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (None, None, "saved 'charge'; deploy a fix"),
        (None, 1, "saved 'charge'; its task had version 1 then, as now; deploy a fix"),
        (1, 3, "saved 'charge'; its task had version 1 then and has version 3 now; deploy a fix"),
    ],
)
async def test_the_version_of_the_task_then_and_now_is_named(
    conn: Connection, given: Given, then: int | None, now: int | None, words: str
) -> None:
    claim = await given.claimed()
    await claims.mark_begun_many(conn, [Begin(fence=claim.fence, version=then)])
    await holds.hold_changed(conn, claim.fence, "saved 'charge'", steps=["charge"], version=now)

    assert words in (await executions.explain(conn, claim.execution_id)).sentence
    event = await given.event("execution_held")
    assert (event.get("version_then"), event.get("version_now")) == ((then or 1) if now else None, now)


async def test_the_remedy_names_the_ways_out(conn: Connection, given: Given) -> None:
    execution_id = await changed(given)

    found = remedies.remedy(await executions.describe(conn, execution_id), served=True)

    assert f"ff executions unhold {execution_id}" in found
    assert f"ff executions replay {execution_id} --from STEP, or --from-scratch" in found


async def test_an_execution_whose_code_has_changed_can_be_cancelled_and_expires(conn: Connection, given: Given) -> None:
    cancelled, expires = await changed(given), await changed(given, deadline=timedelta(hours=1))

    await executions.cancel(conn, cancelled, by="ops")
    await given.time_passes(hours=2)
    await executions.expire_executions(conn)

    assert [await given.state(each) for each in (cancelled, expires)] == ["cancelled", "expired"]


async def test_a_long_reason_is_truncated(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await holds.hold_changed(conn, claim.fence, "x" * 10_000, steps=["\u00e9" * 64] * 100)

    hold = msgspec.json.decode((await given.ticket(claim.execution_id))["hold"])
    assert (len(hold["reason"]), len(hold["steps"])) == (4_096, 100)
