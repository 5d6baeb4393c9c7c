"""Operations on a flow use key lookups, even with plans made on empty tables: they do not read other flows."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, executions, flows
from flowfabric.ids import mint_execution_id, mint_flow_id
from flowfabric.model import Link, Member
from tests.conftest import Connect
from tests.engine.flows.scene import Graph, graph
from tests.given import Given, submission
from tests.sql.reading import pin, reading

Call = Callable[[asyncpg.Connection, Graph], Awaitable[Any]]

ROWS, FEW = 1_000, 300  # each entry makes up to four calls, and a call reads fewer than 100 rows
TABLES = ("tickets", "executions", "flows", "flow_edges", "edge_groups")
MANY_FLOWS, MANY_MEMBERS = 200, 20
COMPLETED = f"""
with made as (
    insert into flowfabric.flows (partition, id, namespace, kind, node_count, created_at, changed_at)
    select 0, gen_random_uuid(), 'default', 'many', {MANY_MEMBERS}, now(), now() from generate_series(1, {MANY_FLOWS})
    returning id
)
insert into flowfabric.executions (partition, id, route, task, priority, created_at, outcome, ended_at, flow)
select 0, gen_random_uuid(), (select min(route) from flowfabric.executions), 'many', 0, now(), 'success', now(), m.id
from made m cross join generate_series(1, {MANY_MEMBERS})"""


async def complete(conn: asyncpg.Connection, flow: Graph) -> None:
    await attempts.complete(conn, (await flow.claim("a")).fence, b"1")
    await flow.claim("b")


async def fail(conn: asyncpg.Connection, flow: Graph) -> None:
    await attempts.fail(conn, (await flow.claim("a")).fence, "no", class_="permanent")  # type: ignore[arg-type]


async def add(conn: asyncpg.Connection, flow: Graph) -> None:
    flow.conn = conn
    await flow.add("c")
    await flow.link("b", "c")


async def join(conn: asyncpg.Connection, flow: Graph) -> None:
    execution_id = mint_execution_id(beside=flow.flow_id)
    await executions.submit(conn, submission(execution_id=execution_id, lane="joins"))
    await flows.add_execution(conn, flow.flow_id, execution_id)


async def replay(conn: asyncpg.Connection, flow: Graph) -> None:
    await fail(conn, flow)
    for name in "ba":
        await executions.replay(conn, flow[name], by="ops")


CALLS: dict[str, Call] = {
    "replay": replay,
    "complete": complete,
    "fail": fail,
    "cancel": lambda conn, flow: executions.cancel(conn, flow["a"]),
    "add": add,
    "join": join,
    "cancel_flow": lambda conn, flow: flows.cancel_flow(conn, flow.flow_id),
    "read_inputs": lambda conn, flow: flows.read_inputs(conn, flow["b"]),
    "expire": lambda conn, flow: executions.expire_executions(conn),
}


async def fill(given: Given, partition: int) -> None:
    """A large flow in the partition, a chain of members; the planner has no statistics about it."""
    many = [Member(name=str(number), submission=submission(lane="many")) for number in range(ROWS)]
    edges = [Link(upstream=str(number), downstream=str(number + 1)) for number in range(ROWS - 1)]
    flow_id = next(made for made in iter(mint_flow_id, None) if made.partition == partition)
    await flows.submit_flow(given.conn, "many", many, edges, flow_id=flow_id)


@pytest.mark.parametrize("name", CALLS)
async def test_a_plan_made_on_empty_tables_reads_no_more_of_a_large_flow(
    connect: Connect, given: Given, name: str
) -> None:
    conn = await connect()
    await given.conn.execute("vacuum analyze")
    await pin(await connect())
    for _ in range(7):
        flow = await graph(conn, b="a")
        await CALLS[name](conn, flow)
        await given.rows("delete from flowfabric.tickets")
    flow = await graph(given.conn, b="a")
    await fill(given, flow.flow_id.partition)
    flow.conn = conn

    async with conn.transaction():
        _, read = await reading(conn, CALLS[name](conn, flow), TABLES)
    assert read.rows <= FEW


@pytest.mark.parametrize("state", ["running", "blocked", "cancelled"])
async def test_a_list_of_flows_by_state_counts_only_flows_in_that_state(conn: asyncpg.Connection, state: str) -> None:
    """Most flows have completed, and have many members."""
    flow = await graph(conn, b="a")
    if state == "running":
        await flow.claim("a")
    elif state == "cancelled":
        await flows.cancel_flow(conn, flow.flow_id)
    else:
        await conn.execute("update flowfabric.tickets set eligibility = 'blocked_by_dependencies' where lane = 'a'")
    await conn.execute(COMPLETED)
    async with conn.transaction():
        found, read = await reading(conn, flows.list_flows(conn, state=state), TABLES)

    assert [it.flow_id for it in found.items] == [flow.flow_id]
    assert read.rows <= MANY_FLOWS * 5
