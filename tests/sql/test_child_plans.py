"""What a family reads: twice as many children are twice the work, never four times."""

from typing import Any

from msgspec.structs import replace

from flowfabric.engine import attempts, children, claims, executions, steps, waits
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildToSubmit, Claim, Completion, Wish
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK
from tests.given import Given, submission
from tests.sql.test_wait_plans import reading

MANY = 1_000 if SOAK else 300
EACH = 40  # rows and index entries for one child, whatever is done with it


async def family(conn: Connection, parent: Claim) -> list[ChildToSubmit]:
    """Many children of one parent."""
    asked = [
        ChildToSubmit(
            fence=parent.fence,
            name="submit",
            occurrence=number,
            execution_id=mint_execution_id(),
            submission=submission(lane="nursery"),
        )
        for number in range(1, MANY + 1)
    ]
    await children.find_children(conn, asked)
    await executions.submit_many(conn, [replace(one.submission, execution_id=one.execution_id) for one in asked])
    await children.adopt_children(conn, asked)
    return asked


async def read(conn: Connection, call: Any) -> int:
    answer, counted = await reading(conn, call)
    assert answer
    return counted.rows


async def test_a_large_family_is_submitted_waited_for_told_and_read_in_proportion(given: Given) -> None:
    conn, parent = given.conn, await given.claimed()
    async with conn.transaction():
        assert await read(conn, family(conn, parent)) < MANY * EACH
        found = await conn.fetch("select partition, id from flowfabric.executions where parent is not null")
        born = [ExecutionId(row["partition"], row["id"]) for row in found]
        wishes = [Wish(name=f"child:{child}", occurrence=1, what=child) for child in born]
        assert await read(conn, waits.suspend_together(conn, parent.fence, wishes)) < MANY * EACH
        taken = await claims.claim(conn, "w", instance="w-1", lanes=["nursery"], take=1_000)
        await attempts.complete_many(conn, [Completion(fence=claim.fence) for claim in taken])
        assert await read(conn, children.deliver_child_ends(conn, limit=1_000)) < MANY * EACH
        assert await read(conn, steps.read_journal(conn, parent.execution_id)) < MANY * EACH
        assert len(born) == len(taken) == MANY


async def test_a_large_family_is_cancelled_in_passes_that_read_no_more_than_they_move(given: Given) -> None:
    conn, parent = given.conn, await given.claimed()
    async with conn.transaction():
        await family(conn, parent)
        await executions.cancel(conn, parent.execution_id)
        for _ in range(MANY // 100):
            assert await read(conn, children.deliver_child_ends(conn, limit=100)) < 200 * EACH
