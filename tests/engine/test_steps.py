"""Steps: saved once under a lease, and returned as the journal of a run."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, claims, executions, steps, waits
from flowfabric.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidName,
    InvalidText,
    LeaseLost,
    PartialFence,
    PayloadTooLarge,
    TooManySteps,
)
from flowfabric.model import Claim, Delay, Journal, Saved, SignalToSend, Step, Suspension, Wish
from tests.conftest import Connect
from tests.given import Given

SAVED = Saved(outcome="saved")


def step(claim: Claim, name: str = "a", occurrence: int = 1, result: bytes | None = b"1", **more: Any) -> Step:
    return Step(fence=claim.fence, name=name, occurrence=occurrence, result=result, **more)


async def saved(given: Given, claim: Claim) -> list[tuple[str, int, bytes | None]]:
    journal = await steps.read_journal(given.conn, claim.execution_id)
    return [(entry.name, entry.occurrence, entry.result) for entry in journal]


async def test_the_first_result_of_a_name_and_occurrence_wins(given: Given) -> None:
    claim = await given.claimed()

    assert await steps.save_step(given.conn, step(claim, result=b'"first"')) == SAVED
    again = await steps.save_step(given.conn, step(claim, result=b'"second"'))
    assert (again.outcome, again.result, again.encoding) == ("duplicate", b'"first"', "json")
    assert await saved(given, claim) == [("a", 1, b'"first"')]


async def test_occurrences_of_one_name_are_kept_apart(given: Given) -> None:
    claim = await given.claimed()
    for occurrence in (2, 1, 3):
        await steps.save_step(given.conn, step(claim, "page", occurrence, b"%d" % occurrence))

    assert await saved(given, claim) == [("page", 1, b"1"), ("page", 2, b"2"), ("page", 3, b"3")]


async def test_steps_emit_no_events(given: Given) -> None:
    claim = await given.claimed()
    before = await given.events()
    await steps.save_step(given.conn, step(claim))

    assert await given.events() == before


async def test_a_batch_is_answered_as_if_its_items_came_one_after_the_other(given: Given) -> None:
    claim = await given.claimed()
    other = await given.claimed()
    await steps.save_step(given.conn, step(claim, "old", result=b"0"))
    asked = [
        step(claim, "a"),
        step(claim, "a", result=b"2"),
        step(other, "a", result=b"3"),
        step(claim, "old", result=b"4"),
        step(claim, ""),
        step(claim, "a\0"),
        step(claim, "b", result=None),
        step(claim, "b", result=b"5"),
    ]

    answers = await steps.save_step_many(given.conn, asked)
    kinds = [type(answer) if isinstance(answer, FlowFabricError) else answer.outcome for answer in answers]
    assert kinds == ["saved", "duplicate", "saved", "duplicate", InvalidName, InvalidText, "saved", "duplicate"]
    results = [answer.result for answer in answers if isinstance(answer, Saved)]
    assert results == [None, b"1", None, b"0", None, None]
    assert await saved(given, claim) == [("a", 1, b"1"), ("b", 1, None), ("old", 1, b"0")]
    assert await saved(given, other) == [("a", 1, b"3")]


async def test_a_stale_owner_saves_nothing(given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    [taken] = await given.claim(instance="pool-2")

    async with given.nothing_changes():
        with pytest.raises(LeaseLost):
            await steps.save_step(given.conn, step(claim))
    assert await given.count("steps") == 0
    assert await steps.save_step(given.conn, step(taken)) == SAVED


async def test_an_expired_lease_cannot_save_a_step_even_if_it_was_not_reclaimed(given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(minutes=1)

    with pytest.raises(LeaseLost):
        await steps.save_step(given.conn, step(claim))
    assert await given.count("steps") == 0


async def test_an_ended_execution_saves_nothing(given: Given) -> None:
    claim = await given.claimed()
    await attempts.complete(given.conn, claim.fence)

    with pytest.raises(ExecutionNotActive):
        await steps.save_step(given.conn, step(claim))
    assert await given.count("steps") == 0


async def test_a_partial_fence_saves_nothing(given: Given) -> None:
    claim = await given.claimed()
    [row] = await given.rows(
        "select * from flowfabric.save_step(array[$1::int], array[$2::uuid], array[null::uuid], array[1::bigint], "
        "array[1], array['a'], array[1], array['1'::bytea])",
        claim.execution_id.partition,
        claim.execution_id.uuid,
    )

    assert row["refusal"] == PartialFence.code
    assert await given.count("steps") == 0


@pytest.mark.parametrize(("name", "occurrence"), [("", 1), ("x" * 129, 1), ("é" * 65, 1), ("a", 0), ("a", -1)])
async def test_an_invalid_name_is_refused(given: Given, name: str, occurrence: int) -> None:
    claim = await given.claimed()

    with pytest.raises(InvalidName):
        await steps.save_step(given.conn, step(claim, name, occurrence))
    assert await given.count("steps") == 0


async def test_a_result_over_the_limit_is_refused(given: Given) -> None:
    claim = await given.claimed()

    with pytest.raises(PayloadTooLarge):
        await steps.save_step(given.conn, step(claim, result=b"x" * 1_048_577))
    with pytest.raises(PayloadTooLarge):
        await steps.save_step(given.conn, step(claim, result=b"x" * 11), result_limit=10)
    assert await given.count("steps") == 0
    assert await steps.save_step(given.conn, step(claim, result=b"x" * 1_048_576)) == SAVED


async def test_an_execution_has_ten_thousand_steps_at_most(given: Given) -> None:
    claim = await given.claimed()
    await given.conn.execute(
        "insert into flowfabric.steps (partition, execution, name, occurrence, kind, at, result) "
        "select $1, $2, 'page', n, 'step', now(), '0' from generate_series(1, 9998) n",
        claim.execution_id.partition,
        claim.execution_id.uuid,
    )

    answers = await steps.save_step_many(given.conn, [step(claim, name) for name in "aabccd"])
    kinds = [type(answer) if isinstance(answer, FlowFabricError) else answer.outcome for answer in answers]
    assert kinds == ["saved", "duplicate", "saved", TooManySteps, TooManySteps, TooManySteps]
    assert await given.count("steps") == 10_000
    known = await steps.save_step(given.conn, step(claim, "page", 7))
    assert (known.outcome, known.result) == ("duplicate", b"0"), "what is there is still given"
    assert len(await steps.read_journal(given.conn, claim.execution_id)) == 10_000


async def test_a_step_joins_the_callers_transaction(given: Given) -> None:
    claim = await given.claimed()
    with suppress(ZeroDivisionError):
        async with given.conn.transaction():
            await steps.save_step(given.conn, step(claim))
            raise ZeroDivisionError

    assert await given.count("steps") == 0


async def test_two_concurrent_saves_of_one_step_return_one_result(given: Given, connect: Connect) -> None:
    claim = await given.claimed()
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await steps.save_step(first, step(claim, result=b"1"))
    waiting = asyncio.create_task(steps.save_step(second, step(claim, result=b"2")))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "the ticket is the lock"
    await transaction.commit()

    assert await waiting == Saved(outcome="duplicate", result=b"1")


async def test_the_journal_holds_steps_sleeps_and_ended_waits(given: Given) -> None:
    claim = await given.claimed()
    await steps.save_step(given.conn, step(claim, "search"))
    waiting = Suspension(
        condition={"kind": "single", "waitpoint": "paid"}, waitpoints=["paid"], name="paid", occurrence=1
    )
    await waits.suspend(given.conn, claim.fence, waiting)
    assert [entry.kind for entry in await steps.read_journal(given.conn, claim.execution_id)] == ["step"]
    await waits.resume(given.conn, claim.execution_id, by="ops")
    [claim] = await given.claim()
    await attempts.delay_many(given.conn, [Delay(fence=claim.fence, name="nap", occurrence=1)])

    journal = await steps.read_journal(given.conn, claim.execution_id)
    assert [(entry.kind, entry.name, entry.by) for entry in journal] == [
        ("sleep", "nap", None),
        ("wait", "paid", "operator"),
        ("step", "search", None),
    ]
    assert journal[0].due_at is not None


async def test_a_sleep_can_be_saved_in_advance(given: Given) -> None:
    claim = await given.claimed()
    due_at = claim.expires_at + timedelta(hours=1)
    await steps.save_step(given.conn, step(claim, "nap", result=None, due_at=due_at))

    [entry] = await steps.read_journal(given.conn, claim.execution_id)
    assert (entry.kind, entry.due_at, entry.result) == ("sleep", due_at, None)


async def test_a_long_journal_is_read_in_pages(given: Given) -> None:
    claim = await given.claimed()
    large = [step(claim, f"{number:02}", result=b"%d" % number * 400_000) for number in range(5)]
    await steps.save_step_many(given.conn, [*large, step(claim, "whole", result=b"x" * 1_048_576), step(claim, "z")])
    [first] = await given.rows(
        "select flowfabric.read_journal($1, $2) as page", claim.execution_id.partition, claim.execution_id.uuid
    )

    assert len(first["page"]) < 2_000_000
    journal = await steps.read_journal(given.conn, claim.execution_id)
    assert [entry.name for entry in journal] == ["00", "01", "02", "03", "04", "whole", "z"]
    assert [entry.result for entry in journal[:5]] == [each.result for each in large]


async def test_an_execution_without_steps_has_an_empty_journal(given: Given) -> None:
    assert await steps.read_journal(given.conn, await given.submitted()) == []


@pytest.mark.parametrize("keep", [True, False])
async def test_a_replay_keeps_the_steps_by_default(given: Given, keep: bool) -> None:
    claim = await given.claimed()
    other = await given.claimed()
    for each in (claim, other):
        await steps.save_step(given.conn, step(each))
    wish = Suspension(condition={"kind": "operator_only"}, name="look", occurrence=1)
    await waits.suspend(given.conn, claim.fence, wish)
    await waits.resume(given.conn, claim.execution_id, by="ops")
    [again] = await given.claim()
    await attempts.complete(given.conn, again.fence)
    await executions.replay(given.conn, claim.execution_id, by="ops", from_scratch=not keep)

    names = [entry.name for entry in await steps.read_journal(given.conn, claim.execution_id)]
    assert names == (["a", "look"] if keep else [])
    assert (await given.event("execution_replayed")).get("from_scratch", False) is not keep
    assert await saved(given, other) == [("a", 1, b"1")]


async def test_retention_removes_the_steps_with_their_execution(given: Given) -> None:
    claim = await given.claimed()
    await steps.save_step(given.conn, step(claim))
    await attempts.complete(given.conn, claim.fence)
    await given.time_passes(days=30)
    await executions.remove_ended(given.conn)

    assert (await given.count("executions"), await given.count("steps")) == (0, 0)


async def again(given: Given, claims: list[Claim]) -> list[Claim]:
    """Release these executions and claim them again."""
    await attempts.delay_many(given.conn, [Delay(fence=claim.fence) for claim in claims])
    return sorted(await given.claim(take=len(claims)), key=lambda claim: claim.execution_id)


async def test_a_claim_returns_the_journal_of_an_execution_that_ran_before(given: Given) -> None:
    claim = await given.claimed()
    await steps.save_step(given.conn, step(claim, "search", result=b'"found"'))

    [resumed] = await again(given, [claim])
    assert claim.journal is None
    assert resumed.journal is not None
    assert [(entry.name, entry.result) for entry in resumed.journal.entries] == [("search", b'"found"')]
    assert not resumed.journal.more


ODD = 'a "b" \\ é\n\t'


async def test_the_journal_of_a_claim_equals_the_journal_that_is_read(given: Given) -> None:
    claim = await given.claimed()
    kept = [step(claim, ODD, 1, b"x" * 200, encoding=ODD[:9]), step(claim, "b", 2, None), step(claim, "B", 1, b"")]
    await steps.save_step_many(given.conn, [*kept, step(claim, "nap", result=None, due_at=claim.expires_at)])
    for occurrence in (1, 2):
        point = await waits.create_waitpoint(given.conn, claim.fence, ODD)
        asked = Suspension(condition={"kind": "single", "waitpoint": ODD}, waitpoints=[ODD])
        await waits.suspend(given.conn, claim.fence, [Wish(name=ODD, occurrence=occurrence + 1, what=asked)])
        sent = SignalToSend(
            execution_id=claim.execution_id,
            waitpoint_id=point.waitpoint_id,
            token=point.token,
            name=ODD,
            source_identity=ODD,
            correlation_id=ODD,
            payload=bytes(range(256)),
        )
        await waits.deliver_signal(given.conn, sent)
        [claim] = await given.claim()

    assert claim.journal is not None
    assert claim.journal.entries == await steps.read_journal(given.conn, claim.execution_id)
    assert [entry.name for entry in claim.journal.entries] == ["B", *[ODD] * 3, "b", "nap"]
    last = claim.journal.entries[3].signals
    assert (last[0].payload, last[0].correlation_id) == (bytes(range(256)), ODD)


async def test_a_claim_returns_journals_only_of_executions_that_ran_before(given: Given) -> None:
    first = await given.claimed()
    await steps.save_step(given.conn, step(first, "a"))
    await attempts.delay(given.conn, first.fence)
    fresh = await given.submitted()

    brought = {claim.execution_id: claim.journal for claim in await given.claim(take=2)}
    assert brought[fresh] is None
    assert [entry.name for entry in (brought[first.execution_id] or Journal(entries=(), more=True)).entries] == ["a"]


async def test_a_claim_returns_journals_up_to_1_mib_and_the_rest_is_read_on_demand(given: Given) -> None:
    for _ in range(3):
        await given.submitted()
    claims = sorted(await given.claim(take=3), key=lambda claim: claim.execution_id)
    for claim in claims:
        await steps.save_step_many(given.conn, [step(claim, "page", n, b"x" * 300_000) for n in (1, 2)])

    resumed = await again(given, claims)
    assert sorted(claim.journal is None for claim in resumed) == [False, True, True]
    for claim in resumed:
        journal = await steps.read_journal(given.conn, claim.execution_id, begun=claim.journal)
        assert [entry.occurrence for entry in journal] == [1, 2]


async def test_the_rest_of_a_journal_is_read_after_the_part_in_the_claim(given: Given) -> None:
    claim = await given.claimed()
    await steps.save_step_many(given.conn, [step(claim, "page", n, b"x" * 400_000) for n in (1, 2, 3)])
    begun = await steps.read_journal(given.conn, claim.execution_id)

    first = Journal(entries=begun[:1], more=True)
    assert await steps.read_journal(given.conn, claim.execution_id, begun=first) == begun
    assert (
        await steps.read_journal(given.conn, claim.execution_id, begun=Journal(entries=begun[:1], more=False))
        == (begun[:1])
    )
