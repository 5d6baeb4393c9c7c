"""The shortcuts of waits say what the long way says, and a signal that takes one leaves the same rows and events."""

import json
from itertools import product

import asyncpg
import pytest

from flowfabric.engine import waits
from tests.engine.waits.scene import ANY, APPROVE, Waiting, approvals, waiting
from tests.given import TABLES, Given

ONE = {"kind": "count", "n": 1, "of": "distinct_sources", "name": "approve", "waitpoints": ["w"]}
FROM = {**ANY, "source_type": "operator"}
BOTH = {"kind": "all_of", "members": [ANY, APPROVE]}
OTHER = {"kind": "single", "waitpoint": "v"}
EITHER = {"kind": "any_of", "members": [APPROVE, OTHER]}
CONDITIONS: list[object] = [ANY, APPROVE, ONE, {**ONE, "n": 2}, FROM, BOTH, EITHER, approvals(1), approvals(2)]


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_condition_that_one_signal_meets_holds(conn: asyncpg.Connection, condition: object) -> None:
    for key, name, source in product("wv", ["approve", "reject"], ["operator", "external"]):
        signal = {"id": "s", "waitpoint": key, "name": name, "source_type": source, "source_identity": "ann"}
        row = await conn.fetchrow(
            "select flowfabric._is_met($1, $2, $3, $4) as met, flowfabric._judge($1, $5) is not null as holds",
            *(json.dumps(condition), key, name, source, json.dumps([signal])),
        )
        assert row is not None
        assert row["met"] in (None, row["holds"])


NEVER_MET = """
create or replace function flowfabric._is_met(condition jsonb, key text, name text, source_type text)
returns boolean language sql as 'select null::boolean'
"""


async def sent(conn: asyncpg.Connection, given: Given, asked: Waiting, name: str, *, short: bool) -> object:
    """The answer of a signal and all rows after it, which is then undone."""
    transaction = conn.transaction()
    await transaction.start()
    if not short:
        await conn.execute(NEVER_MET)
    signal = asked.signal(name, signal_id=asked.answer.suspension_id)
    answer = await waits.deliver_signal(conn, signal)
    rows = {
        table: await given.rows(
            f"select (to_jsonb(t) - '{MOMENTS}'::text[])::text from flowfabric.{table} t order by 1"
        )
        for table in TABLES
        if table != "events"
    }
    events = await given.rows(
        "select (to_jsonb(t) - '{at,id}'::text[])::text from flowfabric.events_drafts t order by id"
    )
    await transaction.rollback()
    return answer, rows, events


MOMENTS = "{at,ended_at,closed_at}"


@pytest.mark.parametrize("condition", [ANY, APPROVE, ONE, approvals(1)])
@pytest.mark.parametrize("name", ["approve", "reject"])
async def test_a_signal_is_applied_as_any_other(
    conn: asyncpg.Connection, given: Given, condition: dict[str, object], name: str
) -> None:
    asked = await waiting(given, condition)

    short = await sent(conn, given, asked, name, short=True)
    assert short == await sent(conn, given, asked, name, short=False)
