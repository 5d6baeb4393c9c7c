"""Submitting or signalling and claiming in one call: as if one call had followed the other."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from flowfabric.engine import claims, executions, lanes, quotas, routes
from flowfabric.errors import FlowFabricError, InvalidLease, InvalidWorker
from flowfabric.ids import ExecutionId, mint_execution_ids
from flowfabric.model import Claim, Delivered, Slots, Submission, Submitted
from tests.engine.budgets.scene import TEAM, make, spend
from tests.engine.waits.scene import waiting
from tests.given import TABLES, Given, submission

RESUMES = "resume_condition_satisfied"
SLOTS = Slots(worker="pool", instance="pool-1", lanes=["default"], free=10)


def slots(**changes: Any) -> Slots:
    """Ten free slots of a worker of the lane `default`, unless something else is said."""
    return replace(SLOTS, request=uuid4(), **changes)


async def submit(
    given: Given, *asked: Submission, free: Slots | None = None, **options: Any
) -> tuple[list[Submitted | FlowFabricError], list[Claim]]:
    return await claims.submit_and_claim(given.conn, asked, free or slots(), **options)


def created(answers: list[Submitted | FlowFabricError]) -> list[ExecutionId]:
    return [answer.execution_id for answer in answers if isinstance(answer, Submitted)]


async def test_what_is_submitted_comes_back_leased(given: Given) -> None:
    [answer], [claim] = await submit(given, submission(payload=b'{"n": 1}'))

    assert isinstance(answer, Submitted)
    assert (claim.execution_id, claim.payload) == (answer.execution_id, b'{"n": 1}')
    ticket = await given.ticket(claim.execution_id)
    assert (ticket["phase"], ticket["instance"], ticket["begun"]) == ("active", "pool-1", None)
    assert await given.events(claim.execution_id) == ["execution_submitted", "lease_acquired"]


async def test_a_repeated_call_gets_the_leases_of_the_first_and_stores_nothing_twice(given: Given) -> None:
    free, minted = slots(), mint_execution_ids(2)
    await given.submitted(needs=["gpu"])
    _, first = await submit(given, submission(), submission(), free=free, minted=minted)

    answers, again = await submit(given, submission(), submission(), free=replace(free, repeated=True), minted=minted)
    assert [claim.fence for claim in again] == [claim.fence for claim in first]
    assert created(answers) == minted
    assert (await given.events()).count("lease_acquired") == 2


async def test_a_repeated_call_that_never_arrived_submits_and_claims(given: Given) -> None:
    [answer], [claim] = await submit(given, submission(), free=slots(repeated=True))

    assert [claim.execution_id] == created([answer])


async def test_a_duplicate_and_a_refused_item_claim_nothing(given: Given) -> None:
    await given.submitted(key="a", lane="other")
    ready = await given.submitted()

    answers, taken = await submit(given, submission(key="a", lane="other"), submission(task=""))
    assert taken == []
    assert [type(answer).__name__ for answer in answers] == ["Submitted", "InvalidName"]
    assert await given.state(ready) == "waiting"


async def test_only_the_first_statement_of_a_large_call_claims(given: Given) -> None:
    answers, taken = await submit(given, *[submission()] * 1_001, free=slots(free=1_000))

    assert [claim.execution_id for claim in taken] == created(answers)[:1_000]


async def test_slots_of_an_invalid_worker_are_refused_and_nothing_is_submitted(given: Given) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidLease):
            await submit(given, submission(), free=slots(lease=timedelta(milliseconds=1)))
        with pytest.raises(InvalidWorker):
            await submit(given, submission(), free=slots(worker=""))


async def test_an_execution_that_a_signal_resumes_comes_back_leased(given: Given) -> None:
    there = await waiting(given)

    [answer], [claim] = await claims.signal_and_claim(given.conn, [there.signal()], slots())
    assert isinstance(answer, Delivered)
    assert (answer.effect, claim.execution_id, claim.resumed) == (RESUMES, there.execution_id, True)
    assert claim.journal is not None
    assert (await given.events(there.execution_id))[-1] == "lease_acquired"


async def test_a_signal_claims_only_in_lanes_of_the_worker_and_only_if_it_resumes_one(given: Given) -> None:
    elsewhere = await waiting(given, submitted={"lane": "other"})
    unsatisfied = await waiting(given)
    await given.submitted()

    signals = [elsewhere.signal(), unsatisfied.signal("hello"), elsewhere.signal(token="no")]
    answers, taken = await claims.signal_and_claim(given.conn, signals, slots())
    assert taken == []
    effects = [answer.effect if isinstance(answer, Delivered) else answer.code for answer in answers]
    assert effects == [RESUMES, "signal_ignored_matcher_failed", "invalid_token"]


async def test_a_more_urgent_execution_goes_before_one_that_a_signal_resumes(given: Given) -> None:
    there = await waiting(given)
    urgent = await given.submitted(priority=9)

    _, [claim] = await claims.signal_and_claim(given.conn, [there.signal()], slots())
    assert claim.execution_id == urgent


async def nothing(_: Given) -> None:
    """Nothing is ready."""


async def older(given: Given) -> None:
    await given.submitted()


async def more_urgent(given: Given) -> None:
    await given.submitted(priority=5)


async def less_urgent(given: Given) -> None:
    await executions.submit(given.conn, submission(priority=0, needs=["llm"]))


async def of_another_route(given: Given) -> None:
    await given.submitted(namespace="other")


async def in_a_paused_lane(given: Given) -> None:
    await given.submitted()
    await lanes.pause_lane(given.conn, "default", by="ops")


async def in_another_lane(given: Given) -> None:
    await given.submitted(lane="other")


async def already_due(given: Given) -> None:
    await given.submitted(delay=timedelta(minutes=1))
    await given.time_passes(minutes=2)


async def past_its_deadline(given: Given) -> None:
    await given.submitted(deadline=timedelta(minutes=1))
    await given.time_passes(minutes=2)


async def with_a_key(given: Given) -> None:
    await given.submitted(key="a", needs=["gpu"])


async def held(given: Given) -> None:
    await given.held()


async def one_free_slot_in_a_quota(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=2)
    await given.claimed(quotas=["model"])


async def an_exhausted_budget(given: Given) -> None:
    await make(given.conn)
    await spend(given.conn, 100)


SITUATIONS = [nothing, older, more_urgent, less_urgent, of_another_route, in_a_paused_lane, in_another_lane]
SITUATIONS += [already_due, past_its_deadline, held]
CALLS = [
    [submission()],
    [submission(priority=3)],
    [submission(needs=["gpu"])],
    [submission(namespace="other"), submission(), submission(namespace="other"), submission()],
    [submission(delay=timedelta(minutes=1)), submission()],
    [submission(lane="elsewhere"), submission(payload=b"0" * 2_000_000)],
    [submission(key="a"), submission(key="a"), submission(key="b")],
    [submission(tags={"a": "b"}, deadline=timedelta(hours=1))] * 3,
]
LIMITED = [(one_free_slot_in_a_quota, [submission(quotas=["model"])] * 3)]
LIMITED += [(an_exhausted_budget, [submission(budgets=[TEAM]), submission()])]
LIMITED += [(with_a_key, [submission(key="a", needs=["gpu"]), submission()])]


@pytest.mark.parametrize(
    ("situation", "asked"), [*((each, CALLS) for each in SITUATIONS), *((each, [call]) for each, call in LIMITED)]
)
async def test_it_gives_what_a_claim_after_the_submission_would_have_given(
    given: Given, situation: Callable[[Given], Awaitable[None]], asked: list[list[Submission]]
) -> None:
    await situation(given)
    for item in (item for call in asked for item in call):
        await routes.register_route(given.conn, item.options)  # a rollback does not return the number of a route
    now = await given.conn.fetchval("select flowfabric.clock()")
    for call in asked:
        for free in (slots(), slots(free=1, capabilities=["gpu"], after_route=1), slots(namespace="other")):
            minted = mint_execution_ids(len(call))
            apart = await seen(given, now, partial(one_after_the_other, given, call, free, minted))
            together = await seen(given, now, partial(submit, given, *call, free=free, minted=minted))
            assert together == apart


async def one_after_the_other(given: Given, asked: list[Submission], free: Slots, minted: list[ExecutionId]) -> Any:
    """Submit, then claim as many as were created."""
    answers = await executions.submit_many(given.conn, asked, minted=minted)
    amount = sum(isinstance(answer, Submitted) and answer.outcome == "created" for answer in answers)
    options = {name: getattr(free, name) for name in ("instance", "lanes", "capabilities", "after_route", "namespace")}
    if not amount:
        return answers, []
    taken = await claims.claim(
        given.conn, "pool", **options, request=free.request, take=min(amount, free.free), slots=free.free
    )
    return answers, taken


async def seen(given: Given, now: object, call: Callable[[], Awaitable[Any]]) -> tuple[Any, ...]:
    """The answer of a call at this time, all rows and events after it; the call is undone."""
    await given.conn.execute("begin")
    await given.conn.execute(
        "create or replace function flowfabric.clock() returns timestamptz language sql stable as "
        f"$$ select '{now}'::timestamptz $$"
    )
    answers, taken = await call()
    shown = [(type(each), each.message) if isinstance(each, FlowFabricError) else each for each in answers]
    rows = [
        await given.rows(f"select t::text from flowfabric.{table} t order by 1")
        for table in TABLES
        if table != "events"
    ]
    drafts = await given.rows("select (to_jsonb(t) - 'id')::text as t from flowfabric.events_drafts t order by id")
    await given.conn.execute("rollback")
    return shown, taken, rows, drafts


@pytest.mark.parametrize("change", [{"free": float("nan")}, {"free": -1}, {"after_route": 2.5}, {"worker": "a\0"}])
async def test_slots_that_make_no_sense_are_refused_before_anything_is_submitted(
    given: Given, change: dict[str, Any]
) -> None:
    async with given.nothing_changes():
        with pytest.raises(FlowFabricError, match=r"is invalid|U\+0000"):
            await submit(given, submission(), free=slots(**change))


async def test_sql_refuses_slots_without_a_number_of_free_ones(given: Given) -> None:
    """Other clients call the function themselves; a driver may write NaN as null."""
    with pytest.raises(Exception, match="invalid_limit"):
        await given.rows("select flowfabric._fill_slots('{\"free\": null}', 5)")
