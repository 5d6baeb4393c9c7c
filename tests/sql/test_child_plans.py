"""Plans of calls about children: twice as many children are twice the work, never four times."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4

import pytest

from flowfabric.engine import attempts, children, claims, executions, steps, waits
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildMap, ChildToSubmit, Claim, Completion, Suspended, Wish
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK
from tests.given import Given, submission
from tests.sql.reading import Plan
from tests.sql.test_wait_plans import TABLES as WAIT_TABLES

TABLES = [*WAIT_TABLES, "maps", "map_children"]
MANY = 1_000 if SOAK else 300
EACH = 35  # rows and index entries per child, for any call


async def family(conn: Connection, parent: Claim, into: ChildMap | None = None) -> list[ChildToSubmit]:
    """Submit many children of one parent, and adopt them."""
    asked = [
        ChildToSubmit(
            fence=parent.fence,
            name="submit",
            occurrence=number,
            execution_id=mint_execution_id(),
            submission=submission(lane="nursery"),
            map=into,
        )
        for number in range(1, MANY + 1)
    ]
    await children.submit_children(conn, asked)
    return asked


class Family(NamedTuple):
    """A parent and its children."""

    parent: Claim
    children: list[ExecutionId]


async def a_parent(given: Given) -> Claim:
    return await given.claimed()


async def born(given: Given) -> Family:
    parent = await a_parent(given)
    await family(given.conn, parent)
    found = await given.rows("select partition, id from flowfabric.executions where parent is not null")
    assert len(found) == MANY
    return Family(parent, [ExecutionId(row["partition"], row["id"]) for row in found])


async def waited_for(conn: Connection, it: Family) -> Suspended:
    wishes = [Wish(name=f"child:{child}", occurrence=1, what=child) for child in it.children]
    return await waits.suspend(conn, it.parent.fence, wishes)


async def completed(given: Given) -> Family:
    it = await born(given)
    await waited_for(given.conn, it)
    taken = await claims.claim(given.conn, "w", instance="w-1", lanes=["nursery"], take=1_000)
    assert len(taken) == MANY
    await attempts.complete_many(given.conn, [Completion(fence=claim.fence) for claim in taken])
    return it


async def delivered(given: Given) -> Family:
    it = await completed(given)
    await children.deliver_child_ends(given.conn, limit=1_000)
    return it


def cancelled(after: int) -> Callable[[Given], Awaitable[Family]]:
    """A family whose parent has been cancelled, after so many passes over its children."""

    async def fill(given: Given) -> Family:
        it = await born(given)
        await executions.cancel(given.conn, it.parent.execution_id)
        for _ in range(after):
            await children.deliver_child_ends(given.conn, limit=100)
        return it

    return fill


async def mapped(given: Given) -> Family:
    """A map of which 100 children have started, and one of them has ended."""
    parent = await a_parent(given)
    await family(given.conn, parent, ChildMap(uuid4(), 100))
    [claim] = await given.claim(lanes=["nursery"])
    await attempts.complete(given.conn, claim.fence)
    return Family(parent, [])


PLANS = {
    "submit and adopt": Plan(a_parent, family, MANY * EACH, lambda asked: len(asked) == MANY),
    "suspend": Plan(born, waited_for, MANY * EACH, lambda answer: answer.outcome == "suspended"),
    "deliver_child_ends": Plan(
        completed,
        lambda conn, _: children.deliver_child_ends(conn, limit=1_000),
        MANY * EACH,
        lambda swept: swept.moved == MANY,
    ),
    "deliver_child_ends of one of many": Plan(
        completed,
        lambda conn, _: children.deliver_child_ends(conn, limit=1),
        4 * EACH,
        lambda swept: swept.moved == 1,
    ),
    "submit to a map": Plan(
        a_parent,
        lambda conn, parent: family(conn, parent, ChildMap(uuid4(), 100)),
        MANY * 2 * EACH,
        lambda asked: len(asked) == MANY,
    ),
    "deliver_child_ends in a map": Plan(
        mapped,
        lambda conn, _: children.deliver_child_ends(conn, limit=1_000),
        8 * EACH,
        lambda swept: swept.moved == 1 and list(swept.lanes) == ["nursery"],
    ),
    "read_journal": Plan(
        delivered,
        lambda conn, it: steps.read_journal(conn, it.parent.execution_id),
        MANY * EACH,
        lambda journal: len(journal) == 2 * MANY,
    ),
} | {
    f"deliver_child_ends to orphans, pass {number + 1}": Plan(
        cancelled(after=number),
        lambda conn, _: children.deliver_child_ends(conn, limit=100),
        200 * EACH,
        lambda swept: swept.moved == 100,
    )
    for number in range(MANY // 100)
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
async def test_a_call_reads_in_proportion_to_the_children_it_handles(given: Given, plan: Plan) -> None:
    async with given.conn.transaction():
        await plan.check(given.conn, await plan.fill(given), TABLES)
