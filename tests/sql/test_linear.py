"""The cost of a batch is linear: four times as many items need four times as many index lookups, not sixteen times."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, budgets, children, claims, executions, steps
from flowfabric.ids import mint_execution_id
from flowfabric.model import ChildToSubmit, Claim, Completion, Delay, FailureReport, Step, Submission
from tests.engine.budgets.scene import make, report_of
from tests.given import Given, claim, submission
from tests.sql.test_empty_plans import signalled

FEW, MANY = 40, 160

LOOKED_UP = """
select sum(pg_stat_get_xact_numscans(i.indexrelid))::int
from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'flowfabric'::regnamespace
"""

Call = Callable[[asyncpg.Connection, list[Claim]], Awaitable[Any]]


async def adopted(conn: asyncpg.Connection, taken: list[Claim]) -> None:
    born = [
        ChildToSubmit(fence=it.fence, name="child", occurrence=1, execution_id=mint_execution_id(), submission=CHILD)
        for it in taken
    ]
    await children.submit_children(conn, born)


async def resumed(conn: asyncpg.Connection, taken: list[Claim]) -> None:
    await signalled(conn, *taken)
    assert len(await claim(conn, take=len(taken))) == len(taken)


CHILD: Submission = submission(lane="born")
CALLS: dict[str, Call] = {
    "renew": lambda conn, taken: claims.renew_many(conn, [it.fence for it in taken]),
    "save_step": lambda conn, taken: steps.save_step_many(
        conn, [Step(fence=it.fence, name="search", occurrence=1, result=b"1") for it in taken]
    ),
    "complete": lambda conn, taken: attempts.complete_many(conn, [Completion(fence=it.fence) for it in taken]),
    "fail": lambda conn, taken: attempts.fail_many(conn, [FailureReport(fence=it.fence, reason="") for it in taken]),
    "delay": lambda conn, taken: attempts.delay_many(conn, [Delay(fence=it.fence) for it in taken]),
    "report_usage": lambda conn, taken: budgets.report_usage_many(conn, [report_of(1, fence=it.fence) for it in taken]),
    "adopt": adopted,
    "signal": resumed,
}


async def looked_up(conn: asyncpg.Connection, call: Call, count: int) -> int:
    """Count the index lookups for a batch of this size."""
    async with conn.transaction():
        before = await conn.fetchval(LOOKED_UP)
        await executions.submit_many(conn, [submission() for _ in range(count)])
        taken = await claim(conn, take=count)
        assert len(taken) == count
        await call(conn, taken)
        return int(await conn.fetchval(LOOKED_UP) - before)


@pytest.mark.parametrize("name", CALLS)
async def test_the_cost_of_a_batch_is_linear(conn: asyncpg.Connection, given: Given, name: str) -> None:
    await make(given.conn)
    few = await looked_up(conn, CALLS[name], FEW)
    await conn.execute("delete from flowfabric.tickets")

    assert await looked_up(conn, CALLS[name], MANY) <= few * 4.5
