"""Batches of fenced calls: a batch returns the same results as its calls one after the other."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric.engine import attempts, claims, executions
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Claim, Completion, Delay, FailureClass, FailureReport, Fence
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK
from tests.given import ENDED_ATTEMPTS, Given, submission

Many = Callable[[Connection, Sequence[Any]], Awaitable[Sequence[Any]]]

RETRY = {"retry": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 60_000}}}
STATE = f"""
select e.id::text, e.outcome::text, e.failure::text, e.result, t.phase::text, t.eligibility::text, t.reason::text,
       t.attempt_state::text, t.attempt, t.epoch, t.retries, t.due_at is null as is_due,
       t.attempt_left is null as is_new,
       (select count(*) from {ENDED_ATTEMPTS} where a.execution = e.id) as attempts,
       (select string_agg(v.kind, ',' order by v.id) from flowfabric.events v where v.execution = e.id) as events
from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
order by e.created_at
"""


def fences(claimed: Sequence[Claim]) -> list[Fence]:
    """Fences of all kinds: valid, stale, partial, and of an execution that does not exist."""
    good = [claim.fence for claim in claimed]
    stale = [msgspec.structs.replace(good[0], epoch=9), msgspec.structs.replace(good[1], attempt=9)]
    lease_id: Any = None
    partial = msgspec.structs.replace(good[2], lease_id=lease_id)
    missing = Fence(execution_id=mint_execution_id(), lease_id=UUID(int=1), epoch=1, attempt=1)
    return [*good, *stale, partial, missing]


def item(operation: str, fence: Fence, variant: int) -> Any:
    match operation:
        case "renew":
            return fence
        case "complete":
            result = [None, b"\0", b"x" * 1_048_577][variant]
            return Completion(fence=fence, result=result, encoding=["json", "raw", "json"][variant])
        case "fail":
            classes: list[Any] = [FailureClass.TRANSIENT, FailureClass.PERMANENT, "nonsense"]
            return FailureReport(fence=fence, reason=f"reason {variant}", class_=classes[variant])
        case _:
            return Delay(fence=fence, until=[None, timedelta(hours=1), timedelta(hours=-1)][variant])


MANY: dict[str, Many] = {
    "renew": claims.renew_many,
    "complete": attempts.complete_many,
    "fail": attempts.fail_many,
    "delay": attempts.delay_many,
}


def said(answer: object) -> object:
    """An answer without its times, which differ between two calls."""
    if isinstance(answer, FlowFabricError):
        return (answer.code, answer.fields)
    return (type(answer), getattr(answer, "outcome", None), getattr(answer, "next_attempt", None))


async def state(conn: Connection, claimed: Sequence[ExecutionId]) -> list[tuple[object, ...]]:
    """The whole state, with executions identified by their position."""
    places = {str(execution_id.uuid): at for at, execution_id in enumerate(claimed)}
    return [(places[row["id"]], *list(row.values())[1:]) for row in await conn.fetch(STATE)]


async def prepared(given: Given) -> list[Claim]:
    batch = [submission(policy=RETRY | {"attempt_timeout_ms": 60_000} if at % 2 else {}) for at in range(4)]
    await executions.submit_many(given.conn, batch)
    claimed = await given.claim(take=4)
    order = {claim.execution_id: claim for claim in claimed}
    rows = await given.rows("select partition, id from flowfabric.executions order by created_at")
    return [order[ExecutionId(row["partition"], row["id"])] for row in rows]


@pytest.mark.parametrize("operation", list(MANY))
@settings(max_examples=200 if SOAK else 15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@for_any(picks=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=12))
async def test_a_batch_answers_like_the_same_calls_one_after_the_other(
    conn: asyncpg.Connection, given: Given, operation: str, picks: list[tuple[int, int]]
) -> None:
    seen = []
    for is_batch in (True, False):
        undone = conn.transaction()
        await undone.start()
        claimed = await prepared(given)
        shown = fences(claimed)
        items = [item(operation, shown[fence], variant) for fence, variant in picks]
        many = MANY[operation]
        answers = (
            await many(conn, items) if is_batch else [answer for one in items for answer in await many(conn, [one])]
        )
        seen.append(([said(answer) for answer in answers], await state(conn, [c.execution_id for c in claimed])))
        await undone.rollback()

    assert len(seen[0][0]) == len(picks)
    assert seen[0] == seen[1]
