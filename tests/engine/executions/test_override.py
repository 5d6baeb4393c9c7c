"""Override: an operator completes or fails an execution without its lease, in any unfinished state."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, budgets, claims, events, executions, flows, quotas, waits
from flowfabric.errors import (
    ExecutionEnded,
    ExecutionNotActive,
    ExecutionNotFound,
    InvalidBody,
    InvalidText,
    PayloadTooLarge,
)
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import EventFilter, Link, Member, Outcome, PublicState, Suspension
from flowfabric.postgres import call
from tests.conftest import Connect
from tests.given import Given, submission

DONE = b'{"paid": true}'
ACT: dict[str, Any] = {"by": "ada", "reason": "the bank confirmed it"}
WAIT = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])


async def active(given: Given) -> ExecutionId:
    return (await given.claimed()).execution_id


async def suspended(given: Given) -> ExecutionId:
    claim = await given.claimed()
    await waits.suspend(given.conn, claim.fence, WAIT)
    return claim.execution_id


async def blocked(given: Given) -> ExecutionId:
    flow_id = (await flows.create_flow(given.conn, "pair")).flow_id
    upstream, downstream = await given.submitted(flow=flow_id), await given.submitted(flow=flow_id)
    await flows.add_edge(given.conn, flow_id, upstream, downstream)
    return downstream


async def granted(given: Given) -> ExecutionId:
    await given.submitted()
    [grant] = await claims.issue_grant(given.conn, given.worker, instance=given.instance, lanes=["default"])
    return grant.execution_id


UNFINISHED: Mapping[str, Callable[[Given], Awaitable[ExecutionId]]] = {
    "waiting": lambda given: given.submitted(),
    "delayed": lambda given: given.submitted(delay=timedelta(hours=1)),
    "held": lambda given: given.held(),
    "granted": granted,
    "active": active,
    "suspended": suspended,
    "blocked": blocked,
}


@pytest.mark.parametrize("state", UNFINISHED)
async def test_an_operator_can_complete_an_execution_in_any_unfinished_state(given: Given, state: str) -> None:
    execution_id = await UNFINISHED[state](given)

    ended = await executions.override(given.conn, execution_id, "success", result=DONE, **ACT)

    assert ended.public_state is PublicState.COMPLETED
    found = await executions.get_result(given.conn, execution_id)
    assert (found.outcome, found.result, found.failure) == (Outcome.SUCCESS, DONE, None)
    assert (await given.events(execution_id))[-2:] in (
        ["execution_overridden", "execution_completed"],
        ["waitpoint_closed", "execution_completed"],
    )


@pytest.mark.parametrize("state", UNFINISHED)
async def test_an_operator_can_fail_an_execution_in_any_unfinished_state(given: Given, state: str) -> None:
    execution_id = await UNFINISHED[state](given)

    assert (await executions.override(given.conn, execution_id, "failed", **ACT)).public_state is PublicState.FAILED

    found = await executions.get_result(given.conn, execution_id)
    assert found.outcome is Outcome.FAILED
    assert found.failure is not None
    assert (found.failure.class_, found.failure.category, found.failure.reason) == (
        "permanent",
        "overridden",
        ACT["reason"],
    )


async def test_a_failed_override_is_final_whatever_the_retry_policy_says(given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 5}})

    ended = await executions.override(given.conn, claim.execution_id, "failed", **ACT)
    assert ended.public_state is PublicState.FAILED
    assert await given.count("tickets") == 0


async def test_the_outcome_of_the_worker_is_refused_afterwards(given: Given) -> None:
    claim = await given.claimed()
    await executions.override(given.conn, claim.execution_id, "success", result=DONE, **ACT)

    with pytest.raises(ExecutionNotActive) as refused:
        await attempts.complete(given.conn, claim.fence, b"1")
    assert refused.value.fields["outcome"] == "success"
    with pytest.raises(ExecutionNotActive):
        await claims.renew(given.conn, claim.fence)
    assert (await executions.get_result(given.conn, claim.execution_id)).result == DONE


async def test_the_log_says_who_overrode_what_and_why(given: Given) -> None:
    claim = await given.claimed()
    await executions.override(given.conn, claim.execution_id, "success", result=DONE, **ACT)

    kinds = EventFilter(kinds=["execution_overridden"])
    [event] = (await events.read_events(given.conn, events.OLDEST, kinds)).events
    assert (event.by, event.execution_id) == ("ada", claim.execution_id)
    assert event.detail == {
        "outcome": "success",
        "reason": ACT["reason"],
        "phase": "active",
        "attempt": 1,
        "epoch": 1,
        "lease_id": str(claim.fence.lease_id),
    }


@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_lease_history_shows_that_the_lease_was_overridden(given: Given, outcome: Any) -> None:
    claim = await given.claimed()
    await executions.override(given.conn, claim.execution_id, outcome, **ACT)
    await executions.override(given.conn, await given.submitted(), outcome, **ACT)

    acquired, ended = (await events.read_events(given.conn, events.OLDEST, events.lease_history())).events
    assert (acquired.kind, ended.by) == ("lease_acquired", "ada")
    assert ended.detail["lease_id"] == str(claim.fence.lease_id)


@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_describe_and_explain_show_that_it_was_overridden(given: Given, outcome: Any) -> None:
    execution_id = await given.submitted()
    await executions.override(given.conn, execution_id, outcome, **ACT)

    described = await executions.describe(given.conn, execution_id)
    assert described.overridden is not None
    assert (described.overridden.by, described.overridden.reason) == ("ada", ACT["reason"])
    explained = await executions.explain(given.conn, execution_id)
    assert explained == described.explanation
    assert explained.sentence.endswith("overridden by ada: the bank confirmed it")


async def test_repeating_an_override_returns_the_same_state_and_changes_nothing(given: Given) -> None:
    execution_id = await given.submitted()
    await executions.override(given.conn, execution_id, "success", result=DONE, **ACT)

    async with given.nothing_changes():
        again = await executions.override(given.conn, execution_id, "success", result=DONE, by="bob", reason="again")
    assert again.public_state is PublicState.COMPLETED


async def test_another_outcome_or_result_is_refused_once_it_has_ended(given: Given) -> None:
    execution_id = await given.submitted()
    await executions.override(given.conn, execution_id, "success", result=DONE, **ACT)

    async with given.nothing_changes():
        for other in ({"outcome": "success", "result": b"2"}, {"outcome": "failed"}):
            with pytest.raises(ExecutionEnded):
                await executions.override(given.conn, execution_id, **other, **ACT)


async def test_an_execution_that_ended_by_itself_cannot_be_overridden(given: Given) -> None:
    for execution_id in [await given.completed(), await given.failed(), await given.cancelled()]:
        async with given.nothing_changes():
            with pytest.raises(ExecutionEnded):
                await executions.override(given.conn, execution_id, "success", **ACT)


async def test_an_unknown_execution_cannot_be_overridden(given: Given) -> None:
    with pytest.raises(ExecutionNotFound):
        await executions.override(given.conn, mint_execution_id(), "failed", **ACT)


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"reason": ""}, InvalidBody),
    ({"reason": "  \t"}, InvalidBody),
    ({"reason": "x" * 4_097}, InvalidBody),
    ({"reason": "a\0b"}, InvalidText),
    ({"by": ""}, InvalidBody),
    ({"by": "x" * 257}, InvalidBody),
    ({"outcome": "cancelled"}, InvalidBody),
    ({"outcome": ""}, InvalidBody),
    ({"outcome": "failed", "result": b"1"}, InvalidBody),
    ({"encoding": ""}, InvalidBody),
    ({"encoding": "x" * 65}, InvalidBody),
    ({"result": "text"}, InvalidBody),
    ({"result": b" " * 1_048_577}, PayloadTooLarge),
    ({"result": b" " * 9_000_000}, PayloadTooLarge),
]


@pytest.mark.parametrize(("wrong", "error"), REFUSED, ids=lambda value: str(value)[:40])
async def test_an_invalid_override_is_refused_and_changes_nothing(
    given: Given, wrong: dict[str, Any], error: type[Exception]
) -> None:
    execution_id = await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(error):
            await executions.override(given.conn, execution_id, **{"outcome": "success", **ACT, **wrong})


@pytest.mark.parametrize("missing", ["by", "reason", "outcome"])
async def test_sql_refuses_an_override_without_its_author_or_reason(given: Given, missing: str) -> None:
    execution_id = await given.submitted()
    arguments = {"outcome": "failed", **ACT, missing: None}

    with pytest.raises(InvalidBody):
        await call.value(given.conn, "override", partition=execution_id.partition, id=execution_id.uuid, **arguments)


async def test_waits_reservations_and_quota_slots_are_released(given: Given) -> None:
    await quotas.create_quota(given.conn, "calls", max_concurrent=1)
    await budgets.create_budget(given.conn, "team", hard_limits={"tokens": 10})
    claim = await given.claimed(quotas=["calls"])
    await waits.create_waitpoint(given.conn, claim.fence, "answer")
    await budgets.reserve(given.conn, "team", {"tokens": 10}, fence=claim.fence)
    await given.submitted(quotas=["calls"])
    assert await given.claim() == []

    await executions.override(given.conn, claim.execution_id, "success", **ACT)

    assert (await budgets.describe_budget(given.conn, "team")).reserved == {}
    [waitpoint] = (await waits.list_waitpoints(given.conn, claim.execution_id)).items
    assert waitpoint.state == "closed"
    assert len(await given.claim()) == 1


async def test_members_downstream_start_with_the_result_or_are_skipped(given: Given) -> None:
    for outcome, after in (("success", PublicState.WAITING), ("failed", PublicState.SKIPPED)):
        downstream = await blocked(given)
        found = await given.rows("select upstream from flowfabric.flow_edges where downstream = $1", downstream.uuid)
        upstream = ExecutionId(downstream.partition, found[0]["upstream"])
        await executions.override(given.conn, upstream, outcome, **ACT)  # type: ignore[arg-type]

        assert await given.state(downstream) is after


async def test_a_blocked_member_that_was_completed_stays_so_when_its_upstream_fails(given: Given) -> None:
    flow = await flows.submit_flow(
        given.conn,
        "chain",
        [Member(name=name, submission=submission()) for name in ("first", "second", "third")],
        [Link(upstream="first", downstream="second"), Link(upstream="second", downstream="third")],
    )
    await executions.override(given.conn, flow.executions["second"], "success", **ACT)
    await executions.override(given.conn, flow.executions["first"], "failed", **ACT)

    assert await given.state(flow.executions["second"]) is PublicState.COMPLETED
    assert await given.state(flow.executions["third"]) is PublicState.WAITING


async def test_a_replayed_execution_is_no_longer_overridden(given: Given) -> None:
    execution_id = await given.submitted()
    await executions.override(given.conn, execution_id, "failed", **ACT)
    await executions.replay(given.conn, execution_id, by="ops")
    [claim] = await given.claim()
    await attempts.complete(given.conn, claim.fence)

    assert (await executions.describe(given.conn, execution_id)).overridden is None


async def test_an_override_and_the_completion_of_the_worker_never_both_count(given: Given, connect: Connect) -> None:
    operator, worker = await connect(), await connect()
    claim = await given.claimed()
    transaction = operator.transaction()
    await transaction.start()
    await executions.override(operator, claim.execution_id, "failed", **ACT)
    completing = asyncio.ensure_future(attempts.complete(worker, claim.fence, b"1"))
    await given.blocked(worker, completing)
    await transaction.commit()

    with pytest.raises(ExecutionNotActive):
        await completing
    assert await given.state(claim.execution_id) is PublicState.FAILED
