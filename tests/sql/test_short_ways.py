"""The short way and the long way of a call give the same answer, rows and events."""

import uuid
from datetime import UTC, datetime

import asyncpg
import msgspec
import pytest

from flowfabric.engine import budgets
from tests.given import TABLES, Given

ID = uuid.UUID("00000000-0000-8000-8000-000000000001")
CALLS = "select coalesce(pg_stat_get_xact_function_calls('flowfabric._write_submissions'::regproc), 0)"
SUBMIT = """
select s.*
from flowfabric.submit(array[$1], null, array[1], array[$2::uuid], payloads => array[$3::bytea],
                       priorities => array[$4::int], tags => $5, counted_from => $6, payload_limit => 20000) s"""


async def seen(conn: asyncpg.Connection, given: Given, *item: object, tags: list[None] | None) -> tuple[object, ...]:
    """The answer of a submission and all rows after it, which is then undone; `tags` without tags is the long way."""
    transaction = conn.transaction()
    await transaction.start()
    before = await conn.fetchval(CALLS)
    [answer] = await conn.fetch(SUBMIT, *item, tags, datetime(2026, 1, 1, tzinfo=UTC))
    long_calls = await conn.fetchval(CALLS) - before
    rows = {
        table: await given.rows(f"select t::text from flowfabric.{table} t order by 1")
        for table in [*TABLES, "routes"]
        if table != "events"
    }
    events = await given.rows(
        "select (to_jsonb(t) - '{at,id}'::text[])::text from flowfabric.events_drafts t order by id"
    )
    await transaction.rollback()
    return tuple(answer), rows, events, long_calls


@pytest.mark.parametrize("priority", [None, 7, -1, 9001])
@pytest.mark.parametrize("payload", [None, b"", bytes(16 * 1024), bytes(16 * 1024 + 1), bytes(20_001)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoding": "msgpack", "creator": "ops", "policy": {"retention_ms": 1000}},
        {"budgets": ["team"]},
        {"task": ""},
    ],
)
async def test_a_plain_submission_is_written_as_any_other(
    conn: asyncpg.Connection, given: Given, options: dict[str, object], payload: bytes | None, priority: int | None
) -> None:
    await budgets.create_budget(conn, "team", hard_limits={"tokens": 100})
    await given.submitted()
    await given.submitted(budgets=["team"])
    await conn.execute("set track_functions = 'all'")
    item = (msgspec.json.encode({"task": "report"} | options).decode(), ID, payload, priority)

    short = await seen(conn, given, *item, tags=None)
    long = await seen(conn, given, *item, tags=[None])
    assert short[:3] == long[:3]
    is_plain = "task" not in options and len(payload or b"") <= 20_000 and priority in (None, 7)
    assert (short[3], long[3]) == (0 if is_plain else 1, 1)
