"""How much a claim reads: the routes it visits and the rows it takes, whatever the backlog."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from string import Template
from typing import Any

import asyncpg
import pytest

from flowfabric import ids
from flowfabric.engine import attempts, budgets, claims, executions, lanes
from flowfabric.model import Completion, Delay, FailureClass, FailureReport, UsageReport
from tests.conftest import SOAK, Connect, Server
from tests.filled import copied, undone
from tests.given import Given, claim, submission
from tests.sql.reading import Read
from tests.sql.reading import reading as reading_of

BACKLOG = 1_000_000 if SOAK else 200_000
IN_FRONT = 100_000 if SOAK else 20_000
FLOOD = 10_000
ROUTES = 5_000
BEHIND = 1_000_000 if SOAK else 20_000
LEVELS = 9_000 if SOAK else 2_000

# Lanes: large and small differ in nothing but their backlog. In barred, work that needs a GPU is in front of one that
# needs nothing; levels has the same, each at another priority. later has only delayed work, flood a large and a small
# tenant, and many a route per tenant. capped has work with a quota of one in front of one without; spent the same with
# a budget; customers has a route and a quota per customer, and shared a route per customer and one quota for all.
FILL = Template("""
insert into flowfabric.lanes (name, since)
select name, now() from unnest(array['large', 'small', 'barred', 'stopped', 'open', 'later', 'flood', 'many']) name
union all select name, now() from unnest(array['levels', 'capped', 'spent', 'customers', 'shared']) name;

insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
select r.lane, r.namespace, r.needs, 'none', '{}', '{}' from (
    values ('large', 'a', '{}'::text[]), ('small', 'a', '{}'), ('barred', 'a', '{gpu}'), ('barred', 'b', '{}'),
           ('stopped', 'a', '{}'), ('open', 'a', '{}'), ('later', 'a', '{}'), ('flood', 'a', '{}'),
           ('flood', 'b', '{}'), ('levels', 'a', '{gpu}'), ('levels', 'b', '{}')
    union all select 'many', 'tenant ' || n, '{}' from generate_series(1, $routes) n) r (lane, namespace, needs);

insert into flowfabric.quotas (
    partition, id, namespace, name, created_at, window_seconds, max_requests_per_window, max_concurrent)
select 0, ('00000000-0000-8000-8000-' || lpad(n::text, 12, '0'))::uuid, 'a', 'q' || n, now(), 60,
       case n when 1 then 500 end, case n when 0 then 1 when 1 then null else 2 end
from generate_series(0, $routes + 1) n;
select flowfabric._make_stripes(q.partition, q.id) from flowfabric.quotas q;

insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
select r.lane, r.namespace, '{}', 'none', r.budgets, array(select q.id from flowfabric.quotas q where q.name = r.quota)
from (
    values ('capped', 'a', '{}'::uuid[], 'q0'), ('capped', 'b', '{}', null),
           ('spent', 'a', array['$budget'::uuid], null), ('spent', 'b', '{}', null)
    union all select 'customers', 'customer ' || n, '{}', 'q' || n + 1 from generate_series(1, $routes) n
    union all select 'shared', 'customer ' || n, '{}', 'q1' from generate_series(1, $routes) n
) r (lane, namespace, budgets, quota);

create function fill(lane text, namespace text, amount int, due_at timestamptz default null) returns void
language sql as $$$$
    with made as (
        select r.id as route, (i % 256)::smallint as partition, gen_random_uuid() as id,
               timestamptz '2026-01-01 00:00Z' + i * interval '1 us' as created_at
        from generate_series(1, fill.amount) i
        join flowfabric.routes r on r.lane = fill.lane and r.namespace like fill.namespace
    ), recorded as (
        insert into flowfabric.executions (partition, id, route, task, created_at)
        select m.partition, m.id, m.route, 'work', m.created_at from made m
    )
    insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, eligibility, reason)
    select m.partition, m.id, m.route, fill.lane, 0, m.created_at, fill.due_at,
           case when fill.due_at is null then 'eligible_now' else 'not_eligible_until_time' end::flowfabric.eligibility,
           'waiting_for_worker'
    from made m
$$$$;

select fill('large', 'a', $backlog), fill('small', 'a', 1000), fill('barred', 'a', $in_front), fill('barred', 'b', 1),
       fill('stopped', 'a', $in_front), fill('open', 'a', 1), fill('later', 'a', $in_front, '2036-01-01'),
       fill('flood', 'a', $flood), fill('flood', 'b', 10), fill('many', 'tenant%', 2), fill('capped', 'a', $behind),
       fill('capped', 'b', 1), fill('spent', 'a', $behind), fill('spent', 'b', 1), fill('customers', 'customer%', 2),
       fill('shared', 'customer%', 2), fill('levels', 'a', $levels), fill('levels', 'b', 1);

update flowfabric.tickets t set priority = extract(microseconds from t.created_at)::int
from flowfabric.routes r where r.id = t.route and r.lane = 'levels' and r.namespace = 'a';
""")


@pytest.fixture(scope="module")
def filled_url(server: Server, template: str) -> Iterator[str]:
    """A database with a large backlog, filled once for all tests here. Each test rolls back its claims."""
    with copied(server, template) as url:
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    conn = await asyncpg.connect(url)
    await conn.execute(
        FILL.substitute(
            backlog=BACKLOG,
            in_front=IN_FRONT,
            flood=FLOOD,
            routes=ROUTES,
            behind=BEHIND,
            levels=LEVELS,
            budget=ids.budget_id("a", "tokens"),
        )
    )
    await conn.execute("vacuum analyze")
    await conn.close()


@pytest.fixture
async def filled(filled_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with undone(filled_url) as conn:
        yield conn


COUNTED = ["executions", "tickets", "quotas", "quota_stripes", "quota_slots", "quota_entries", "budgets"]
reading = partial(reading_of, tables=COUNTED)


async def test_a_large_backlog_is_read_no_further_than_a_small_one(filled: asyncpg.Connection) -> None:
    small, small_read = await reading(filled, claim(filled, "small", take=100))
    large, large_read = await reading(filled, claim(filled, "large", take=100))

    assert (len(small), len(large)) == (100, 100)
    assert large_read.rows == pytest.approx(small_read.rows, abs=10)  # planning reads both ends of an index
    assert large_read.rows <= 10 * 100
    assert large_read.whole == 0


async def test_executions_a_worker_cannot_run_do_not_hide_the_others(filled: asyncpg.Connection) -> None:
    taken, read = await reading(filled, claim(filled, "barred", take=10))

    assert [each.namespace for each in taken] == ["b"]
    assert read.rows <= 50
    assert read.whole == 0


async def test_a_poll_without_open_routes_reads_few_rows(filled: asyncpg.Connection) -> None:
    await claim(filled, "barred", take=10)

    for _ in range(10):
        taken, read = await reading(filled, claim(filled, "barred", "later", "nowhere", take=100))
        assert taken == []
        assert read.rows <= 20
        assert read.whole == 0


async def test_a_paused_lane_does_not_hide_an_active_one(filled: asyncpg.Connection) -> None:
    await lanes.pause_lane(filled, "stopped", by="ops")

    taken, read = await reading(filled, claim(filled, "stopped", "open", take=10))

    assert [each.lane for each in taken] == ["open"]
    assert read.rows <= 50
    assert read.whole == 0


async def test_a_claim_writes_no_ticket_it_does_not_take(filled: asyncpg.Connection) -> None:
    await claim(filled, "barred", "later", take=10)

    assert await filled.fetchval("select count(*) from flowfabric.tickets where xmin = pg_current_xact_id()::xid") == 1


async def test_a_flood_does_not_starve_a_trickle_when_one_is_taken_at_a_time(filled: asyncpg.Connection) -> None:
    served, route = [], 0
    for _ in range(20):
        [taken] = await claim(filled, "flood", after_route=route)
        route = taken.route
        served.append(taken.namespace)

    assert served == ["a", "b"] * 10


async def test_a_flood_does_not_starve_a_trickle_when_many_are_taken_at_once(filled: asyncpg.Connection) -> None:
    taken, read = await reading(filled, claim(filled, "flood", take=20))

    assert sorted(each.namespace for each in taken) == ["a"] * 10 + ["b"] * 10
    assert read.rows <= 10 * 20


async def test_the_share_a_route_cannot_fill_is_given_to_the_others(filled: asyncpg.Connection) -> None:
    taken, read = await reading(filled, claim(filled, "flood", take=100))

    assert sorted(each.namespace for each in taken) == ["a"] * 90 + ["b"] * 10
    assert read.rows <= 10 * 100


async def test_a_claim_visits_no_more_routes_than_it_serves(filled: asyncpg.Connection) -> None:
    """With a route per customer, only routes with ready executions cost anything."""
    taken, read = await reading(filled, claim(filled, "many", take=100))
    next_ones, _ = await reading(filled, claim(filled, "many", take=100, after_route=max(c.route for c in taken)))

    assert len({each.route for each in taken + next_ones}) == 200
    assert read.rows <= 10 * 100
    assert read.whole == 0


async def test_due_executions_are_promoted_a_bounded_number_at_a_time(filled: asyncpg.Connection) -> None:
    await filled.execute("select flowfabric.move_clock('20 years')")

    taken, read = await reading(filled, claim(filled, "later", take=10))

    assert len(taken) == 10
    assert await filled.fetchval(WAITING_FOR_TIME) == IN_FRONT - 110
    assert read.rows <= 20 * 110


async def test_work_below_many_closed_priorities_is_found_at_one_lookup_each(filled: asyncpg.Connection) -> None:
    taken, read = await reading(filled, claim(filled, "levels", take=10))

    assert [each.namespace for each in taken] == ["b"]
    assert read.rows <= 3 * LEVELS + 100
    assert read.whole == 0


async def test_executions_behind_a_full_quota_do_not_hide_those_without_one(filled: asyncpg.Connection) -> None:
    assert [each.namespace for each in await claim(filled, "capped")] == ["a"]

    taken, read = await reading(filled, claim(filled, "capped", take=10))
    nothing, read_idle = await reading(filled, claim(filled, "capped", take=10))

    assert ([each.namespace for each in taken], nothing) == (["b"], [])
    assert (read.rows <= 60, read.whole) == (True, 0)
    assert (read_idle.rows <= 40, read_idle.whole) == (True, 0)
    assert await filled.fetchval(WRITTEN) == 2


async def test_executions_behind_an_exhausted_budget_are_neither_read_nor_written(filled: asyncpg.Connection) -> None:
    await budgets.create_budget(filled, "tokens", namespace="a", hard_limits={"tokens": 10})
    spend = UsageReport(budget="tokens", namespace="a", amounts={"tokens": 10})
    assert (await budgets.report_usage(filled, spend)).outcome == "ok"

    taken, read = await reading(filled, claim(filled, "spent", take=10))
    nothing, read_idle = await reading(filled, claim(filled, "spent", take=10))
    await budgets.change_budget(filled, "tokens", namespace="a", by="ops", hard_limits={"tokens": 11})
    written = await filled.fetchval(WRITTEN)
    more = await claim(filled, "spent", take=10)

    assert ([each.namespace for each in taken], nothing, written, len(more)) == (["b"], [], 1, 10)
    assert (read.rows <= 60, read.whole) == (True, 0)
    assert (read_idle.rows <= 40, read_idle.whole) == (True, 0)


WRITTEN = "select count(*) from flowfabric.tickets where xmin = pg_current_xact_id()::xid"


async def test_a_quota_per_customer_costs_a_claim_no_more_than_the_customers_it_serves(
    filled: asyncpg.Connection,
) -> None:
    taken, read = await reading(filled, claim(filled, "customers", take=100))
    more, _ = await reading(filled, claim(filled, "customers", take=100, after_route=max(c.route for c in taken)))

    assert len({each.route for each in taken + more}) == 200
    assert (read.rows <= 30 * 100, read.whole) == (True, 0)


async def test_one_quota_of_all_customers_is_counted_once_a_claim(filled: asyncpg.Connection) -> None:
    """Routes that share a quota share its room in one claim."""
    for _ in range(4):
        taken, read = await reading(filled, claim(filled, "shared", take=100))
        assert len({each.route for each in taken}) == 100
        assert (read.rows <= 20 * 100, read.whole) == (True, 0)
    assert len(await claim(filled, "shared", take=1000)) == 100
    assert await claim(filled, "shared", take=1000) == []


WAITING_FOR_TIME = "select count(*) from flowfabric.tickets where eligibility = 'not_eligible_until_time'"


@pytest.mark.parametrize("sweep", [claims.expire_leases, attempts.time_out_attempts, executions.expire_executions])
async def test_a_sweep_that_finds_nothing_reads_no_backlog(filled: asyncpg.Connection, sweep: Any) -> None:
    await claim(filled, "large", take=100)

    swept, read = await reading(filled, sweep(filled))

    assert swept.moved == 0
    assert read.rows <= 20 * 100
    assert read.whole == 0


async def cycle(conn: asyncpg.Connection, take: int) -> dict[str, Read]:
    """Make every hot call once, on this many executions, and return how many rows each read."""
    read: dict[str, Read] = {}
    many = [submission(policy={"retry": {"max_retries": 1}}, deadline=timedelta(days=1))] * take
    _, read["submit"] = await reading(conn, executions.submit_many(conn, many))
    taken, read["claim"] = await reading(conn, claim(conn, "default", take=take))
    fences = [each.fence for each in taken]
    _, read["renew"] = await reading(conn, claims.renew_many(conn, fences))
    _, read["expire_leases"] = await reading(conn, claims.expire_leases(conn))
    _, read["time_out_attempts"] = await reading(conn, attempts.time_out_attempts(conn))
    _, read["expire_executions"] = await reading(conn, executions.expire_executions(conn))
    _, read["promote_due"] = await reading(conn, executions.promote_due(conn))
    _, read["delay"] = await reading(conn, attempts.delay_many(conn, [Delay(fence=fence) for fence in fences]))
    fences = [each.fence for each in await claim(conn, "default", take=take)]
    reports = [FailureReport(fence=fence, class_=FailureClass.TRANSIENT, reason="no") for fence in fences]
    _, read["fail"] = await reading(conn, attempts.fail_many(conn, reports, wait=False))
    await conn.execute("select flowfabric.move_clock('1 minute')")
    fences = [each.fence for each in await claim(conn, "default", take=take)]
    done = [Completion(fence=fence) for fence in fences]
    answers, read["complete"] = await reading(conn, attempts.complete_many(conn, done, wait=False))
    assert len(answers) == take
    return read


async def test_plans_made_on_an_empty_database_serve_a_full_one(connect: Connect, given: Given) -> None:
    conn = await connect()
    await conn.execute("alter table flowfabric.tickets set (autovacuum_enabled = off)")
    await conn.execute("alter table flowfabric.executions set (autovacuum_enabled = off)")
    async with conn.transaction():
        for _ in range(10):
            await cycle(conn, 1)
    assert await given.count("tickets") == 0
    await executions.submit_many(given.conn, [submission()] * IN_FRONT)

    async with conn.transaction():
        read = await cycle(conn, 100)

    assert {name: each.whole for name, each in read.items()} == dict.fromkeys(read, 0)
    assert {name: each.rows for name, each in read.items() if each.rows > 25 * 100} == {}
