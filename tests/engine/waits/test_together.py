"""Several waits as one suspension: each ends independently, and a wait that is no longer requested is released."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from flowfabric.engine import executions, steps, waits
from flowfabric.errors import InvalidSuspension, InvalidTime, LeaseLost, WaitpointClosed
from flowfabric.model import Claim, CreatedWaitpoint, Delivered, SignalToSend, Suspended, Suspension, Wish
from tests.given import Given


def signal(name: str, *, choice: int | None = None, **options: Any) -> Wish:
    wanted = Suspension(condition={"kind": "single", "waitpoint": name}, waitpoints=[name], **options)
    return Wish(name=name, occurrence=1, what=wanted, choice=choice)


def sleep(until: datetime, *, name: str = "nap", choice: int | None = None) -> Wish:
    return Wish(name=name, occurrence=1, what=until, choice=choice)


async def suspended(given: Given, claim: Claim, *wishes: Wish, key: str | None = None) -> Suspended:
    return await waits.suspend(given.conn, claim.fence, wishes, idempotency_key=key)


async def made(given: Given, claim: Claim, key: str) -> CreatedWaitpoint:
    return await waits.create_waitpoint(given.conn, claim.fence, key)


async def sent(given: Given, claim: Claim, point: CreatedWaitpoint) -> Delivered:
    hello = SignalToSend(
        execution_id=claim.execution_id, waitpoint_id=point.waitpoint_id, token=point.token, name="hello"
    )
    return await waits.deliver_signal(given.conn, hello)


async def over(given: Given, claim: Claim) -> dict[str, str | None]:
    """The waits and sleeps in the journal, and what ended each."""
    journal = await steps.read_journal(given.conn, claim.execution_id)
    return {entry.name: entry.by for entry in journal}


async def test_an_execution_resumes_when_all_its_waits_have_ended(given: Given) -> None:
    claim = await given.claimed()
    a, b = await made(given, claim, "a"), await made(given, claim, "b")
    assert (await suspended(given, claim, signal("a"), signal("b"))).outcome == "suspended"

    assert (await sent(given, claim, b)).effect == "appended_to_waitpoint"
    with pytest.raises(WaitpointClosed):
        await sent(given, claim, b)
    assert await over(given, claim) == {"b": "signal"}
    assert (await sent(given, claim, a)).effect == "resume_condition_satisfied"
    [claim] = await given.claim()
    assert (await given.events(claim.execution_id)).count("execution_suspended") == 1


async def test_buffered_signals_count(given: Given) -> None:
    claim = await given.claimed()
    for key in ("a", "b"):
        await sent(given, claim, await made(given, claim, key))

    assert (await suspended(given, claim, signal("a"), signal("b"))).outcome == "already_satisfied"
    assert await over(given, claim) == {"a": "signal", "b": "signal"}
    assert (await given.ticket(claim.execution_id))["phase"] == "active"


async def test_a_repeated_call_returns_the_first_answer(given: Given) -> None:
    claim = await given.claimed()
    first = await suspended(given, claim, signal("a"), signal("b"), key="run 1")

    async with given.nothing_changes():
        assert await suspended(given, claim, signal("a"), signal("b"), key="run 1") == first


async def test_a_timeout_resumes_the_execution_and_keeps_its_other_waits(given: Given) -> None:
    claim = await given.claimed()
    a = await made(given, claim, "a")
    nap, night = claim.expires_at + timedelta(hours=1), claim.expires_at + timedelta(hours=8)
    wishes = [
        signal("a", timeout=timedelta(days=1), timeout_behavior="auto_resume"),
        sleep(nap),
        sleep(night, name="night"),
    ]
    await suspended(given, claim, *wishes)
    before = await given.rows("select timeout_at from flowfabric.waits where name = 'a'")
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)

    [claim] = await given.claim()
    assert await over(given, claim) == {"nap": "timeout", "night": None}
    assert (await sent(given, claim, a)).effect == "appended_to_waitpoint", "also while the run is active"
    answer = await suspended(given, claim, wishes[0], wishes[2])
    assert answer.outcome == "suspended", "the night is not over"
    assert await over(given, claim) == {"a": "signal", "nap": "timeout", "night": None}
    assert before[0]["timeout_at"] is not None


async def test_the_timeout_of_a_wait_that_is_requested_again_keeps_running(given: Given) -> None:
    claim = await given.claimed()
    late = signal("a", timeout=timedelta(hours=3), timeout_behavior="auto_resume")
    await suspended(given, claim, late, sleep(claim.expires_at + timedelta(hours=1)))
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)
    [claim] = await given.claim()
    await suspended(given, claim, late)
    await given.time_passes(minutes=61)
    await waits.time_out_waits(given.conn)

    assert await over(given, claim) == {"a": "timeout", "nap": "timeout"}


async def test_a_wait_also_times_out_while_the_run_is_active(given: Given) -> None:
    claim = await given.claimed()
    late = signal("a", timeout=timedelta(hours=3), timeout_behavior="auto_resume")
    await suspended(given, claim, late, sleep(claim.expires_at + timedelta(hours=1)))
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)
    [claim] = await given.claim(lease=timedelta(hours=1))
    await given.time_passes(minutes=59, seconds=45)
    [row] = await given.rows(
        "select timeout_at - flowfabric.clock() as remaining from flowfabric.waits where name = 'a'"
    )
    await given.time_passes(seconds=row["remaining"].total_seconds())
    await waits.time_out_waits(given.conn)

    assert await over(given, claim) == {"a": "timeout", "nap": "timeout"}
    assert (await given.ticket(claim.execution_id))["phase"] == "active"


@pytest.mark.parametrize(("behavior", "state"), [("fail", "failed"), ("cancel", "cancelled"), ("expire", "expired")])
async def test_a_timeout_that_ends_the_execution_ends_all_its_waits(given: Given, behavior: str, state: str) -> None:
    claim = await given.claimed()
    await suspended(given, claim, signal("a", timeout=timedelta(hours=1), timeout_behavior=behavior), signal("b"))
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)

    assert (await executions.describe(given.conn, claim.execution_id)).state.public_state == state
    assert await given.rows("select from flowfabric.waits where ended_at is null") == []
    assert await given.rows("select from flowfabric.waitpoints where state <> 'closed'") == []


async def test_an_escalation_does_not_stop_a_simultaneous_auto_resume(given: Given) -> None:
    claim = await given.claimed()
    times = {"a": "auto_resume", "b": "escalate"}
    wishes = [signal(key, timeout=timedelta(hours=1), timeout_behavior=behavior) for key, behavior in times.items()]
    await suspended(given, claim, *wishes)
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)

    ticket = await given.ticket(claim.execution_id)
    assert (ticket["phase"], ticket["reason"]) == ("runnable", "waiting_for_worker")
    escalated, _, resumed = (await given.events(claim.execution_id))[-3:]
    assert (escalated, resumed) == ("suspension_escalated", "execution_resumed")


async def test_the_first_of_a_choice_releases_the_others_and_their_tokens_stay_valid(given: Given) -> None:
    claim = await given.claimed()
    a, b = await made(given, claim, "a"), await made(given, claim, "b")
    await suspended(
        given,
        claim,
        signal("a", choice=1),
        signal("b", choice=1),
        sleep(claim.expires_at + timedelta(hours=1), choice=1),
    )

    assert (await sent(given, claim, a)).effect == "resume_condition_satisfied"
    assert await over(given, claim) == {"a": "signal"}
    assert (await sent(given, claim, b)).effect == "buffered_for_pending_waitpoint"
    [claim] = await given.claim()
    assert (await suspended(given, claim, signal("b"))).outcome == "already_satisfied"


async def test_if_several_of_a_choice_are_already_satisfied_one_wins(given: Given) -> None:
    claim = await given.claimed()
    for key in ("a", "b"):
        await sent(given, claim, await made(given, claim, key))

    answer = await suspended(given, claim, signal("a", choice=1), signal("b", choice=1))
    assert answer.outcome == "already_satisfied"
    assert await over(given, claim) == {"a": "signal"}


async def test_a_wait_that_is_no_longer_requested_is_released(given: Given) -> None:
    claim = await given.claimed()
    a = await made(given, claim, "a")
    await suspended(given, claim, signal("a"), sleep(claim.expires_at + timedelta(hours=1)))
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)
    [claim] = await given.claim()
    await suspended(given, claim, signal("other"), signal("another"))

    assert (await sent(given, claim, a)).effect == "buffered_for_pending_waitpoint"
    assert (await waits.list_suspended(given.conn)).items[0].waitpoint_keys == ["another", "other"]


async def test_one_invalid_wait_refuses_all_and_the_lease_is_kept(given: Given) -> None:
    claim = await given.claimed()
    wrong = Suspension(condition={"kind": "single", "waitpoint": "x"}, waitpoints=["y"])

    async with given.nothing_changes():
        with pytest.raises(InvalidSuspension):
            await suspended(given, claim, signal("a"), Wish(name="x", occurrence=1, what=wrong))
    assert (await given.ticket(claim.execution_id))["phase"] == "active"


async def test_a_sleep_of_more_than_ten_years_is_refused(given: Given) -> None:
    claim = await given.claimed()

    async with given.nothing_changes():
        with pytest.raises(InvalidTime):
            await suspended(given, claim, signal("a"), sleep(claim.expires_at + timedelta(days=4_000)))


async def test_a_stale_owner_cannot_suspend(given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(hours=1)

    async with given.nothing_changes():
        with pytest.raises(LeaseLost):
            await suspended(given, claim, signal("a"), signal("b"))


async def test_several_waits_are_described_and_listed_as_one_suspension(given: Given) -> None:
    claim = await given.claimed()
    soon = claim.expires_at + timedelta(hours=1)
    await suspended(given, claim, signal("a"), signal("b"), sleep(soon))

    [item] = (await waits.list_suspended(given.conn)).items
    assert (item.waitpoint_keys, item.timeout_at) == (["a", "b"], soon)
    described = await executions.describe(given.conn, claim.execution_id)
    assert described.suspension is not None
    assert (described.suspension.waitpoint_keys, described.suspension.timeout_at) == (["a", "b"], soon)
    said = (await executions.explain(given.conn, claim.execution_id)).sentence
    assert "waits for a signal on waitpoint a, waits for a signal on waitpoint b, sleeps until" in said


async def test_a_replay_requests_open_waits_again_and_keeps_ended_ones(given: Given) -> None:
    claim = await given.claimed()
    a = await made(given, claim, "a")
    await suspended(given, claim, signal("a"), signal("b"))
    await sent(given, claim, a)
    await executions.cancel(given.conn, claim.execution_id)
    await executions.replay(given.conn, claim.execution_id, by="ops")

    [claim] = await given.claim()
    assert await over(given, claim) == {"a": "signal"}
    assert (await suspended(given, claim, signal("b"), signal("c"))).outcome == "suspended"
