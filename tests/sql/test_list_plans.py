"""Rows read by a list of a million executions: a page reads about a page, for any filter and any history."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from string import Template
from typing import Any, Literal

import asyncpg
import pytest

from flowfabric.engine import executions, lanes
from flowfabric.ids import FlowId
from flowfabric.model import PublicState, Summary
from tests.conftest import Server
from tests.filled import copied

EXECUTIONS = 1_000_000
UNFINISHED = EXECUTIONS // 100  # some are as old as the oldest execution
PAGE = 50
MOST = 5_000
AHEAD = (PAGE + 1) * 1_010  # rows that explain counts for a page of waiting executions

Order = Literal["newest", "id"]
ORDERS: list[Order] = ["newest", "id"]

FLOW = FlowId(7, uuid.UUID("00000000-0000-7000-8000-00000000f107"))

# Lanes: fast has most executions in two routes, slow the rest, tiny almost none, many one route per tenant, and old
# only old executions, which a scan from the newest would reach last.
FILL = Template("""
insert into flowfabric.lanes (name, since)
select name, now() from unnest(array['fast', 'slow', 'tiny', 'many', 'old']) name;

insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
select r.lane, r.namespace, '{}', 'none', '{}', '{}' from (
    values ('fast', 'main'), ('fast', 'other'), ('slow', 'main'), ('tiny', 'small'), ('old', 'past'), ('old', 'older')
    union all select 'many', 'tenant ' || n from generate_series(1, 200) n) r (lane, namespace);

create table population as
select i, i % 100 = 0 as unfinished, i / 100 % 10 as state,
       ('x' || substr(h.hash, 16, 2))::bit(8)::int::smallint as partition,
       (lpad(to_hex(1700000000000 + i * 1000), 12, '0') || '7' || substr(h.hash, 1, 3) || '8' || substr(h.hash, 4, 15)
       )::uuid as id,
       timestamptz '2026-01-01 00:00Z' + i * interval '1 s' as created_at,
       case when i % 50000 = 7 then 4 when i <= 100000 then 5 + i % 2 when i % 10 = 3 then 7 + i / 10 % 200
            when i % 10 < 7 then 1 + i % 2 else 3 end as route,
       case when i % 50000 = 11 then 'rare' when i <= 100000 then 'old' when i % 10 < 6 then 'common' else 'other'
       end as task
from generate_series(1, $executions) i cross join lateral (select md5(i::text) as hash) h;

insert into flowfabric.executions (
    partition, id, route, task, flow, created_at, priority, attempt, epoch, retries, reclaims, ended_at, outcome)
select p.partition, p.id, p.route, p.task,
       case when p.partition = $flow_partition and p.i % 8 = 1 then '$flow'::uuid end,
       p.created_at, 0, 1, 1, 0, 0, case when not p.unfinished then p.created_at end,
       case when p.unfinished then null when p.i % 1000 = 1 then 'failed' else 'success' end::flowfabric.outcome
from population p order by p.i;

insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, eligibility, reason, hold)
select p.partition, p.id, p.route, r.lane, 0, p.created_at, case when p.state = 1 then timestamptz '2036-01-01' end,
       case p.state when 1 then 'not_eligible_until_time' when 2 then 'blocked_by_operator' else 'eligible_now'
       end::flowfabric.eligibility,
       'waiting_for_worker', case when p.state = 2 then '{"by": "ops", "since": "2026-01-01"}'::jsonb end
from population p join flowfabric.routes r on r.id = p.route where p.unfinished;

update flowfabric.tickets t
set phase = 'active', reason = 'none', attempt_state = 'running_attempt', attempt = 1, attempt_type = 'initial',
    epoch = 1, attempt_epoch = 1, attempt_started_at = t.created_at, started_at = t.created_at,
    lease_id = t.id, worker = 'pool', instance = 'pool-1',
    expires_at = case when p.i % 7 = 0 then '2026-02-01' else '2036-01-01' end::timestamptz
from population p where p.partition = t.partition and p.id = t.id and p.state = 3;

insert into flowfabric.tags (partition, execution, key, value, created_at)
select p.partition, p.id, 'app.tier', case when i % 50000 = 13 then 'rare' when i <= 50000 then 'old' else 'common' end,
       p.created_at
from population p where i % 10 in (0, 3, 7) order by i;

drop table population;
analyze;
""")


@pytest.fixture(scope="module")
def million_url(server: Server, template: str) -> Iterator[str]:
    """A database with a long history, created once for all tests in this module."""
    with copied(server, template) as url:
        asyncio.run(_fill(url))
        yield url


async def _fill(url: str) -> None:
    conn = await asyncpg.connect(url)
    await conn.execute(FILL.substitute(executions=EXECUTIONS, flow=FLOW.uuid, flow_partition=FLOW.partition))
    await conn.close()


@pytest.fixture
async def million(million_url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(million_url)
    yield conn
    await conn.close()


READ = """
select c.relname as name, sum(pg_stat_get_xact_tuples_returned(x.id))::int as rows
from pg_class c cross join lateral (
    select c.oid as id union all select i.indexrelid from pg_index i where i.indrelid = c.oid) x
where c.relnamespace = 'flowfabric'::regnamespace and c.relname in ('executions', 'tickets', 'tags')
group by c.relname order by c.relname
"""


async def read_by(conn: asyncpg.Connection, **filters: Any) -> tuple[list[Summary], Mapping[str, int]]:
    """Return a page of the list, and the rows and index entries it read per table."""
    async with conn.transaction():
        before = await conn.fetch(READ)
        page = await executions.list_executions(conn, **{"limit": PAGE, **filters})
        after = await conn.fetch(READ)
    return list(page.items), {b["name"]: a["rows"] - b["rows"] for b, a in zip(before, after, strict=True)}


FILTERS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "none": (PAGE, {}),
    "a namespace with most of the work": (PAGE, {"namespace": "main"}),
    "a namespace with little work": (20, {"namespace": "small"}),
    "one namespace of many": (PAGE, {"namespace": "tenant 5"}),
    "a namespace whose work is old": (PAGE, {"namespace": "past"}),
    "a lane with most of the work": (PAGE, {"lane": "fast"}),
    "a lane with little work": (20, {"lane": "tiny"}),
    "a lane of many routes": (PAGE, {"lane": "many"}),
    "a lane whose work is old": (PAGE, {"lane": "old"}),
    "a lane that is not there": (0, {"lane": "nowhere"}),
    "lane and namespace": (PAGE, {"lane": "fast", "namespace": "other"}),
    "a common kind": (PAGE, {"task": "common"}),
    "a rare kind": (20, {"task": "rare"}),
    "an old kind": (PAGE, {"task": "old"}),
    "a kind that is not there": (0, {"task": "none"}),
    "a common tag": (PAGE, {"tag": ("app.tier", "common")}),
    "a rare tag": (20, {"tag": ("app.tier", "rare")}),
    "a tag that is not there": (0, {"tag": ("app.tier", "none")}),
    "a flow": (PAGE, {"flow": FLOW}),
    "a common ended state": (PAGE, {"states": [PublicState.COMPLETED]}),
    "an ended state in a lane": (PAGE, {"states": [PublicState.COMPLETED], "lane": "old"}),
    "a common tag and a common kind": (PAGE, {"tag": ("app.tier", "common"), "task": "common"}),
    "no state at all": (0, {"states": []}),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("filters", FILTERS)
async def test_a_page_costs_about_a_page(million: asyncpg.Connection, filters: str, order: Order) -> None:
    expected, chosen = FILTERS[filters]

    items, read = await read_by(million, order=order, **chosen)

    assert len(items) == expected
    assert read["executions"] + read["tags"] <= MOST
    assert read["tickets"] <= AHEAD


async def test_a_tag_of_old_executions_reads_only_those(million: asyncpg.Connection) -> None:
    items, read = await read_by(million, tag=("app.tier", "old"))
    assert (len(items), read["executions"] + read["tags"] <= 3 * PAGE) == (PAGE, True)

    items, read = await read_by(million, tag=("app.tier", "old"), order="id")
    assert (len(items), read["executions"] + read["tags"] <= 16_000) == (PAGE, True)


UNFINISHED_STATES: Mapping[PublicState, int] = {
    PublicState.WAITING: PAGE,
    PublicState.DELAYED: PAGE,
    PublicState.ACTIVE: PAGE,
    PublicState.SUSPENDED: 0,
    PublicState.WAITING_DEPENDENCIES: 0,
    PublicState.RATE_LIMITED: 0,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("state", UNFINISHED_STATES)
async def test_an_unfinished_state_is_read_from_the_tickets(
    million: asyncpg.Connection, state: PublicState, order: Order
) -> None:
    items, read = await read_by(million, states=[state], order=order)

    assert [item.state.public_state for item in items] == [state] * UNFINISHED_STATES[state]
    assert read["tickets"] <= 2 * UNFINISHED + AHEAD
    assert read["executions"] <= PAGE + 1
    assert read["tags"] == 0


@pytest.mark.parametrize("order", ORDERS)
async def test_expired_leases_are_read_from_the_active_tickets(million: asyncpg.Connection, order: Order) -> None:
    items, read = await read_by(million, lease_expired=True, order=order)

    assert [item.state.ownership_state for item in items] == ["lease_expired_reclaimable"] * PAGE
    assert read["tickets"] <= UNFINISHED // 5
    assert read["executions"] <= PAGE + 1
    assert read["tags"] == 0


NARROWED: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "a common kind": (PAGE, {"task": "common"}),
    "a rare kind": (0, {"task": "rare"}),
    "an old kind": (PAGE, {"task": "old"}),
    "a common tag": (PAGE, {"tag": ("app.tier", "common")}),
    "a rare tag": (0, {"tag": ("app.tier", "rare")}),
    "an old tag": (PAGE, {"tag": ("app.tier", "old")}),
    "a namespace": (PAGE, {"namespace": "main"}),
    "a lane with none": (0, {"lane": "tiny"}),
    "a flow with none": (0, {"flow": FLOW}),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("filters", NARROWED)
async def test_unfinished_states_never_read_ended_executions(
    million: asyncpg.Connection, filters: str, order: Order
) -> None:
    expected, chosen = NARROWED[filters]

    items, read = await read_by(million, states=[*UNFINISHED_STATES], order=order, **chosen)

    assert len(items) == expected
    assert read["executions"] + read["tags"] <= UNFINISHED + PAGE + 1
    assert read["tickets"] <= 2 * UNFINISHED + AHEAD


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("filters", ["none", "a lane with most of the work", "a common kind", "a common tag"])
async def test_a_page_in_the_middle_costs_no_more_than_the_first(
    million: asyncpg.Connection, filters: str, order: Order
) -> None:
    middle = {"newest": "1767725600000000,{fp:128}:", "id": "{fp:128}:"}[order] + "018bcfe5-6800-7000-8000-000000000000"

    items, read = await read_by(million, order=order, cursor=middle, **FILTERS[filters][1])

    assert len(items) == PAGE
    assert read["executions"] + read["tags"] <= MOST
    assert items[0].execution_id.partition == 128 if order == "id" else items[0].created_at.day == 6


async def test_a_list_of_lanes_reads_about_the_rows_it_counts(million: asyncpg.Connection) -> None:
    async with million.transaction():
        before = await million.fetch(READ)
        page = await lanes.list_lanes(million)
        after = await million.fetch(READ)

    assert {lane.name: lane.waiting_count for lane in page.items} == {
        "fast": 6_300,
        "many": 0,
        "old": 700,
        "slow": 0,
        "tiny": 0,
    }
    assert sum(row["rows"] for row in after) - sum(row["rows"] for row in before) <= 2 * UNFINISHED
