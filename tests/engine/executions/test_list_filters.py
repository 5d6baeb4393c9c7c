"""Lists of the execution with a key, and of the children of an execution."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, children, executions, waits
from flowfabric.errors import FlowFabricError, InvalidName, InvalidText
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildToSubmit, Claim, Page, PublicState, Wish
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission
from tests.sql.reading import reading


async def listed(conn: Connection, **filters: Any) -> list[ExecutionId]:
    return [one.execution_id for one in (await executions.list_executions(conn, **filters)).items]


async def born(given: Given, parent: Claim, many: int = 1, **options: Any) -> list[ExecutionId]:
    """Children of a running parent."""
    asked = [
        ChildToSubmit(
            fence=parent.fence,
            name="submit:child",
            occurrence=number,
            execution_id=mint_execution_id(),
            submission=submission(lane="nursery", **options),
        )
        for number in range(1, many + 1)
    ]
    await children.submit_children(given.conn, asked)
    return [child.execution_id for child in asked]


async def test_a_key_finds_its_execution_in_its_namespace(conn: Connection, given: Given) -> None:
    here = await given.submitted(key="order 17", tags={"a.b": "c"})
    there = await given.submitted(key="order 17", namespace="acme")
    await given.submitted(key="order 18")

    assert await listed(conn, key="order 17") == await listed(conn, key="order 17", namespace="default") == [here]
    assert await listed(conn, key="order 17", namespace="acme", order="id") == [there]
    assert await listed(conn, key="order 17", states=[PublicState.WAITING], tag=("a.b", "c")) == [here]
    for other in ({"key": "x"}, {"lane": "x"}, {"states": ["failed"]}, {"tag": ("a.b", "d")}, {"task": "x"}):
        assert await listed(conn, **{"key": "order 17", **other}) == []


async def test_a_key_finds_an_execution_that_has_ended(conn: Connection, given: Given) -> None:
    done = await given.completed(key="k")

    assert await listed(conn, key="k", states=[PublicState.COMPLETED]) == [done]
    assert await listed(conn, key="k", states=[PublicState.ACTIVE]) == []


@pytest.mark.parametrize(("key", "refusal"), [("", InvalidName), ("a\0", InvalidText), ("\udcff", InvalidText)])
async def test_a_key_that_no_execution_can_have_is_refused(
    conn: Connection, key: str, refusal: type[FlowFabricError]
) -> None:
    with pytest.raises(refusal):
        await executions.list_executions(conn, key=key)


async def test_a_child_names_its_parent_and_the_parent_lists_its_children(conn: Connection, given: Given) -> None:
    parent = await given.claimed()
    first, second = await born(given, parent, 2, tags={"a.b": "c"})
    await executions.cancel(conn, second)
    it = parent.execution_id

    assert (await executions.describe(conn, first)).parent_id == it
    assert (await executions.describe(conn, it)).parent_id is None
    assert sorted(await listed(conn, parent=it)) == sorted([first, second])
    assert await listed(conn, parent=it, states=[PublicState.WAITING], tag=("a.b", "c")) == [first]
    assert await listed(conn, parent=it, states=[PublicState.CANCELLED], order="id") == [second]
    assert await listed(conn, parent=it, lease_expired=True) == []
    assert await executions.list_executions(conn, parent=mint_execution_id()) == Page([])


async def test_the_event_of_a_parent_names_the_child_that_ended(conn: Connection, given: Given) -> None:
    parent = await given.claimed()
    [child] = await born(given, parent)
    await waits.suspend(conn, parent.fence, [Wish(name="child", occurrence=1, what=child)])
    [claim] = await given.claim(lanes=["nursery"])
    await attempts.complete(conn, claim.fence)
    await children.deliver_child_ends(conn)

    detail = await given.event("signal_delivered", parent.execution_id)
    assert (detail["child"], detail["name"]) == (str(child), "completed")


async def test_a_key_and_a_parent_read_only_what_they_name(conn: Connection, given: Given) -> None:
    for number in range(300):
        await given.submitted(key=f"k{number}", delay=timedelta(hours=1))
    parent = await given.claimed()
    await born(given, parent, 20)
    await given.rows("analyze flowfabric.executions, flowfabric.tickets, flowfabric.idempotency_keys")

    tables = ["executions", "tickets", "idempotency_keys", "tags"]
    for filters, count in (({"key": "k7"}, 1), ({"parent": parent.execution_id, "limit": 5}, 5)):
        for more in ({}, {"states": [PublicState.WAITING, PublicState.DELAYED]}):
            async with conn.transaction():
                call = executions.list_executions(conn, **filters, **more)  # type: ignore[arg-type]
                page, read = await reading(conn, call, tables)
            assert len(page.items) == count
            assert read.rows <= 400, (filters, read)
