-- Schedules: executions that are submitted repeatedly.

create type flowfabric.overlap as enum ('allow', 'skip', 'replace');

-- `next_tick_at` is the oldest tick not handled yet; null while paused, or when there is no further tick. `due_at` is
-- when to handle it: at that tick, or later after a refusal. No tick up to `last_tick_at` ever fires again, even if the
-- clock is set back. `anchor_at` is the time that `every` counts from.
create table flowfabric.schedules (
    priority       smallint not null,
    last_partition smallint,
    overlap        flowfabric.overlap not null,
    declared       boolean not null,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    anchor_at      timestamptz not null,
    next_tick_at   timestamptz,
    due_at         timestamptz,
    last_tick_at   timestamptz,
    deadline_ms    bigint,
    revision       int not null default 1,
    last_execution uuid,
    namespace      text collate "C" not null,
    name           text collate "C" not null,
    by             text,
    timing         jsonb not null,
    options          jsonb not null,
    tags           jsonb,
    pause          jsonb,
    refusal        jsonb,
    payload        bytea,
    primary key (namespace, name)
);

create index schedules_due on flowfabric.schedules (due_at, namespace, name) where due_at is not null;
