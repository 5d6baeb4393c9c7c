"""Children: submitted once per place, their ends delivered to their parents, and cancelled with them."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, children, claims, executions, steps, waits
from flowfabric.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidSuspension,
    LeaseLost,
    SignalLimitExceeded,
    TooManySteps,
)
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import (
    ChildToSubmit,
    Claim,
    FailureClass,
    FoundChild,
    JournalEntry,
    SignalToSend,
    Suspension,
    Wish,
)
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.given import Given, submission

NEW = FoundChild(outcome="new")


def asked(parent: Claim, occurrence: int = 1, *, ending: Any = "cancel", **options: Any) -> ChildToSubmit:
    return ChildToSubmit(
        fence=parent.fence,
        name="submit:child",
        occurrence=occurrence,
        execution_id=mint_execution_id(),
        submission=submission(lane="nursery", **options),
        on_parent_end=ending,
    )


async def born(given: Given, parent: Claim, many: int = 1, **options: Any) -> list[ExecutionId]:
    """Children of a running parent, waiting for a worker of their lane."""
    wanted = [asked(parent, number, **options) for number in range(1, many + 1)]
    assert await children.submit_children(given.conn, wanted) == [NEW] * many
    return [child.execution_id for child in wanted]


async def waits_for(given: Given, parent: Claim, *of: ExecutionId, choice: int | None = None) -> str:
    wishes = [Wish(name=f"child:{child}", occurrence=1, what=child, choice=choice) for child in of]
    return (await waits.suspend(given.conn, parent.fence, wishes)).outcome


async def completed(given: Given, result: bytes = b"1") -> Claim:
    """The next waiting child, claimed and completed."""
    [claim] = await given.claim(lanes=["nursery"])
    await attempts.complete(given.conn, claim.fence, result)
    return claim


async def answers(given: Given, parent: Claim) -> list[JournalEntry]:
    journal = await steps.read_journal(given.conn, parent.execution_id)
    return [entry for entry in journal if entry.kind == "wait"]


async def test_the_end_of_a_child_resumes_its_parent_in_a_later_transaction(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    assert await waits_for(given, parent, child) == "suspended"

    await completed(given, b'"done"')
    assert await given.state(parent.execution_id) == "suspended", "not in the transaction of the child"
    swept = await children.deliver_child_ends(given.conn)
    assert (swept.moved, list(swept.lanes)) == (1, ["default"])
    [entry] = await answers(given, parent)
    [signal] = entry.signals
    assert (signal.name, signal.category, signal.source_type, signal.payload) == (
        "completed",
        "child",
        "system",
        b'"done"',
    )
    assert signal.source_identity == str(child)
    assert await given.count("child_ends") == 0


async def test_a_parent_resumes_when_its_last_child_has_ended(given: Given) -> None:
    parent = await given.claimed()
    await waits_for(given, parent, *await born(given, parent, 3))
    for number in (1, 2, 3):
        await completed(given)
        await children.deliver_child_ends(given.conn)
        assert (await given.state(parent.execution_id) == "waiting") is (number == 3)
        assert (await children.deliver_child_ends(given.conn)).moved == 0, "notified once"

    assert (await given.events(parent.execution_id)).count("execution_resumed") == 1


async def test_a_child_that_has_already_ended_satisfies_the_wait_immediately(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await completed(given)
    await children.deliver_child_ends(given.conn)

    assert await waits_for(given, parent, child) == "already_satisfied"
    [entry] = await answers(given, parent)
    assert entry.signals[0].payload == b"1"
    assert (await given.ticket(parent.execution_id))["phase"] == "active"


async def test_a_wait_at_the_place_of_a_child_is_kept_until_it_ends_itself(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await completed(given)
    place = Wish(name="place", occurrence=1, what=Suspension(condition={"kind": "operator_only"}, waitpoints=[]))
    nap = Wish(name="nap", occurrence=1, what=parent.expires_at)
    await waits.suspend(given.conn, parent.fence, [place, nap])
    await given.time_passes(minutes=1)
    await waits.time_out_waits(given.conn)
    [parent] = await given.claim()

    again = await waits.suspend(given.conn, parent.fence, [Wish(name="place", occurrence=1, what=child)])

    assert again.outcome == "suspended"
    assert [entry.name for entry in await answers(given, parent) if entry.by] == []


async def test_ends_of_children_do_not_count_towards_the_signal_limit(given: Given) -> None:
    parent = await given.claimed(policy={"max_signals": 1})
    point = await waits.create_waitpoint(given.conn, parent.fence, "paid")
    for child in await born(given, parent, 2):
        await completed(given)
        assert await waits_for(given, parent, child) == "already_satisfied"
    sent = SignalToSend(
        execution_id=parent.execution_id, waitpoint_id=point.waitpoint_id, token=point.token, name="paid"
    )

    assert (await waits.deliver_signal(given.conn, sent)).outcome == "accepted"
    with pytest.raises(SignalLimitExceeded):
        await waits.deliver_signal(given.conn, sent)


async def test_of_two_children_that_have_ended_the_first_wins(given: Given) -> None:
    parent = await given.claimed()
    first, second = await born(given, parent, 2)
    for result in (b"1", b"2"):
        await completed(given, result)

    assert await waits_for(given, parent, second, first, choice=1) == "already_satisfied"
    [entry] = await answers(given, parent)
    assert (entry.name, entry.signals[0].payload) == (f"child:{first}", b"1")


async def test_a_wait_never_misses_the_end_of_its_child(given: Given, connect: Connect) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    wish = Wish(name=f"child:{child}", occurrence=1, what=child)
    assert (await waits.suspend(other, parent.fence, [wish])).outcome == "suspended"

    await completed(given)
    assert (await children.deliver_child_ends(given.conn)).moved == 0, "the parent is locked: left for the next pass"
    await transaction.commit()
    assert (await children.deliver_child_ends(given.conn)).moved == 1
    assert await given.state(parent.execution_id) == "waiting"


async def test_parents_and_children_that_end_together_do_not_deadlock(given: Given, connect: Connect) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await waits_for(given, parent, child)
    [running] = await given.claim(lanes=["nursery"])
    one, two = await connect(), await connect()

    async def end_child() -> None:
        with suppress(ExecutionNotActive):  # cancelled with its parent
            await attempts.complete(one, running.fence)
        await children.deliver_child_ends(one)

    async def end_parent() -> None:
        await executions.cancel(two, parent.execution_id)
        await children.deliver_child_ends(two)

    await asyncio.wait_for(asyncio.gather(end_child(), end_parent()), 10)
    await given.time_passes(seconds=1)  # the child may have been locked
    await children.deliver_child_ends(given.conn)
    assert await given.state(parent.execution_id) == "cancelled"
    assert await given.count("child_ends") == 0


async def test_a_place_in_the_journal_has_one_child_however_often_it_is_submitted(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    stranger = await given.submitted(lane="other")
    taken = ChildToSubmit(fence=parent.fence, name="new", occurrence=1, execution_id=stranger, submission=submission())

    again, other = await children.submit_children(given.conn, [asked(parent), taken])
    assert isinstance(again, FoundChild)
    assert (again.outcome, again.result) == ("saved", f'"{child}"'.encode())
    assert other == FoundChild(outcome="taken")


async def test_a_place_that_is_submitted_twice_in_one_call_gets_one_child(given: Given) -> None:
    parent = await given.claimed()
    wanted = asked(parent)

    first, again = await children.submit_children(given.conn, [wanted, wanted])
    assert (first, again) == (NEW, FoundChild(outcome="saved", result=f'"{wanted.execution_id}"'.encode()))
    assert await given.count("executions") == 2


async def test_a_child_whose_idempotency_key_belongs_to_another_execution_is_not_adopted(given: Given) -> None:
    parent = await given.claimed()
    await given.submitted(lane="other", key="k")

    assert await children.submit_children(given.conn, [asked(parent, key="k")]) == [FoundChild(outcome="taken")]
    assert await steps.read_journal(given.conn, parent.execution_id) == []


async def test_children_of_one_call_are_submitted_whatever_happens_to_the_others(given: Given) -> None:
    parent, stale = await given.claimed(), await given.claimed()
    await claims.revoke(given.conn, stale.execution_id, by="ops")
    [saved] = await born(given, parent)
    wanted = [
        asked(stale),
        asked(parent),
        asked(parent, 2, needs=[""]),
        asked(parent, 3, payload=b"3"),
        asked(parent, 4),
    ]

    answers: list[Any] = await children.submit_children(given.conn, wanted)
    assert [getattr(answer, "outcome", None) or answer.code for answer in answers] == [
        *("lease_lost", "saved", "invalid_capabilities", "new", "new"),
    ]
    journal = await steps.read_journal(given.conn, parent.execution_id)
    assert [entry.result for entry in journal] == [
        f'"{child}"'.encode() for child in (saved, wanted[3].execution_id, wanted[4].execution_id)
    ]
    assert (await given.claim(lanes=["nursery"], take=3))[1].payload == b"3"


async def test_an_execution_can_wait_only_for_its_own_children(given: Given) -> None:
    parent, other = await given.claimed(), await given.claimed()
    [child] = await born(given, other)

    async with given.nothing_changes():
        for stranger in (child, other.execution_id):
            with pytest.raises(InvalidSuspension) as refused:
                await waits_for(given, parent, stranger)
            assert refused.value.fields == {"cause": "not_its_child"}


async def test_a_stale_owner_cannot_submit_a_child(given: Given) -> None:
    parent = await given.claimed()
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    await given.claim(instance="pool-2")

    async with given.nothing_changes():
        [refused] = await children.submit_children(given.conn, [asked(parent)])
    assert isinstance(refused, LeaseLost)


async def test_children_count_towards_the_step_limit(given: Given) -> None:
    parent = await given.claimed()
    await given.conn.execute(
        "insert into flowfabric.steps (partition, execution, name, occurrence, kind, at, result) "
        "select $1, $2, 'page', n, 'step', now(), '0' from generate_series(1, 10000) n",
        parent.execution_id.partition,
        parent.execution_id.uuid,
    )

    [refused] = await children.submit_children(given.conn, [asked(parent)])
    assert isinstance(refused, FlowFabricError)
    assert refused.code == TooManySteps.code


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired"])
async def test_children_of_a_parent_that_did_not_complete_are_cancelled(given: Given, end: str) -> None:
    parent = await given.claimed(deadline=timedelta(hours=1))
    one, two = await born(given, parent, 2)
    if end == "failed":
        await attempts.fail(given.conn, parent.fence, "it broke", class_=FailureClass.PERMANENT)
    elif end == "cancelled":
        await executions.cancel(given.conn, parent.execution_id)
    else:
        await given.time_passes(hours=2)
        await executions.expire_executions(given.conn)

    assert await given.state(one) == "waiting", "not in the transaction of the parent"
    swept = await children.deliver_child_ends(given.conn)
    assert sorted(swept.ended) == sorted((one, two))
    assert {await given.state(one), await given.state(two)} == {"cancelled"}
    assert (await given.event("execution_cancelled", one))["source"] == "parent_ended"


async def test_let_run_children_and_children_of_a_completed_parent_keep_running(given: Given) -> None:
    cancelled, done = await given.claimed(), await given.claimed()
    [free] = await born(given, cancelled, ending="let_run")
    [left] = await born(given, done)
    await executions.cancel(given.conn, cancelled.execution_id)
    await attempts.complete(given.conn, done.fence)
    await children.deliver_child_ends(given.conn)

    assert (await given.state(free), await given.state(left)) == ("waiting", "waiting")
    assert await given.count("child_ends") == 0


async def test_a_large_family_is_cancelled_in_passes_with_its_grandchildren(given: Given) -> None:
    parent = await given.claimed()
    family = await born(given, parent, 7)
    [child] = await given.claim(lanes=["nursery"])
    [grandchild] = await born(given, child)
    await executions.cancel(given.conn, parent.execution_id)

    passes = []
    while (swept := await children.deliver_child_ends(given.conn, limit=3)).moved:
        passes.append(len(swept.ended))
    assert (max(passes), sum(passes)) == (3, 8)
    assert {await given.state(one) for one in (*family, grandchild)} == {"cancelled"}
    assert await given.count("child_ends") == 0


async def test_a_locked_child_is_cancelled_in_a_later_pass(given: Given, connect: Connect) -> None:
    parent = await given.claimed()
    family = sorted(await born(given, parent, 3))
    await executions.cancel(given.conn, parent.execution_id)
    other = await connect()
    async with other.transaction():
        await other.fetch("select from flowfabric.tickets where id = $1 for update", family[1].uuid)
        assert len((await children.deliver_child_ends(given.conn)).ended) == 2
        assert (await children.deliver_child_ends(given.conn)).ended == ()

    await given.time_passes(seconds=1)
    assert list((await children.deliver_child_ends(given.conn)).ended) == [family[1]]
    await children.deliver_child_ends(given.conn)
    assert await given.count("child_ends") == 0


async def test_a_locked_parent_does_not_delay_other_parents(given: Given, connect: Connect) -> None:
    locked, free = await given.claimed(), await given.claimed()
    for parent in (locked, free):
        await waits_for(given, parent, *await born(given, parent))
        await completed(given)
    other = await connect()
    async with other.transaction():
        await other.fetch("select from flowfabric.tickets where id = $1 for update", locked.execution_id.uuid)
        await children.deliver_child_ends(given.conn, limit=1)

        assert await given.state(free.execution_id) == "waiting"
        assert await given.state(locked.execution_id) == "suspended"


async def test_a_parent_that_is_replayed_keeps_the_children_it_still_has(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await executions.cancel(given.conn, parent.execution_id)
    await executions.replay(given.conn, parent.execution_id, by="ops")
    await children.deliver_child_ends(given.conn)

    assert await given.state(child) == "waiting"


async def test_a_replay_waits_for_a_sweep_that_cancels_its_children(given: Given, connect: Connect) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await executions.cancel(given.conn, parent.execution_id)
    sweeper, replayer = await connect(), await connect()
    async with sweeper.transaction():
        await children.deliver_child_ends(sweeper)
        replaying = asyncio.create_task(executions.replay(replayer, parent.execution_id, by="ops"))
        await blocked(given, replayer, replaying)
    await replaying

    assert await given.state(child) == "cancelled"
    assert await steps.read_journal(given.conn, parent.execution_id) == []


async def test_a_child_that_is_replayed_before_its_end_was_delivered_is_waited_for_again(given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await waits_for(given, parent, child)
    await executions.cancel(given.conn, child)
    await executions.replay(given.conn, child, by="ops")
    await children.deliver_child_ends(given.conn)
    assert await given.state(parent.execution_id) == "suspended"

    await completed(given)
    await children.deliver_child_ends(given.conn)
    assert [entry.signals[0].name for entry in await answers(given, parent)] == ["completed"]


@pytest.mark.parametrize("removed", ["before the wait", "before its end was delivered"])
async def test_a_wait_for_a_child_whose_record_was_removed_ends(given: Given, removed: str) -> None:
    parent = await given.claimed(lease=timedelta(hours=1))
    [child] = await born(given, parent, policy={"retention_ms": 1})
    if removed != "before the wait":
        await waits_for(given, parent, child)
    await completed(given)
    await given.time_passes(minutes=1)
    await executions.remove_ended(given.conn)
    if removed == "before the wait":
        await waits_for(given, parent, child)
    await children.deliver_child_ends(given.conn)

    assert [entry.signals[0].name for entry in await answers(given, parent)] == ["removed"]
    assert await given.count("child_ends") == 0


async def test_the_end_of_a_child_whose_parent_was_removed_is_deleted(given: Given) -> None:
    parent = await given.claimed(policy={"retention_ms": 1})
    await born(given, parent)
    await attempts.complete(given.conn, parent.fence)
    await given.time_passes(minutes=1)
    await executions.remove_ended(given.conn)
    await completed(given)

    assert (await children.deliver_child_ends(given.conn)).moved == 1
    assert await given.count("child_ends") == 0


async def test_the_journal_returns_large_results_of_children_in_pages(given: Given) -> None:
    parent = await given.claimed()
    await waits_for(given, parent, *await born(given, parent, 5))
    for number in range(5):
        await completed(given, b"%d" % number * 400_000)
    await children.deliver_child_ends(given.conn)
    [first] = await given.rows(
        "select flowfabric.read_journal($1, $2) as page", parent.execution_id.partition, parent.execution_id.uuid
    )

    assert len(first["page"]) < 2_000_000
    assert sorted((entry.signals[0].payload or b"")[:1] for entry in await answers(given, parent)) == [
        b"%d" % number for number in range(5)
    ]
