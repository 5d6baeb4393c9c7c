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

ROWS, FEW = 1_000, 200  # each entry makes up to three calls, and a call reads fewer than 100 rows
TABLES = ("tickets", "executions", "flows", "flow_edges", "edge_groups")


async def complete(conn: asyncpg.Connection, flow: Graph) -> None:
    await attempts.complete(conn, (await flow.claim("a")).fence, b"1")
    await flow.claim("b")


async def fail(conn: asyncpg.Connection, flow: Graph) -> None:
    await attempts.fail(conn, (await flow.claim("a")).fence, "no", class_="permanent")  # type: ignore[arg-type]


async def follow(conn: asyncpg.Connection, flow: Graph) -> None:
    await executions.cancel(conn, flow["a"])
    await flows.follow_ends(conn, [flow["a"]])


async def add(conn: asyncpg.Connection, flow: Graph) -> None:
    flow.conn = conn
    await flow.add("c")
    await flow.link("b", "c")


async def join(conn: asyncpg.Connection, flow: Graph) -> None:
    execution_id = mint_execution_id(beside=flow.flow_id)
    await executions.submit(conn, submission(execution_id=execution_id, lane="joins"))
    await flows.add_execution(conn, flow.flow_id, execution_id)


CALLS: dict[str, Call] = {
    "complete": complete,
    "fail": fail,
    "cancel": lambda conn, flow: executions.cancel(conn, flow["a"]),
    "add": add,
    "join": join,
    "cancel_flow": lambda conn, flow: flows.cancel_flow(conn, flow.flow_id),
    "read_inputs": lambda conn, flow: flows.read_inputs(conn, flow["b"]),
    "follow_ends": follow,
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
