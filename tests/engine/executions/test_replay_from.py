"""Replays that forget what was saved from a step on, or everything, also of executions whose code has changed."""

import asyncio
from datetime import timedelta

import pytest

from flowfabric.engine import attempts, executions, holds, steps, waits
from flowfabric.errors import (
    ExecutionNotTerminal,
    InvalidBody,
    InvalidTime,
    StepNotFound,
)
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, HoldChange, PublicState, Step, Suspension
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given


async def saved(given: Given) -> Claim:
    """A running execution that has saved a, then the wait look, then b and c twice."""
    claim = await given.claimed()
    await save(given, claim, "a")
    await waits.suspend(
        given.conn, claim.fence, Suspension(condition={"kind": "operator_only"}, name="look", occurrence=1)
    )
    await waits.resume(given.conn, claim.execution_id, by="ops")
    [claim] = await given.claim()
    for name, occurrence in [("b", 1), ("c", 1), ("c", 2)]:
        await save(given, claim, name, occurrence)
    return claim


async def save(given: Given, claim: Claim, name: str, occurrence: int = 1) -> None:
    await steps.save_step(given.conn, Step(fence=claim.fence, name=name, occurrence=occurrence, result=b"1"))


async def completed(given: Given) -> ExecutionId:
    claim = await saved(given)
    await attempts.complete(given.conn, claim.fence)
    return claim.execution_id


async def held(given: Given) -> ExecutionId:
    claim = await saved(given)
    await holds.hold_changed(given.conn, claim.fence, "an earlier run saved 'b'", steps=["b"])
    return claim.execution_id


async def kept(given: Given, execution_id: ExecutionId) -> list[str]:
    journal = await steps.read_journal(given.conn, execution_id)
    return [f"{entry.name}{entry.occurrence}" for entry in journal]


@pytest.mark.parametrize(
    ("step", "occurrence", "left"),
    [
        ("a", 1, []),
        ("look", 1, ["a1"]),
        ("b", 1, ["a1", "look1"]),
        ("c", 1, ["a1", "b1", "look1"]),
        ("c", 2, ["a1", "b1", "c1", "look1"]),
    ],
)
async def test_a_replay_from_a_step_forgets_what_was_saved_from_it_on(
    conn: Connection, given: Given, step: str, occurrence: int, left: list[str]
) -> None:
    execution_id, other = await completed(given), await completed(given)

    await executions.replay(conn, execution_id, by="ops", from_step=step, from_occurrence=occurrence)

    assert await kept(given, execution_id) == left
    assert len(await kept(given, other)) == 5
    event = await given.event("execution_replayed")
    assert (event["from_step"], event["from_occurrence"], event["forgotten_count"]) == (step, occurrence, 5 - len(left))
    assert event["forgotten"][0] == step


async def test_a_held_execution_replayed_from_a_step_continues_in_its_attempt(conn: Connection, given: Given) -> None:
    execution_id = await held(given)

    moved = await executions.replay(conn, execution_id, by="ops", from_step="b")

    assert (moved.public_state, moved.lanes) == (PublicState.WAITING, ["default"])
    [again] = await given.claim()
    assert (again.attempt.number, again.resumed, await kept(given, execution_id)) == (1, True, ["a1", "look1"])
    assert (await executions.describe(conn, execution_id)).counts.replays == 0
    await attempts.complete(conn, again.fence)


async def test_a_held_execution_replayed_from_scratch_forgets_everything(conn: Connection, given: Given) -> None:
    execution_id = await held(given)

    await executions.replay(conn, execution_id, by="ops", from_scratch=True)

    assert (await kept(given, execution_id), len(await given.claim())) == ([], 1)
    event = await given.event("execution_replayed")
    assert (event["from_scratch"], event["forgotten_count"], event["attempt"]) == (True, 5, 1)


async def test_a_held_execution_needs_a_step_or_from_scratch(conn: Connection, given: Given) -> None:
    execution_id = await held(given)

    with pytest.raises(ExecutionNotTerminal, match="use unhold to continue"):
        await executions.replay(conn, execution_id, by="ops")
    with pytest.raises(InvalidTime):
        await executions.replay(conn, execution_id, by="ops", from_scratch=True, deadline=timedelta(days=-1))
    assert (await given.ticket(execution_id))["reason"] == "code_changed"


async def test_a_held_execution_keeps_its_deadline_unless_another_is_given(conn: Connection, given: Given) -> None:
    claim = await given.claimed(deadline=timedelta(hours=1))
    before = (await given.ticket(claim.execution_id))["deadline_at"]
    for deadline, later in [(None, timedelta()), (timedelta(hours=3), timedelta(hours=2))]:
        await holds.hold_changed(conn, claim.fence, "changed")
        await executions.replay(conn, claim.execution_id, by="ops", from_scratch=True, deadline=deadline)
        now = (await given.ticket(claim.execution_id))["deadline_at"]
        assert abs(now - before - later) < timedelta(minutes=1)
        [claim] = await given.claim()


async def test_an_execution_that_an_operator_holds_is_not_replayed(conn: Connection, given: Given) -> None:
    execution_id = await given.held()

    with pytest.raises(ExecutionNotTerminal):
        await executions.replay(conn, execution_id, by="ops", from_scratch=True)


@pytest.mark.parametrize("state", [completed, held])
async def test_an_unknown_step_is_refused_with_the_names_that_exist(
    conn: Connection, given: Given, state: object
) -> None:
    assert callable(state)
    execution_id = await state(given)
    before = await kept(given, execution_id), await given.events()

    with pytest.raises(StepNotFound, match=r"saved: a, look, b, c; use look") as refused:
        await executions.replay(conn, execution_id, by="ops", from_step="lok")
    assert refused.value.fields == {"names": ["a", "look", "b", "c"]}
    with pytest.raises(StepNotFound, match="'c', occurrence 3"):
        await executions.replay(conn, execution_id, by="ops", from_step="c", from_occurrence=3)
    assert (await kept(given, execution_id), await given.events()) == before


async def test_nothing_is_saved_and_a_step_is_asked_for(conn: Connection, given: Given) -> None:
    with pytest.raises(StepNotFound, match="saved: nothing"):
        await executions.replay(conn, await given.completed(), by="ops", from_step="a")


async def test_a_step_and_from_scratch_exclude_each_other(conn: Connection, given: Given) -> None:
    with pytest.raises(InvalidBody) as refused:
        await executions.replay(conn, await completed(given), by="ops", from_step="a", from_scratch=True)
    assert refused.value.fields == {"field": "from_step"}


async def test_of_two_operators_who_replay_a_held_execution_one_is_refused(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    execution_id = await held(given)

    async with one.transaction():
        await executions.replay(one, execution_id, by="ada", from_step="b")
        second = asyncio.create_task(executions.replay(other, execution_id, by="bob", from_scratch=True))
        await given.blocked(other, second)
    with pytest.raises(ExecutionNotTerminal):
        await second
    assert await kept(given, execution_id) == ["a1", "look1"]


async def test_an_unhold_beside_a_replay_does_nothing(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    execution_id = await held(given)

    async with one.transaction():
        await executions.replay(one, execution_id, by="ada", from_step="b")
        unhold = asyncio.create_task(holds.unhold(other, execution_id, by="bob"))
        await given.blocked(other, unhold)
    assert (await unhold).outcome is HoldChange.NOOP
    assert (await given.events(execution_id)).count("execution_unheld") == 0


async def test_of_two_entries_of_a_sleep_the_earlier_counts(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    due = claim.expires_at
    await steps.save_step(conn, Step(fence=claim.fence, name="nap", occurrence=1, due_at=due))
    await save(given, claim, "b")
    await attempts.complete(conn, claim.fence)

    await executions.replay(conn, claim.execution_id, by="ops", from_step="nap")

    assert await kept(given, claim.execution_id) == []
