"""Executions and flows by the beginning of their id."""

from uuid import UUID

import asyncpg
import pytest

from flowfabric import ids
from flowfabric.engine import executions, flows
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission


def numbered(first: int, partition: int) -> UUID:
    """A UUID that begins with 8 digits of its own."""
    return ids.stamped(first << 96, partition)


async def test_only_executions_that_begin_so_match_the_newest_first(conn: Connection, given: Given) -> None:
    asked = [ExecutionId.of(numbered(first, partition)) for first in (1, 2, 3) for partition in (0, 200, 255)]
    for each in asked:
        await given.submitted(execution_id=each)
    await given.submitted(execution_id=ExecutionId(7, UUID(int=2 << 96)))

    span = ids.read_prefix("00000002")
    assert span is not None
    found = await executions.match_executions(conn, *span)
    assert [each.partition for each in found] == [255, 200, 0, 7]
    assert {str(each)[:8] for each in found if each.partition != 7} == {"00000002"}
    assert await executions.match_executions(conn, *span, limit=2) == found[:2]
    assert await executions.match_executions(conn, *span, limit=0) == []


async def test_ended_executions_match_too(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled()

    assert await executions.match_executions(conn, execution_id.uuid, execution_id.uuid) == [execution_id]
    assert await flows.match_flows(conn, execution_id.uuid, execution_id.uuid) == []


async def test_only_flows_that_begin_so_match(conn: Connection) -> None:
    wanted, other = (FlowId.of(numbered(first, 24)) for first in (1, 2))
    for each in (wanted, other):
        await flows.create_flow(conn, "report", flow_id=each)

    span = ids.read_prefix("00000001")
    assert span is not None
    assert await flows.match_flows(conn, *span) == [wanted]
    assert await executions.match_executions(conn, *span) == []


@pytest.mark.parametrize("kind", ["executions", "flows"])
async def test_a_match_reads_a_few_rows_per_partition(conn: asyncpg.Connection, kind: str) -> None:
    """Ten thousand ids of one moment, whose digits are the same: at most six are read in each partition."""
    shared = [ids.stamped(7 << 96 | number, number % 256) for number in range(10_000)]
    if kind == "executions":
        await executions.submit_many(conn, [submission(execution_id=ExecutionId.of(each)) for each in shared])
        match = executions.match_executions
    else:
        await conn.execute(
            "insert into flowfabric.flows (partition, id, namespace, kind, created_at, changed_at)"
            " select p, id, 'default', 'k', now(), now() from unnest($1::int[], $2::uuid[]) as x (p, id)",
            [each.int % 256 for each in shared],
            shared,
        )
        match = flows.match_flows  # type: ignore[assignment]
    await conn.execute("analyze")
    read = f"select pg_stat_get_xact_tuples_fetched('flowfabric.{kind}'::regclass)"
    scanned = f"select pg_stat_get_xact_tuples_returned('flowfabric.{kind}'::regclass)"

    async with conn.transaction():
        found = await match(conn, UUID(int=7 << 96), UUID(int=(8 << 96) - 1))
        assert len(found) == 6
        assert await conn.fetchval(read) <= 256 * 6
        assert await conn.fetchval(scanned) == 0, "it never scans the table"
