-- Executions, their lanes and routes, their attempts, and the log.

create type flowfabric.phase as enum ('runnable', 'active', 'suspended');

create type flowfabric.eligibility as enum (
    'eligible_now', 'not_eligible_until_time', 'blocked_by_dependencies', 'blocked_by_operator', 'granted');

create type flowfabric.reason as enum (
    'none', 'waiting_for_worker', 'waiting_for_delay', 'waiting_for_retry_backoff', 'waiting_for_resume_delay',
    'waiting_for_children', 'waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback',
    'waiting_for_tool_result', 'waiting_for_budget', 'paused_by_operator', 'paused_by_policy');

create type flowfabric.attempt_state as enum (
    'pending_first_attempt', 'running_attempt', 'attempt_interrupted', 'pending_retry_attempt',
    'pending_reclaim_attempt', 'pending_replay_attempt');

create type flowfabric.attempt_type as enum ('initial', 'retry', 'reclaim', 'replay');

create type flowfabric.lifecycle as enum (
    'ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed');

create type flowfabric.lease_end as enum ('expired', 'revoked');

create type flowfabric.outcome as enum ('success', 'failed', 'cancelled', 'expired', 'skipped');

create type flowfabric.lane_state as enum ('active', 'paused', 'draining');

-- The settings that the first migration fixed for this database, in one row.
create table flowfabric.deployment (
    only_row             boolean primary key default true check (only_row),
    execution_partitions smallint not null,
    budget_partitions    smallint not null,
    quota_partitions     smallint not null
);

create table flowfabric.lanes (
    name       text collate "C" primary key,
    state      flowfabric.lane_state not null default 'active',
    since      timestamptz not null,
    by         text,
    reason     text,
    keep_renewals boolean not null default false
);

-- A class of executions with the same admission rules. Routes are never changed or removed; sets are sorted.
create table flowfabric.routes (
    id        int generated always as identity primary key,
    lane      text collate "C" not null,
    namespace text collate "C" not null,
    needs     text[] not null,
    digest    text not null, -- hash of the needs, which may be too large for an index entry
    budgets   uuid[] not null,
    quotas    uuid[] not null,
    unique (lane, namespace, digest, budgets, quotas)
);

create index routes_by_namespace on flowfabric.routes (namespace);

-- The record: what was submitted, and how it ended. The columns that an end writes are not indexed, so that the
-- update is HOT.
create table flowfabric.executions (
    partition       smallint not null,
    priority        smallint,
    route           int not null,
    created_at      timestamptz not null,
    started_at      timestamptz,
    ended_at        timestamptz,
    epoch           bigint,
    attempt         int,
    retries         int,
    reclaims        int,
    replays         int not null default 0,
    outcome         flowfabric.outcome,
    id              uuid not null,
    flow            uuid,
    task            text collate "C" not null,
    creator         text,
    tags            jsonb,
    policy          jsonb,
    encoding        text,
    payload         bytea,
    result_encoding text,
    result          bytea,
    failure         jsonb,
    primary key (partition, id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
        autovacuum_analyze_scale_factor = 0.02);

create index executions_newest on flowfabric.executions (created_at);
create index executions_by_route on flowfabric.executions (route, created_at);
create index executions_by_task on flowfabric.executions (task, created_at);
create index executions_by_flow on flowfabric.executions (partition, flow) where flow is not null;

-- The live state of an unfinished execution, and the row to lock for every change to the execution.
create table flowfabric.tickets (
    partition          smallint not null,
    priority           smallint not null,
    route              int not null,
    created_at         timestamptz not null,
    due_at             timestamptz,
    deadline_at        timestamptz,
    expires_at         timestamptz,
    started_at         timestamptz,
    attempt_started_at timestamptz,
    attempt_deadline   timestamptz,
    epoch              bigint not null default 0,
    attempt_epoch      bigint,
    phase              flowfabric.phase not null default 'runnable',
    eligibility        flowfabric.eligibility not null,
    reason             flowfabric.reason not null,
    attempt_state      flowfabric.attempt_state not null default 'pending_first_attempt',
    attempt_type       flowfabric.attempt_type,
    lease_end          flowfabric.lease_end,
    attempt            int not null default 0,
    retries            int not null default 0,
    reclaims           int not null default 0,
    replays            int not null default 0,
    id                 uuid not null,
    lease_id           uuid,
    lane               text collate "C" not null,
    worker             text,
    instance           text collate "C",
    attempt_left       interval,
    hold               jsonb,
    primary key (partition, id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

-- Claimable tickets in claim order, for the loose index scan over routes.
create index tickets_ready on flowfabric.tickets (lane, priority desc, route, created_at)
    where phase = 'runnable' and eligibility = 'eligible_now';

create index tickets_due on flowfabric.tickets (lane, due_at)
    where phase = 'runnable' and eligibility = 'not_eligible_until_time';

create index tickets_held on flowfabric.tickets (lane)
    where phase = 'runnable' and eligibility = 'blocked_by_operator';

-- Not on the expiry, so that a renewal is a HOT update.
create index tickets_active on flowfabric.tickets (instance, lane) where phase = 'active';

create index tickets_suspended on flowfabric.tickets (lane) where phase = 'suspended';

create index tickets_deadline on flowfabric.tickets (deadline_at) where deadline_at is not null;

-- Finished attempts. The current attempt is part of the ticket.
create table flowfabric.attempts (
    partition   smallint not null,
    number      int not null,
    first_epoch bigint not null,
    last_epoch  bigint not null,
    started_at  timestamptz not null,
    ended_at    timestamptz not null,
    type        flowfabric.attempt_type not null,
    lifecycle   flowfabric.lifecycle not null,
    execution   uuid not null,
    worker      text,
    instance    text,
    failure     jsonb,
    primary key (partition, execution, number)
) with (autovacuum_vacuum_insert_scale_factor = 0.2);

-- The tags of executions, for searching; the record stores them too, for reading.
create table flowfabric.tags (
    partition  smallint not null,
    created_at timestamptz not null,
    execution  uuid not null,
    key        text collate "C" not null,
    value      text collate "C" not null,
    primary key (partition, execution, key)
);

create index tags_by_value on flowfabric.tags (key, value, created_at);

-- The execution of each idempotency key, and the earliest time at which the key may be reused.
create table flowfabric.idempotency_keys (
    partition           smallint not null,
    execution_partition smallint not null,
    expires_at          timestamptz not null,
    execution           uuid not null,
    namespace           text collate "C" not null,
    key                 text collate "C" not null,
    primary key (partition, namespace, key)
);

create index idempotency_keys_lapsed on flowfabric.idempotency_keys (expires_at);

-- The log. Ids are taken under the shared lock of _lock_log, so that a reader can tell when a gap is final. The
-- sessions of our own pool, which have the setting flowfabric.direct, take them as they write. In every other session
-- an event is a draft until its transaction commits (_number_events), so that an open transaction delays no reader.
create sequence flowfabric.event_ids cache 1;

create unlogged sequence flowfabric.draft_ids minvalue 4611686018427387904 cache 1;

create table flowfabric.events (
    id        bigint not null default case when current_setting('flowfabric.direct', true) = 'on'
                                           then nextval('flowfabric.event_ids')
                                           else nextval('flowfabric.draft_ids') end,
    at        timestamptz not null,
    route     int,
    partition smallint,
    execution uuid,
    flow      uuid,
    kind      text collate "C" not null,
    subject   text,
    by        text,
    tags      jsonb,
    detail    jsonb,
    primary key (id)
) partition by range (id);

-- Drafts, which only the transaction that wrote them can see: no transaction commits with drafts. Their ids are above
-- all others, so that the transaction reads its own events in order.
create unlogged table flowfabric.events_drafts partition of flowfabric.events
    for values from (4611686018427387904) to (maxvalue)
    with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Events whose range was not created in time, because no sweep and no migration ran. Normally empty.
create table flowfabric.events_rest partition of flowfabric.events default;

create index events_by_execution on flowfabric.events (execution, id) where execution is not null;

-- Live worker processes. Feeds blocked_by_route; a claim works without an entry here.
create table flowfabric.workers (
    instance      text collate "C" primary key,
    worker        text not null,
    namespace     text,
    lanes         text[] not null,
    capabilities  text[] not null,
    ttl           interval not null,
    registered_at timestamptz not null,
    beat_at       timestamptz not null,
    expires_at    timestamptz not null
) with (fillfactor = 50);
