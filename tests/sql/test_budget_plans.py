"""The cost of budgets: one lookup to admit, one row to exhaust, and nothing for work without budgets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from string import Template
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, budgets
from flowfabric.ids import budget_id
from tests.conftest import SOAK, Server
from tests.engine.budgets.scene import TEAM, make, spend
from tests.filled import copied, undone
from tests.given import Given, claim
from tests.sql.reading import reading

BEHIND = 1_000_000 if SOAK else 30_000
BUDGETS = 5_000
OTHERS = 10_000
# Rows that the planner reads at the ends of an index to estimate its range.
A_LOOK = 8

# Lane "behind" has a backlog on one budget, lane "many" has a budget and an execution per route, and lane "free" has no
# budget. The other budgets have reservations and ledgers.
FILL = Template("""
insert into flowfabric.lanes (name, since) values ('behind', now()), ('many', now()), ('free', now());
insert into flowfabric.budgets
    (partition, id, namespace, name, mode, on_hard_limit, on_soft_limit, created_at, hard_limits, soft_limits)
select 0, gen_random_uuid(), 'default', 'b' || n, 'strict', 'refuse', 'warn', now(), '{"tokens": 10}', '{}'
from generate_series(1, $budgets) n;

insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
select 'many', 'default', '{}', md5(''), array[b.id], '{}' from flowfabric.budgets b where b.name <> 'team-a';
insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
values ('behind', 'default', '{}', md5(''), array['$team'::uuid], '{}'), ('free', 'default', '{}', md5(''), '{}', '{}');

with made as (
    select r.id as route, r.lane, (i % 256)::smallint as partition, gen_random_uuid() as id,
           timestamptz '2026-01-01 00:00Z' + i * interval '1 us' as created_at
    from flowfabric.routes r
    cross join lateral generate_series(1, case r.lane when 'behind' then $behind when 'many' then 1 else 100 end) i
), recorded as (
    insert into flowfabric.executions (partition, id, route, task, created_at)
    select m.partition, m.id, m.route, 'work', m.created_at from made m
)
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, eligibility, reason)
select m.partition, m.id, m.route, m.lane, 0, m.created_at, 'eligible_now', 'waiting_for_worker' from made m;

insert into flowfabric.reservations
    (partition, id, budget, estimate, created_at, expires_at, execution_partition, execution)
select 0, gen_random_uuid(), b.id, '{"tokens": 1}', now(), now() + interval '1 hour', 0, gen_random_uuid()
from generate_series(1, $others) n join flowfabric.budgets b on b.name = 'b' || (n % $budgets);
insert into flowfabric.spending (partition, execution, budget, period, spent)
select n % 256, gen_random_uuid(), b.id, 1, '{"tokens": 1}'
from generate_series(1, $others) n join flowfabric.budgets b on b.name = 'b' || (n % $budgets);
""")


@pytest.fixture(scope="module")
def filled_url(server: Server, template: str) -> Iterator[str]:
    """A database with a backlog behind budgets, filled once for all tests here; each test rolls back its changes."""
    with copied(server, template) as url:
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    conn = await asyncpg.connect(url)
    await make(conn)
    await conn.execute(FILL.substitute(behind=BEHIND, budgets=BUDGETS, others=OTHERS, team=budget_id("default", TEAM)))
    await conn.execute("vacuum analyze")
    await conn.close()


@pytest.fixture
async def filled(filled_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with undone(filled_url) as conn:
        yield conn


OURS = ["budgets", "reservations", "spending", "usage_keys"]


async def written(conn: asyncpg.Connection) -> Any:
    """A checksum of the position and version of every ticket and record: it changes when any of them is written."""
    return await conn.fetchrow(
        "select (select sum(hashtext(t.ctid::text || t.xmin::text)) from flowfabric.tickets t) as tickets, "
        "(select sum(hashtext(e.ctid::text || e.xmin::text)) from flowfabric.executions e) as executions"
    )


async def test_exhausting_a_budget_writes_no_execution_and_raising_it_releases_them_immediately(
    filled: asyncpg.Connection,
) -> None:
    """Admission is computed from routes and never stored on executions."""
    before = await written(filled)

    await spend(filled, 100)
    assert await claim(filled, "behind", take=10) == []
    await budgets.change_budget(filled, TEAM, hard_limits={"tokens": 101}, by="ops")
    assert await written(filled) == before
    assert len(await claim(filled, "behind", take=10)) == 10


async def test_checking_budgets_is_one_lookup_each(filled: asyncpg.Connection) -> None:
    await filled.execute("set local enable_seqscan = off")
    ids = [row["id"] for row in await filled.fetch("select id from flowfabric.budgets order by id limit 16")]
    closed = "select flowfabric._budgets_closed($1, flowfabric.clock())"

    _, read = await reading(filled, filled.fetchval(closed, ids), OURS)

    assert read.whole == 0
    assert read.rows <= 2 * len(ids)


async def test_a_claim_over_thousands_of_routes_reads_only_the_budgets_it_visits(filled: asyncpg.Connection) -> None:
    taken, read = await reading(filled, claim(filled, "many", take=10), ["budgets"])

    assert len(taken) == 10
    assert read.whole == 0
    assert read.rows <= 100


async def test_spending_reads_only_its_own_rows(filled: asyncpg.Connection) -> None:
    [taken] = await claim(filled, "free")

    async def spend_and_settle() -> None:
        await spend(filled, 1, fence=taken.fence, dedup_key="k")
        held = await budgets.reserve(filled, TEAM, {"tokens": 10}, fence=taken.fence)
        assert held.reservation_id is not None
        await budgets.settle(filled, held.reservation_id, {"tokens": 5}, fence=taken.fence)
        await budgets.release_usage(filled, TEAM, taken.execution_id, by="ops")

    _, read = await reading(filled, spend_and_settle(), OURS)
    assert read.whole == 0
    assert read.rows <= 100


async def test_an_end_without_reservations_reads_no_budget_tables(filled: asyncpg.Connection) -> None:
    [taken] = await claim(filled, "free")

    _, read = await reading(filled, attempts.complete(filled, taken.fence), OURS)
    assert read.whole == 0
    assert read.rows <= A_LOOK


async def test_the_sweeps_read_only_due_rows(filled: asyncpg.Connection) -> None:
    async def sweep() -> list[int]:
        passes = [budgets.reset_budgets, budgets.expire_reservations, budgets.resume_budget_waits]
        return [(await each(filled)).moved for each in passes]

    moved, read = await reading(filled, sweep(), [*OURS, "budget_waits"])
    assert moved == [0, 0, 0]
    assert read.whole == 0
    assert read.rows <= A_LOOK


async def test_a_report_is_a_hot_update(given: Given) -> None:
    await make(given.conn, hard_limits={})
    for _ in range(200):
        await spend(given.conn, 1)
    await given.conn.execute("select pg_stat_force_next_flush()")

    [row] = await given.rows(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'flowfabric.budgets'::regclass"
    )
    assert row["n_tup_upd"] >= 200
    assert row["n_tup_hot_upd"] >= 0.9 * row["n_tup_upd"]


WAITING = 20_000
SUSPEND = """
with made as (
    insert into flowfabric.budget_waits (partition, execution, budget, amounts, asked_at)
    select e.partition, e.id, $1::uuid, '{"tokens": 10}'::jsonb, now() + row_number() over () * interval '1 us'
    from flowfabric.tickets e where e.lane = 'behind' limit $2
    returning partition, execution)
update flowfabric.tickets t
set phase = 'suspended', reason = 'waiting_for_budget', suspension = gen_random_uuid(), suspended_at = now()
from made m where t.partition = m.partition and t.id = m.execution
"""


async def test_a_settlement_reads_a_bounded_number_of_waiting_executions(filled: asyncpg.Connection) -> None:
    await filled.execute(SUSPEND, budget_id("default", TEAM), WAITING)
    await spend(filled, 60)
    held = await budgets.reserve(filled, TEAM, {"tokens": 40})
    assert held.reservation_id is not None

    settled = budgets.settle(filled, held.reservation_id, {"tokens": 15})
    _, read = await reading(filled, settled, ["tickets", "budget_waits"])
    assert read.whole == 0
    assert read.rows <= 1_000
    assert (await budgets.describe_budget(filled, TEAM)).waiting_count == 10_001
    assert (await budgets.resume_budget_waits(filled, limit=1)).moved == 1
