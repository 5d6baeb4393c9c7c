"""Trees: an execution with its children, their children, and so on."""

import pytest

from flowfabric.engine import attempts, children, executions
from flowfabric.errors import ExecutionNotFound, InvalidLimit
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildToSubmit, Claim, ExecutionTree
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission
from tests.sql.reading import reading


async def born(given: Given, parent: Claim, many: int, **options: object) -> list[ExecutionId]:
    """Children of a running parent, in this order."""
    asked = [
        ChildToSubmit(
            fence=parent.fence,
            name=f"submit:{options}",
            occurrence=number,
            execution_id=mint_execution_id(),
            submission=submission(**options),
        )
        for number in range(1, many + 1)
    ]
    await children.submit_children(given.conn, asked)
    return [each.execution_id for each in asked]


def shape(tree: ExecutionTree) -> object:
    """The tree as nested tasks."""
    return {tree.execution.task: [shape(child) for child in tree.children]} if tree.children else tree.execution.task


async def test_a_tree_has_children_and_grandchildren_in_the_order_of_their_creation(
    conn: Connection, given: Given
) -> None:
    top = await given.claimed(task="report")
    await born(given, top, 2, task="search", lane="search")
    await born(given, top, 1, task="write")
    for claim in await given.claim(lanes=["search"], take=2):
        await born(given, claim, 1, task="page")

    tree = await executions.read_tree(conn, top.execution_id)
    assert shape(tree) == {"report": [{"search": ["page"]}, {"search": ["page"]}, "write"]}
    assert (tree.child_count, tree.child_states) == (3, {"active": 2, "waiting": 1})
    assert [child.execution.parent_id for child in tree.children] == [top.execution_id] * 3
    leaf = await executions.read_tree(conn, tree.children[2].execution.execution_id)
    assert (leaf.execution.task, leaf.children, leaf.child_count, leaf.child_states) == ("write", [], 0, {})


async def test_of_many_children_the_failed_and_the_unfinished_ones_come_first_and_all_are_counted(
    conn: Connection, given: Given
) -> None:
    top = await given.claimed()
    many = await born(given, top, 500, lane="many", policy={"retry": {"max_retries": 0}})
    taken = await given.claim(lanes=["many"], take=499)
    for number, claim in enumerate(taken):
        if number in {250, 300}:
            await attempts.fail(conn, claim.fence, "no tide")
        elif number != 400:
            await attempts.complete(conn, claim.fence, b"1")

    tree = await executions.read_tree(conn, top.execution_id, per_parent=5)
    assert tree.child_states == {"completed": 496, "failed": 2, "active": 1, "waiting": 1}
    assert tree.child_count == len(many)
    states = [child.execution.state.public_state for child in tree.children]
    assert states == ["failed", "failed", "active", "waiting", "completed"]


async def test_a_tree_is_limited_in_all_directions(conn: Connection, given: Given) -> None:
    top = await given.claimed()
    claim = top
    for depth in range(25):
        await born(given, claim, 3, lane=f"level-{depth}")
        [claim] = await given.claim(lanes=[f"level-{depth}"])

    deep = await executions.read_tree(conn, top.execution_id, limit=1_000)
    levels, node = 1, deep
    while node.children:
        levels, node = levels + 1, max(node.children, key=lambda child: child.child_count)
    assert (levels, node.child_count) == (20, 3)
    assert _size(await executions.read_tree(conn, top.execution_id, limit=7)) == 7
    assert _size(await executions.read_tree(conn, top.execution_id, per_parent=1, limit=1_000)) <= 20
    alone = await executions.read_tree(conn, top.execution_id, per_parent=0)
    assert (_size(alone), alone.child_count) == (1, 3)


async def test_what_cannot_be_is_refused(conn: Connection, given: Given) -> None:
    with pytest.raises(ExecutionNotFound):
        await executions.read_tree(conn, mint_execution_id())
    for options in ({"limit": -1}, {"per_parent": -1}):
        with pytest.raises(InvalidLimit):
            await executions.read_tree(conn, await given.submitted(), **options)


async def test_a_tree_reads_only_the_family(conn: Connection, given: Given) -> None:
    for _ in range(20):
        await born(given, await given.claimed(), 100, lane="many")
    top = await given.claimed()
    await born(given, top, 50, lane="own")
    await conn.execute("analyze flowfabric.executions")

    async with conn.transaction():
        tree, read = await reading(conn, executions.read_tree(conn, top.execution_id), ["executions", "tickets"])
    assert len(tree.children) == 20
    assert (read.rows <= 1_000, read.whole) == (True, 0), read


def _size(tree: ExecutionTree) -> int:
    return 1 + sum(map(_size, tree.children))
