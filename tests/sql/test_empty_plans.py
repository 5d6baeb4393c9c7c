"""Plans that a session has made while the tables were empty stay for as long as it lives, and must serve full ones."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, executions, waits
from flowfabric.model import Claim, Completion, Delay, FailureReport, SignalToSend, Suspension, Wish
from tests.conftest import Connect
from tests.given import Given, submission
from tests.sql.reading import pin, reading

Call = Callable[[asyncpg.Connection, Claim], Awaitable[Any]]

ROWS, FEW = 3_000, 100
STORIES = {"signals": 300}  # seven calls; the others are one to three
TABLES = ("tickets", "executions", "idempotency_keys")

WISH = Wish(
    name="go",
    occurrence=1,
    what=Suspension(condition={"kind": "single", "waitpoint": "go", "name": "go"}, waitpoints=["go"]),
)


async def signalled(conn: asyncpg.Connection, *waiting: Claim) -> None:
    """Some that wait, and a signal to each in one call."""
    signals = []
    for it in waiting:
        point = await waits.create_waitpoint(conn, it.fence, "go")
        await waits.suspend_together(conn, it.fence, [WISH])
        signals.append(
            SignalToSend(execution_id=it.execution_id, waitpoint_id=point.waitpoint_id, token=point.token, name="go")
        )
    await waits.deliver_signals(conn, signals)


async def two_signalled(conn: asyncpg.Connection, it: Claim) -> None:
    await executions.submit(conn, submission(lane="few"))
    await signalled(conn, it, *await claims.claim(conn, "w", instance="other", lanes=["few"]))


CALLS: dict[str, Call] = {
    "submit": lambda conn, _: executions.submit(conn, submission(lane="few")),
    "submit with a key": lambda conn, it: executions.submit(conn, submission(lane="few", key=str(it.execution_id))),
    "renew": lambda conn, it: claims.renew_many(conn, [it.fence]),
    "complete": lambda conn, it: attempts.complete_many(conn, [Completion(fence=it.fence)]),
    "delay": lambda conn, it: attempts.delay_many(conn, [Delay(fence=it.fence)]),
    "fail": lambda conn, it: attempts.fail_many(conn, [FailureReport(fence=it.fence, reason="none")]),
    "suspend": lambda conn, it: waits.suspend_together(conn, it.fence, [WISH]),
    "signal": signalled,
    "signals": two_signalled,
    "cancel": lambda conn, it: executions.cancel(conn, it.execution_id, by="test"),
    "revoke": lambda conn, it: claims.revoke(conn, it.execution_id, by="test"),
    "describe": lambda conn, it: executions.describe(conn, it.execution_id),
    "list_ended": lambda conn, it: executions.list_ended(conn, [it.execution_id]),
}


async def emptied(connect: Connect, given: Given) -> asyncpg.Connection:
    """A new session, with tables of which the planner knows that they are empty."""
    await given.conn.execute("vacuum analyze")
    await pin(await connect())
    return await connect()


async def fill(given: Given) -> None:
    """Many that wait in another lane, which nothing tells the planner of."""
    await executions.submit_many(given.conn, [submission(lane="many") for _ in range(ROWS)])


async def read_when_full(connect: Connect, given: Given, call: Call) -> int:
    """How much a call reads of full tables in a session that has made it often enough while they were empty."""
    conn = await emptied(connect, given)
    for _ in range(7):  # after five a statement without a plan of its own gets one for good
        await call(conn, await given.claimed(lane="few"))
        await claims.claim(conn, "w", instance="other", lanes=["few"], take=10)
    await fill(given)
    claim = await given.claimed(lane="few")
    async with conn.transaction():
        _, read = await reading(conn, call(conn, claim), TABLES)
    return read.rows


@pytest.mark.parametrize("name", CALLS)
async def test_a_plan_made_on_empty_tables_reads_no_more_of_full_ones(
    connect: Connect, given: Given, name: str
) -> None:
    assert await read_when_full(connect, given, CALLS[name]) <= STORIES.get(name, FEW)


async def test_a_claim_planned_on_empty_tables_reads_no_more_of_full_ones(connect: Connect, given: Given) -> None:
    conn = await emptied(connect, given)
    for _ in range(7):
        await given.submitted(lane="few")
        await claims.claim(conn, "w", instance="i", lanes=["few"], take=10)
    await fill(given)
    await given.submitted(lane="few")

    async with conn.transaction():
        taken, read = await reading(conn, claims.claim(conn, "w", instance="i", lanes=["few"], take=10), TABLES)

    assert len(taken) == 1
    assert read.rows <= FEW
