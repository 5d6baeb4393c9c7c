"""A claim that takes a shortcut gives the same answer, rows and events as one that does not."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.engine import attempts, budgets, claims, lanes, quotas
from flowfabric.model import Claim, FailureClass
from tests.given import TABLES, Given

REQUEST = UUID("00000000-0000-4000-8000-000000000001")
CALLS = "select coalesce(pg_stat_get_xact_function_calls(p.oid), 0) from pg_proc p where p.proname = $1"
NEVER = {
    "_lock_only": """
        create or replace function flowfabric._lock_only(
            place tid, capabilities text[], namespace text, partitions int[])
        returns tid[] language sql as $$ select '{}'::tid[] $$""",
    "_continue_in_route": """
        create or replace function flowfabric._continue_in_route(
            lanes text[], capabilities text[], namespace text, take int, last_route int, last_priority int,
            last_created timestamptz)
        returns tid[] language sql as $$ select '{}'::tid[] $$""",
    "_serve_one_route": """
        create or replace function flowfabric._serve_one_route(
            routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz,
            skips_late boolean, inout rooms jsonb, inout locked uuid[], inout stripes tid[], out places tid[])
        language plpgsql as $$ begin end $$""",
}
LONG_WAY = {"_lock_only": "_choose", "_continue_in_route": "_choose", "_serve_one_route": "_serve_within"}
PLAIN: dict[str, object] = {}
GPU = {"needs": ["gpu"]}
THERE = {"namespace": "there"}


async def seen(conn: asyncpg.Connection, given: Given, shortcut: str, *, short: bool, **asked: Any) -> tuple[Any, ...]:
    """The answer of a claim, all rows and events after it, and whether it took the long way; it is undone."""
    now = await conn.fetchval("select flowfabric.clock()") if short else asked.pop("now")
    transaction = conn.transaction()
    await transaction.start()
    await conn.execute(
        "create or replace function flowfabric.clock() returns timestamptz language sql stable as "
        f"$$ select '{now.isoformat()}'::timestamptz $$"
    )
    if not short:
        await conn.execute(NEVER[shortcut])
    before = await conn.fetchval(CALLS, LONG_WAY[shortcut])
    answer = await given.claim(request=REQUEST, **asked)
    is_long = await conn.fetchval(CALLS, LONG_WAY[shortcut]) > before
    rows = {
        table: [row["t"] for row in await given.rows(f"select t::text from flowfabric.{table} t order by 1")]
        for table in TABLES
        if table != "events"
    }
    events = await given.rows("select (to_jsonb(t) - 'id')::text as t from flowfabric.events_drafts t order by id")
    await transaction.rollback()
    return answer, rows, [row["t"] for row in events], is_long, now


async def same(conn: asyncpg.Connection, given: Given, shortcut: str, *, is_short: bool, **asked: Any) -> list[Claim]:
    """Compare a claim with one that may not take the shortcut, and say what both have claimed."""
    await conn.execute("set track_functions = 'all'")
    *short, is_long, now = await seen(conn, given, shortcut, short=True, **asked)
    *long, _, _ = await seen(conn, given, shortcut, short=False, now=now, **asked)
    await conn.execute("reset track_functions")

    assert short == long
    assert is_long != is_short
    taken: list[Claim] = short[0]
    return taken


async def limited(conn: asyncpg.Connection, *, spent: bool = False) -> None:
    """Create a budget and two quotas of three; with `spent`, nothing is left of the budget."""
    await budgets.create_budget(conn, "team", hard_limits={"tokens": 0 if spent else 100})
    for name in ("model", "other"):
        await quotas.create_quota(conn, name, max_concurrent=3, max_requests_per_window=3)


@pytest.mark.parametrize(
    ("ready", "asked", "is_short", "amount"),
    [
        (PLAIN, {"take": 1}, True, 1),
        ({"priority": 7, "payload": b"{}", "tags": {"a": "b"}}, {"take": 10}, True, 1),
        ({"policy": {"attempt_timeout_ms": 1000, "max_reclaim_count": 0}}, {"take": 2, "slots": 1}, True, 1),
        ({"payload": bytes(17_000)}, {"slots": 0}, True, 1),
        (GPU, {"capabilities": ["gpu", "llm"]}, True, 1),
        (GPU, {"capabilities": ["llm"]}, False, 0),
        (THERE, {"namespace": "there"}, True, 1),
        (THERE, {"namespace": "here"}, False, 0),
        (PLAIN, {"partitions": list(range(256))}, True, 1),
        (PLAIN, {"partitions": [256]}, False, 0),
        (PLAIN, {"lanes": ["default", "other", "none"]}, True, 1),
        ({"budgets": ["team"]}, PLAIN, False, 1),
        ({"quotas": ["model"]}, PLAIN, False, 1),
    ],
)
async def test_the_only_ticket_is_claimed_as_any_other(
    conn: asyncpg.Connection, given: Given, ready: Any, asked: Any, is_short: bool, amount: int
) -> None:
    await limited(conn)
    await given.submitted(**ready)

    assert len(await same(conn, given, "_lock_only", is_short=is_short, **asked)) == amount


@pytest.mark.parametrize("before", ["retry", "reclaim", "resume"])
async def test_the_only_ticket_that_ran_before_is_claimed_as_any_other(
    conn: asyncpg.Connection, given: Given, before: str
) -> None:
    first = await given.claimed(policy={"retry": {"backoff": {"type": "fixed", "delay_ms": 0}}})
    if before == "retry":
        await attempts.fail(conn, first.fence, "it broke", class_=FailureClass.TRANSIENT)
    elif before == "resume":
        await attempts.delay(conn, first.fence)
    else:
        await given.time_passes(minutes=1)
        await claims.expire_leases(conn)

    [claim] = await same(conn, given, "_lock_only", is_short=before != "retry")  # a retry is due
    assert claim.attempt.type == {"resume": "initial"}.get(before, before)


async def test_the_only_ticket_of_a_paused_lane_is_not_claimed(conn: asyncpg.Connection, given: Given) -> None:
    await given.submitted()
    await given.submitted(lane="other")
    await lanes.pause_lane(conn, "other", by="ops")

    [claim] = await same(conn, given, "_lock_only", is_short=True, lanes=["default", "other"], take=10)
    assert claim.lane == "default"


@pytest.mark.parametrize(
    ("others", "asked", "is_short"),
    [
        ([], PLAIN, True),
        ([{"lane": "other", "priority": 9}], PLAIN, True),
        ([{"lane": "other"}], PLAIN, True),
        ([{"priority": 6}], PLAIN, False),
        ([THERE], PLAIN, False),
        ([THERE | {"priority": 4}], {"namespace": "there"}, False),
        ([GPU], PLAIN, False),
        ([{"lane": "other"}], {"lanes": ["default", "other"]}, False),
        ([{"lane": "other", "priority": 9}], {"lanes": ["default", "other"]}, False),
        ([], {"partitions": list(range(256))}, False),
    ],
)
@pytest.mark.parametrize("take", [1, 3, 10])
async def test_a_claim_continues_in_the_last_route_as_any_other(
    conn: asyncpg.Connection, given: Given, others: list[Any], asked: Any, is_short: bool, take: int
) -> None:
    for _ in range(6):
        await given.submitted(priority=5)
    *_, last = await given.claim(take=2)
    for options in others:
        await given.submitted(**{"priority": 5} | options)

    taken = await same(
        conn, given, "_continue_in_route", is_short=is_short, take=take, last=last, after_route=last.route, **asked
    )
    assert not is_short or [claim.route for claim in taken] == [last.route] * min(take, 4)


@pytest.mark.parametrize("limit", [{"budgets": ["team"]}, {"quotas": ["model"]}])
async def test_a_claim_does_not_continue_in_a_limited_route(
    conn: asyncpg.Connection, given: Given, limit: dict[str, object]
) -> None:
    await limited(conn)
    for _ in range(4):
        await given.submitted(**limit)
    [last] = await given.claim()

    assert (
        len(await same(conn, given, "_continue_in_route", is_short=False, take=2, last=last, after_route=last.route))
        == 2
    )


async def test_a_claim_does_not_continue_in_a_route_without_work(conn: asyncpg.Connection, given: Given) -> None:
    await given.submitted(**THERE)
    [last] = await given.claim()
    await given.submitted(priority=0)
    await given.submitted(priority=0)

    assert (
        len(await same(conn, given, "_continue_in_route", is_short=False, take=2, last=last, after_route=last.route))
        == 2
    )


@pytest.mark.parametrize("take", [1, 3, 4])
async def test_a_claim_that_continues_has_no_lower_priorities_to_offer(
    conn: asyncpg.Connection, given: Given, take: int
) -> None:
    """It is the one difference: with more than is left of its route, lower priorities come with the next claim."""
    for priority in [5] * 6 + [4]:
        await given.submitted(priority=priority)
    *_, last = await given.claim(take=2)

    taken = await same(conn, given, "_continue_in_route", is_short=True, take=take, last=last, after_route=last.route)
    assert len(taken) == take
    for priorities in ([5] * 4, [4]):
        more = await given.claim(take=10, last=last, after_route=last.route)
        assert [claim.priority for claim in more] == priorities


MODEL = {"quotas": ["model"]}
BOTH = {"quotas": ["model", "other"]}


@pytest.mark.parametrize(
    ("ready", "asked", "is_short", "amount"),
    [
        ([MODEL] * 2, {"take": 1}, True, 1),
        ([MODEL] * 2, {"take": 3}, True, 2),
        ([BOTH] * 5, {"take": 3}, True, 3),
        ([BOTH] * 5, {"take": 4}, False, 3),
        ([MODEL] * 5 + [{"priority": 1}], {"take": 3}, True, 3),
        ([MODEL] * 5 + [{"priority": 1} | MODEL], {"take": 2}, False, 2),
        ([MODEL] * 2 + [THERE], {"take": 2}, False, 2),
        ([MODEL, BOTH], {"take": 2}, False, 2),
        ([MODEL | THERE] * 2 + [GPU], {"take": 2, "namespace": "there"}, True, 2),
        ([MODEL | GPU] * 2 + [PLAIN], {"take": 2}, True, 1),
        ([MODEL | {"budgets": ["team"]}] * 2, {"take": 1}, False, 1),
        ([MODEL | {"lane": "other"}] * 2, {"take": 1, "lanes": ["default", "other"]}, True, 1),
        ([MODEL] * 4, {"take": 2, "partitions": list(range(256))}, True, 2),
    ],
)
async def test_one_limited_route_is_served_as_many_are(
    conn: asyncpg.Connection, given: Given, ready: list[Any], asked: Any, is_short: bool, amount: int
) -> None:
    await limited(conn)
    await quotas.create_quota(conn, "model", namespace="there", max_concurrent=3, max_requests_per_window=3)
    for options in ready:
        await given.submitted(**options)

    assert len(await same(conn, given, "_serve_one_route", is_short=is_short, **asked)) == amount


async def test_a_limited_route_without_room_gives_nothing_either_way(conn: asyncpg.Connection, given: Given) -> None:
    await limited(conn)
    for _ in range(5):
        await given.submitted(**BOTH)
    assert len(await given.claim(take=3)) == 3

    assert await same(conn, given, "_serve_one_route", is_short=False, take=1) == []
