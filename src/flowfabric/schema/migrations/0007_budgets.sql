-- Budgets: limits on how much may be spent.

-- Limits and usage are {dimension: whole number} in one row, so that a report over several dimensions takes one lock
-- and one write, and admission one fetch. The columns that a report changes are not indexed, so that the update is HOT.
-- Reservations and the ledger of a budget change only while its row is locked.
create table flowfabric.budgets (
    partition         smallint not null,
    period            int not null default 1, -- incremented by every reset
    created_at        timestamptz not null,
    next_reset_at     timestamptz,
    full_until        timestamptz, -- set while it closes its routes: check again from this time on
    first_expiry      timestamptz, -- no open reservation expires before this
    last_breach_at    timestamptz,
    reset_interval_ms bigint,
    breach_count      bigint not null default 0,
    soft_breach_count bigint not null default 0,
    id                uuid not null,
    namespace         text collate "C" not null,
    name              text collate "C" not null,
    mode              text not null,
    on_hard_limit     text not null,
    on_soft_limit     text not null,
    scope_type        text,
    scope_id          text,
    last_breach       text,
    hard_limits       jsonb not null,
    soft_limits       jsonb not null,
    used              jsonb not null default '{}',
    reserved          jsonb not null default '{}',
    overrun           jsonb not null default '{}',
    primary key (partition, id)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- By the id alone, which determines the partition.
create index budgets_by_id on flowfabric.budgets (id);
create index budgets_by_name on flowfabric.budgets (namespace, name);
create index budgets_due on flowfabric.budgets (next_reset_at) where next_reset_at is not null;

-- Reservations, in the partition of their budget. Kept for a day after their end, so that a settlement can be repeated.
create table flowfabric.reservations (
    partition           smallint not null,
    execution_partition smallint,
    attempt             int,
    created_at          timestamptz not null,
    expires_at          timestamptz not null,
    ended_at            timestamptz,
    id                  uuid not null,
    budget              uuid not null,
    execution           uuid,
    ended_by            text,
    dedup_key           text collate "C",
    estimate            jsonb not null,
    answer              jsonb,
    primary key (partition, id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

create index reservations_by_id on flowfabric.reservations (id);
create unique index reservations_by_key on flowfabric.reservations (partition, budget, dedup_key)
    where ended_at is null and dedup_key is not null;
create index reservations_of_execution on flowfabric.reservations (execution_partition, execution)
    where ended_at is null;
create index reservations_of_budget on flowfabric.reservations (budget, expires_at) where ended_at is null;
create index reservations_lapsed on flowfabric.reservations (expires_at) where ended_at is null;
create index reservations_ended on flowfabric.reservations (ended_at) where ended_at is not null;

-- The ledger: what an execution has spent of a budget in one period, in the partition of the execution.
create table flowfabric.spending (
    partition smallint not null,
    period    int not null,
    execution uuid not null,
    budget    uuid not null,
    spent     jsonb not null,
    primary key (partition, execution, budget, period)
) with (fillfactor = 50);

-- The usage reports that have been counted, by their deduplication key.
create table flowfabric.usage_keys (
    partition smallint not null,
    at        timestamptz not null,
    budget    uuid not null,
    key       text collate "C" not null,
    primary key (partition, budget, key)
);

create index usage_keys_lapsed on flowfabric.usage_keys (at);

-- Executions that wait for a budget, the oldest first. Not by suspended_at, because the planner might then use the
-- index that begins with it.
create index suspensions_by_budget on flowfabric.suspensions
    ((condition ->> 'budget'), ((condition ->> 'asked_us')::bigint), partition, execution)
    where requested_by = 'budget' and ended_at is null;
