"""Empty and full tables of waits, to test plans that were made on empty tables and run on full ones."""

from collections.abc import Awaitable
from typing import Any

import asyncpg

from tests.sql.reading import reading

ROWS, OPEN = 6_000, 600
TABLES = ["executions", "tickets", "waits", "waitpoints", "signals", "steps", "child_ends"]
TABLES += ["budgets", "reservations", "spending", "budget_waits"]

# The first OPEN executions wait, the next OPEN run with a pending waitpoint, and the others have ended.
FILL = f"""
insert into flowfabric.lanes (name, since) values ('many', now());
insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
values ('many', 'default', '{{}}', md5(''), '{{}}', '{{}}');

create temp table others as
select n, (n % 256)::smallint as partition, gen_random_uuid() as id, gen_random_uuid() as suspension,
       gen_random_uuid() as waitpoint, n <= {OPEN} as waits, n > {OPEN} and n <= 2 * {OPEN} as runs,
       flowfabric.clock() - interval '1 hour' + n * interval '1 ms' as at,
       flowfabric.clock() + interval '30 days' as later, (select id from flowfabric.routes where lane = 'many') as route
from generate_series(1, {ROWS}) n;

insert into flowfabric.executions
    (partition, id, route, task, created_at, started_at, attempt, epoch, ended_at, outcome,
     parent_partition, parent, on_parent_end, has_children)
select o.partition, o.id, o.route, 'work', o.at, o.at, 1, 1, case when not o.waits and not o.runs then o.at end,
       case when not o.waits and not o.runs then 'success'::flowfabric.outcome end, p.partition, p.id, 'cancel', o.waits
from others o left join others p on p.n = o.n % {2 * OPEN} and p.waits;

insert into flowfabric.tickets
    (partition, id, route, lane, priority, created_at, phase, eligibility, reason, attempt_state, attempt, epoch,
     lease_id, expires_at, instance, suspension, suspended_at, ties)
select o.partition, o.id, o.route, 'many', 0, o.at,
       case when o.waits then 'suspended' else 'active' end::flowfabric.phase, 'eligible_now', 'waiting_for_signal',
       'running_attempt', 1, 1, gen_random_uuid(), o.later, 'others', o.suspension, o.at, true
from others o where o.waits or o.runs;

insert into flowfabric.waits
    (partition, execution, id, suspension, suspended_at, timeout_at, ended_at, ended_by, reason_code, timeout_behavior,
     requested_by, name, occurrence, condition, waitpoints)
select o.partition, o.id, case when o.n % 3 = 0 then gen_random_uuid() else o.suspension end, o.suspension, o.at,
       case when o.waits and o.n % 2 = 0 then o.later end, case when not o.waits then o.at end,
       case when not o.waits then 'signal' end, 'waiting_for_signal', 'fail', 'worker', 'wait', 1,
       '{{"kind": "single", "waitpoint": "w"}}', array[o.waitpoint]
from others o;

insert into flowfabric.waits
    (partition, execution, id, suspension, suspended_at, timeout_at, ended_at, ended_by, reason_code, timeout_behavior,
     requested_by, name, occurrence, condition, choice, is_sleep, child_partition, child)
select o.partition, o.id, gen_random_uuid(), o.suspension, o.at, case when o.waits and part = 1 then o.later end,
       case when not o.waits then o.at end, case when not o.waits then 'signal' end, 'waiting_for_signal',
       'auto_resume', 'worker', 'part' || part, 1, '{{"kind": "timeout_only"}}', part % 2, part = 1,
       case when part = 2 then o.partition end, case when part = 2 then gen_random_uuid() end
from others o cross join generate_series(1, 2) part where o.n % 3 = 0;

insert into flowfabric.budget_waits (partition, execution, budget, amounts, asked_at)
select o.partition, o.id, md5('x')::uuid, '{{"tokens": 1}}', o.at from others o where o.runs;

insert into flowfabric.waitpoints
    (partition, execution, id, key, state, wait, kid, fingerprint, created_at, expires_at, closed_at, close_reason)
select o.partition, o.id, o.waitpoint, 'w',
       case when o.waits then 'active' when o.runs then 'pending' else 'closed' end::flowfabric.waitpoint_state,
       case when not o.runs then o.suspension end, 'k1', 'f', o.at, case when o.runs then o.later end,
       case when not o.waits and not o.runs then o.at end, case when not o.waits and not o.runs then 'resumed' end
from others o;

insert into flowfabric.signals
    (partition, execution, id, number, at, waitpoint, name, category, source_type, source_identity, effect,
     idempotency_key)
select o.partition, o.id, gen_random_uuid(), number, o.at, o.waitpoint, 'go', 'signal', 'external', 'x', 'no_op', 'k'
from others o cross join generate_series(1, 2) number;

insert into flowfabric.steps (partition, execution, name, occurrence, at, kind, result)
select o.partition, o.id, 'step', number, o.at, 'step', 'null' from others o cross join generate_series(1, 2) number;

insert into flowfabric.child_ends (partition, execution, parent_partition, parent, at)
select 0, gen_random_uuid(), o.partition, o.id, o.later from others o where o.n <= 10;
insert into flowfabric.child_ends (partition, execution, at)
select o.partition, o.id, o.later from others o where o.n <= 10;

insert into flowfabric.budgets
    (partition, id, namespace, name, mode, on_hard_limit, on_soft_limit, created_at, hard_limits, soft_limits)
select o.partition, gen_random_uuid(), 'default', 'b' || o.n, 'strict', 'refuse', 'warn', o.at, '{{"tokens": 10}}',
       '{{}}'
from others o where o.waits;
insert into flowfabric.reservations
    (partition, id, budget, estimate, created_at, expires_at, ended_at, ended_by, execution_partition, execution,
     attempt, dedup_key)
select b.partition, gen_random_uuid(), b.id, '{{"tokens": 1}}', o.at, o.later, case when not o.runs then o.at end,
       case when not o.runs then 'settle' end, o.partition, o.id, 1, o.n::text
from others o join flowfabric.budgets b on b.name = 'b' || (o.n % {OPEN});
insert into flowfabric.spending (partition, execution, budget, period, spent)
select o.partition, o.id, b.id, 1, '{{"tokens": 1}}'
from others o join flowfabric.budgets b on b.name = 'b' || (o.n % {OPEN});
drop table others;
"""


class Meter:
    """The most rows and index entries that each call has read, by its name."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.read: dict[str, int] = {}

    async def __call__(self, name: str, call: Awaitable[Any]) -> Any:
        answer, read = await reading(self.conn, call, TABLES)
        self.read[name] = max(read.rows, self.read.get(name, 0))
        return answer


async def empty(conn: asyncpg.Connection) -> None:
    """Delete all rows but keep the pages, and analyze: the planner now knows large tables without rows."""
    for table in [*TABLES, "attempts", "removals"]:
        await conn.execute(f"delete from flowfabric.{table}")
        await conn.execute(f"alter table flowfabric.{table} set (autovacuum_enabled = off)")
    await conn.execute(f"vacuum (analyze, truncate off) {', '.join(f'flowfabric.{table}' for table in TABLES)}")


async def fill(conn: asyncpg.Connection) -> None:
    """Fill all tables without an analyze, so that the planner still believes they are empty."""
    await conn.execute(FILL)
