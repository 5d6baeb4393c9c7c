"""Plans that a session made on empty tables last as long as the session; they must also read little of full ones."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, executions, waits
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, Completion, Delay, FailureReport, SignalToSend, Suspension, Wish
from tests.conftest import Connect
from tests.given import Given, submission
from tests.sql.reading import Plan, pin

ROWS, FEW = 3_000, 100
TABLES = ("tickets", "executions", "idempotency_keys")

WISH = Wish(
    name="go",
    occurrence=1,
    what=Suspension(condition={"kind": "single", "waitpoint": "go", "name": "go"}, waitpoints=["go"]),
)


async def signalled(conn: asyncpg.Connection, *waiting: Claim) -> None:
    """Suspend some executions, and deliver a signal to each in one call."""
    signals = []
    for it in waiting:
        point = await waits.create_waitpoint(conn, it.fence, "go")
        await waits.suspend(conn, it.fence, [WISH])
        signals.append(
            SignalToSend(execution_id=it.execution_id, waitpoint_id=point.waitpoint_id, token=point.token, name="go")
        )
    await waits.deliver_signals(conn, signals)


async def two_signalled(conn: asyncpg.Connection, it: Claim) -> None:
    await executions.submit(conn, submission(lane="few"))
    await signalled(conn, it, *await claims.claim(conn, "w", instance="other", lanes=["few"]))


async def claimed(given: Given) -> Claim:
    return await given.claimed(lane="few")


async def submitted(given: Given) -> ExecutionId:
    return await given.submitted(lane="few")


def of_a_claim(call: Callable[[asyncpg.Connection, Claim], Awaitable[Any]], most: int = FEW) -> Plan:
    return Plan(claimed, call, most)


PLANS = {
    "submit": of_a_claim(lambda conn, _: executions.submit(conn, submission(lane="few"))),
    "submit with a key": of_a_claim(
        lambda conn, it: executions.submit(conn, submission(lane="few", key=str(it.execution_id)))
    ),
    "claim": Plan(
        submitted,
        lambda conn, _: claims.claim(conn, "w", instance="i", lanes=["few"], take=10),
        FEW,
        lambda taken: len(taken) == 1,
    ),
    "renew": of_a_claim(lambda conn, it: claims.renew_many(conn, [it.fence])),
    "complete": of_a_claim(lambda conn, it: attempts.complete_many(conn, [Completion(fence=it.fence)])),
    "delay": of_a_claim(lambda conn, it: attempts.delay_many(conn, [Delay(fence=it.fence)])),
    "fail": of_a_claim(lambda conn, it: attempts.fail_many(conn, [FailureReport(fence=it.fence, reason="none")])),
    "suspend": of_a_claim(lambda conn, it: waits.suspend(conn, it.fence, [WISH])),
    "signal": of_a_claim(signalled),
    "signals": of_a_claim(two_signalled, 300),  # seven calls; the others are one to three
    "cancel": of_a_claim(lambda conn, it: executions.cancel(conn, it.execution_id, by="test")),
    "revoke": of_a_claim(lambda conn, it: claims.revoke(conn, it.execution_id, by="test")),
    "describe": of_a_claim(lambda conn, it: executions.describe(conn, it.execution_id)),
    "list_ended": of_a_claim(lambda conn, it: executions.list_ended(conn, [it.execution_id])),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
async def test_a_plan_made_on_empty_tables_reads_little_of_full_ones(
    connect: Connect, given: Given, plan: Plan
) -> None:
    await given.conn.execute("vacuum analyze")  # the planner now knows that the tables are empty
    await pin(await connect())
    conn = await connect()
    for _ in range(7):  # Postgres switches to a generic plan after five executions
        await plan.call(conn, await plan.fill(given))
        await claims.claim(conn, "w", instance="other", lanes=["few"], take=10)
    # Many executions in another lane, without an analyze: the planner does not know them.
    await executions.submit_many(given.conn, [submission(lane="many") for _ in range(ROWS)])
    filled = await plan.fill(given)

    async with conn.transaction():
        await plan.check(conn, filled, TABLES)
