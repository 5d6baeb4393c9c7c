"""A suspension that takes the shortcut gives the same answer, rows and events as one that does not."""

from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric import signing
from flowfabric.engine import waits
from flowfabric.errors import FlowFabricError
from flowfabric.model import Claim, Wish
from tests.engine.waits.scene import ANY, APPROVE, approvals, to, wish
from tests.given import TABLES, Given

HOUR = timedelta(hours=1)
CALLS = "select coalesce(pg_stat_get_xact_function_calls('flowfabric._suspend'::regproc), 0)"
NEVER_SHORT = """
create or replace function flowfabric._suspend_for_one(partition smallint, id uuid, wishes jsonb, now timestamptz)
returns text language sql as 'select null::text'
"""
POLICY = {"suspension": {"default_timeout_ms": 5000, "timeout_behavior": "auto_resume_with_timeout_signal"}}
POINTS = [{**ANY, "waitpoint": key} for key in "wv"]


async def seen(
    conn: asyncpg.Connection, given: Given, claim: Claim, asked: Any, now: datetime, *, short: bool
) -> tuple[object, ...]:
    """The answer of a suspension, all rows after it, which is then undone, and whether the long way was taken."""
    transaction = conn.transaction()
    await transaction.start()
    await conn.execute(
        "create or replace function flowfabric.clock() returns timestamptz language sql stable as "
        f"$$ select '{now.isoformat()}'::timestamptz $$"
    )
    if not short:
        await conn.execute(NEVER_SHORT)
    before = await conn.fetchval(CALLS)
    ids: list[tuple[str, str]] = []
    answer: object
    try:
        told = await waits.suspend(conn, claim.fence, asked)
    except FlowFabricError as refused:
        answer = (type(refused), str(refused))
    else:
        ids = [(str(told.suspension_id), "suspension")]
        for point in told.waitpoints:
            token = point.token or ""
            ids += [(str(point.id), point.key), (token, "token"), (signing.fingerprint(token), "fingerprint")]
        answer = same(str(told.outcome) + str([(p.key, p.id, p.token) for p in told.waitpoints]), ids)
    is_long = await conn.fetchval(CALLS) > before
    rows = {
        table: [
            same(row, ids) for row in await given.rows(f"select to_jsonb(t)::text from flowfabric.{table} t order by 1")
        ]
        for table in TABLES
        if table not in ("events", "waits", "waitpoints")
    }
    for table, order in (("waits", "name, suspended_at, reason_code"), ("waitpoints", "key, created_at")):
        found = await given.rows(f"select to_jsonb(t)::text from flowfabric.{table} t order by {order}")
        rows[table] = [same(row, ids) for row in found]
    events = await given.rows("select (to_jsonb(t) - 'id')::text from flowfabric.events_drafts t order by id")
    await transaction.rollback()
    return answer, rows, [same(event, ids) for event in events], is_long


def same(row: object, ids: list[tuple[str, str]]) -> str:
    """The text of a row, with words instead of its random ids."""
    text = str(row)
    for random, word in ids:
        text = text.replace(random, word)
    return text


@pytest.mark.parametrize(
    ("asked", "is_short"),
    [
        (wish(), True),
        (Wish(name="answer", occurrence=2, what=wish()), True),
        (Wish(name="answer", occurrence=1, choice=3, what=wish(approvals(2))), True),
        (wish(timeout=HOUR, timeout_behavior="cancel", resume_delay=HOUR), True),
        (wish(reason_code="manual_pause", requested_by="operator", about=b"\0?", bind=True), True),
        (wish(approvals(2), ["v"]), False),
        (wish({"kind": "all_of", "members": POINTS}, ["w", "v"]), False),
        (wish({"kind": "operator_only"}, []), False),
        (wish(reason_code="whim"), False),
        (wish(ANY, ["x"]), False),
        (wish(resume_delay=-HOUR), False),
        (wish(bind=True), False),
        ([Wish(name="a", occurrence=1, what=wish()), Wish(name="b", occurrence=1, what=wish(ANY, ["v"]))], False),
    ],
)
@pytest.mark.parametrize("policy", [None, POLICY])
async def test_a_lone_plain_wait_suspends_as_any_other(
    conn: asyncpg.Connection, given: Given, asked: Any, is_short: bool, policy: dict[str, object] | None
) -> None:
    claim = await given.claimed(policy=policy or {})
    await conn.execute("set track_functions = 'all'")
    now = await conn.fetchval("select flowfabric.clock()")

    short = await seen(conn, given, claim, asked, now, short=True)
    long = await seen(conn, given, claim, asked, now, short=False)

    assert short[:3] == long[:3]
    assert (short[3], long[3]) == (not is_short, True)


@pytest.mark.parametrize("clock", [timedelta(0), -HOUR])
async def test_a_wait_for_a_key_whose_waitpoint_is_closed_gets_a_later_one(
    conn: asyncpg.Connection, given: Given, clock: timedelta
) -> None:
    claim = await given.claimed(lease=HOUR)
    told = await waits.suspend(conn, claim.fence, Wish(name="a", occurrence=1, what=wish()))
    [point] = told.waitpoints
    await waits.deliver_signal(conn, to(claim.execution_id, point.id, point.token or ""))
    [again] = await given.claim(lanes=["default"], lease=HOUR)
    await given.time_passes(seconds=clock.total_seconds())
    await conn.execute("set track_functions = 'all'")
    now = await conn.fetchval("select flowfabric.clock()")

    for name, is_short in (("a", False), ("b", True)):
        asked = Wish(name=name, occurrence=1, what=wish())
        short = await seen(conn, given, again, asked, now, short=True)
        long = await seen(conn, given, again, asked, now, short=False)
        assert short[:3] == long[:3]
        assert (short[3], long[3]) == (not is_short, True)


async def test_a_waitpoint_that_exists_takes_no_shortcut(conn: asyncpg.Connection, given: Given) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "w")
    await conn.execute("set track_functions = 'all'")
    now = await conn.fetchval("select flowfabric.clock()")

    for asked in (wish(), wish(APPROVE, [("w", made.waitpoint_id)])):
        short = await seen(conn, given, claim, asked, now, short=True)
        assert short == await seen(conn, given, claim, asked, now, short=False)
    await conn.execute("delete from flowfabric.keys")
    short = await seen(conn, given, claim, wish(ANY, ["w"]), now, short=True)
    assert short == await seen(conn, given, claim, wish(ANY, ["w"]), now, short=False)
