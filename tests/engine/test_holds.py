"""Holds: an operator keeps a single execution from being claimed, and releases it."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from flowfabric.engine import executions, holds, lanes
from flowfabric.errors import ExecutionEnded, ExecutionNotFound, ExecutionNotRunnable, InvalidBody, InvalidText
from flowfabric.ids import mint_execution_id
from flowfabric.model import HoldChange, PublicState, Unheld
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.standins import claimed, stored
from tests.given import Given

UNHELD = Unheld(outcome=HoldChange.UNHELD, public_state=PublicState.WAITING, lane="default")


async def test_a_held_execution_cannot_be_claimed(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()

    assert await holds.hold(conn, execution_id, by="ada", reason="to look at it") is HoldChange.HELD

    held = await given.ticket(execution_id)
    assert [held["phase"], held["eligibility"], held["reason"]] == [
        "runnable",
        "blocked_by_operator",
        "paused_by_operator",
    ]


async def test_unhold_restores_the_state_without_the_hold(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(priority=3)
    before = await given.ticket(execution_id)
    await holds.hold(conn, execution_id, by="ada")

    assert await holds.unhold(conn, execution_id, by="ada") == UNHELD
    assert await given.ticket(execution_id) == before


@pytest.mark.parametrize("reason", ["waiting_for_delay", "waiting_for_retry_backoff", "waiting_for_resume_delay"])
async def test_a_delay_continues_during_a_hold(conn: Connection, given: Given, reason: str) -> None:
    execution_id = await given.submitted(delay=timedelta(hours=2))
    await stored(given, execution_id, f"reason = '{reason}'")
    before = await given.ticket(execution_id)
    await holds.hold(conn, execution_id, by="ada")
    await given.time_passes(hours=1)

    unheld = await holds.unhold(conn, execution_id, by="ada")

    assert unheld == Unheld(outcome=HoldChange.UNHELD, public_state=PublicState.DELAYED, lane="default")
    assert await given.ticket(execution_id) == before


async def test_a_delay_may_end_during_a_hold(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(delay=timedelta(hours=1))
    await holds.hold(conn, execution_id, by="ada")
    await given.time_passes(hours=1)
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "blocked_by_operator"

    assert await holds.unhold(conn, execution_id, by="ada") == UNHELD

    after = await given.ticket(execution_id)
    assert [after["eligibility"], after["reason"], after["hold"]] == ["eligible_now", "waiting_for_worker", None]


async def test_unhold_in_a_paused_lane_leaves_the_execution_waiting(conn: Connection, given: Given) -> None:
    execution_id = await given.held(lane="a")
    await lanes.pause_lane(conn, "a", by="ada")

    assert (await holds.unhold(conn, execution_id, by="ada")).public_state is PublicState.WAITING
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "blocked_by_lane_state"


async def test_a_repeated_hold_or_unhold_does_nothing(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ada", reason="first")
    held = await given.ticket(execution_id)
    assert await holds.hold(conn, execution_id, by="bob", reason="second") is HoldChange.NOOP
    assert await given.ticket(execution_id) == held

    await holds.unhold(conn, execution_id, by="ada")
    noop = await holds.unhold(conn, execution_id, by="bob")
    assert noop == Unheld(outcome=HoldChange.NOOP, public_state=PublicState.WAITING)
    assert await given.events(execution_id) == ["execution_submitted", "execution_held", "execution_unheld"]


async def test_the_event_of_a_hold_names_the_operator_and_the_reason(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ada", reason="odd")
    await holds.unhold(conn, execution_id, by="bob")

    events = await given.rows("select kind, by, detail from flowfabric.events where execution is not null order by id")
    assert [(e["kind"], e["by"], msgspec.json.decode(e["detail"])) for e in events[1:]] == [
        ("execution_held", "ada", {"reason": "odd"}),
        ("execution_unheld", "bob", {}),
    ]


@pytest.mark.parametrize("act", [holds.hold, holds.unhold])
async def test_an_active_execution_cannot_be_held(conn: Connection, given: Given, act: object) -> None:
    assert callable(act)
    runs, waits = await given.submitted(), await given.submitted()
    await claimed(given, runs)
    await stored(given, waits, "phase = 'suspended', reason = 'waiting_for_signal'")
    before = [await given.ticket(runs), await given.ticket(waits)], await given.events()

    for execution_id, phase in [(runs, "active"), (waits, "suspended")]:
        with pytest.raises(ExecutionNotRunnable) as refused:
            await act(conn, execution_id, by="ada")
        assert refused.value.fields == {"phase": phase}
    assert ([await given.ticket(runs), await given.ticket(waits)], await given.events()) == before


@pytest.mark.parametrize("act", [holds.hold, holds.unhold])
async def test_an_execution_that_has_ended_or_does_not_exist_cannot_be_held(
    conn: Connection, given: Given, act: object
) -> None:
    assert callable(act)
    execution_id = await given.cancelled()
    before = await given.events()

    with pytest.raises(ExecutionEnded) as refused:
        await act(conn, execution_id, by="ada")
    assert refused.value.fields == {"outcome": "cancelled"}
    with pytest.raises(ExecutionNotFound):
        await act(conn, mint_execution_id(), by="ada")
    assert (await given.events(), await given.count("tickets")) == (before, 0)


@pytest.mark.parametrize("act", [holds.hold, holds.unhold])
async def test_the_name_of_the_operator_has_1_to_256_bytes(conn: Connection, given: Given, act: object) -> None:
    assert callable(act)
    execution_id = await given.held()
    before = await given.ticket(execution_id), await given.events()

    for by in ("", "x" * 257):
        with pytest.raises(InvalidBody, match="1 to 256 bytes") as refused:
            await act(conn, execution_id, by=by)
        assert refused.value.fields == {"field": "by"}
    with pytest.raises(InvalidText):
        await act(conn, execution_id, by="\0")
    assert (await given.ticket(execution_id), await given.events()) == before


async def test_a_long_reason_is_truncated(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    await holds.hold(conn, execution_id, by="ada", reason="\0" + "x" * 5_000)

    [event] = await given.rows(
        "select detail ->> 'reason' as reason from flowfabric.events where kind = 'execution_held'"
    )
    assert event["reason"] == "\ufffd" + "x" * 4_093
    assert event["reason"] in (await executions.explain(conn, execution_id)).sentence


async def test_a_hold_waits_for_a_concurrent_change(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    execution_id = await given.submitted()

    async with one.transaction():
        await executions.cancel(one, execution_id)
        hold = asyncio.create_task(holds.hold(other, execution_id, by="ada"))
        await blocked(given, other, hold)
    with pytest.raises(ExecutionEnded):
        await hold
    assert await given.events(execution_id) == ["execution_submitted", "execution_cancelled"]
