-- All tables, in the order in which an execution meets them: see docs/lifecycle.md. Fixed columns come
-- first, those of variable length last, so that a row is read without gaps.

-- What the first migration fixed for this database, in one row. Cell c owns the partitions 256c to 256c+255 of
-- executions and flows.
create table flowfabric.deployment (
    only_row          boolean primary key default true check (only_row),
    cell              smallint not null check (cell between 0 and 127),
    budget_partitions smallint not null,
    quota_partitions  smallint not null,
    seeded_at         timestamptz -- when a migration installed the first signing key, which happens once
);

-- Secrets that sign tokens and grants. `inner_pad` and `outer_pad` are precomputed for HMAC, so that no extension is
-- needed. At most one key is active; the others verify until they expire.
create table flowfabric.keys (
    kid        text collate "C" primary key,
    created_at timestamptz not null,
    expires_at timestamptz,
    secret     bytea not null,
    inner_pad  bytea not null,
    outer_pad  bytea not null
);

create unique index keys_one_active on flowfabric.keys ((true)) where expires_at is null;

revoke all on flowfabric.keys from public;

-- Submitting.

create type flowfabric.lane_state as enum ('active', 'paused', 'draining');

create table flowfabric.lanes (
    name          text collate "C" primary key,
    state         flowfabric.lane_state not null default 'active',
    since         timestamptz not null,
    by            text,
    reason        text,
    keep_renewals boolean not null default false,
    stream_retention_maxlen int, -- for streams of executions whose policy says nothing
    stream_retention interval
);

-- A class of executions with the same admission rules. Routes are never changed or removed; sets are sorted. A route
-- with a version is for executions that have started under that version of the task; its needs end with a word that
-- only workers with that version have: see _version_word.
create table flowfabric.routes (
    id        int generated always as identity primary key,
    version   int,
    lane      text collate "C" not null,
    namespace text collate "C" not null,
    task      text collate "C", -- with the version
    needs     text[] not null,
    digest    text not null, -- hash of the needs, which may be too large for an index entry
    budgets   uuid[] not null,
    quotas    uuid[] not null,
    unique (lane, namespace, digest, budgets, quotas)
);

create index routes_by_namespace on flowfabric.routes (namespace);
-- Routes with budgets or quotas.
create index routes_limited on flowfabric.routes (id) where budgets <> '{}' or quotas <> '{}';
-- Routes of versions.
create index routes_versioned on flowfabric.routes (task, version) where version is not null;

-- The options that submissions share, or why they are refused. A route without an id does not exist yet.
create type flowfabric.options as (
    task text, route flowfabric.routes, encoding text, creator text, policy jsonb, dedup_window interval, fault jsonb
);

create type flowfabric.outcome as enum ('success', 'failed', 'cancelled', 'expired', 'skipped');

create type flowfabric.attempt_type as enum ('initial', 'retry', 'reclaim', 'replay');

-- The record: what was submitted, and how it ended. The columns that an end writes are not indexed, so that the
-- update is HOT: a page is filled to a third, because a record grows when it ends. `attempt_…`, `worker`, `instance`
-- and `traceback` are about the attempt that ended with the execution: see _last_attempt. `attempt_epoch` is null if
-- the execution ended between two attempts, or before the first.
create table flowfabric.executions (
    partition          smallint not null,
    priority           smallint,
    parent_partition   smallint,
    route              int not null,
    created_at         timestamptz not null,
    started_at         timestamptz,
    ended_at           timestamptz,
    attempt_started_at timestamptz,
    epoch              bigint,
    attempt_epoch      bigint,
    attempt            int,
    retries            int,
    reclaims           int,
    replays            int not null default 0,
    version            int, -- of its task, when it ended
    outcome            flowfabric.outcome,
    attempt_type       flowfabric.attempt_type,
    has_children       boolean not null default false,
    id                 uuid not null,
    flow               uuid,
    parent             uuid,
    task               text collate "C" not null,
    creator            text,
    on_parent_end      text, -- what becomes of it when its parent ends without success
    tags               jsonb,
    policy             jsonb,
    encoding           text,
    payload            bytea,
    result_encoding    text,
    result             bytea,
    failure            jsonb,
    worker             text,
    instance           text collate "C",
    traceback          jsonb, -- kept apart from the failure, because few calls read it
    overridden         jsonb, -- who ended it by override, and why
    primary key (partition, id)
) with (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
        autovacuum_analyze_scale_factor = 0.02);

create index executions_newest on flowfabric.executions (created_at);
create index executions_by_route on flowfabric.executions (route, created_at);
create index executions_by_task on flowfabric.executions (task, created_at);
create index executions_by_flow on flowfabric.executions (partition, flow) where flow is not null;
create index executions_by_parent on flowfabric.executions (parent_partition, parent, partition, id)
    where parent is not null;

create type flowfabric.phase as enum ('runnable', 'active', 'suspended');

create type flowfabric.eligibility as enum (
    'eligible_now', 'not_eligible_until_time', 'blocked_by_dependencies', 'blocked_by_operator', 'granted');

create type flowfabric.reason as enum (
    'none', 'waiting_for_worker', 'waiting_for_delay', 'waiting_for_retry_backoff', 'waiting_for_resume_delay',
    'waiting_for_children', 'waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback',
    'waiting_for_tool_result', 'waiting_for_budget', 'paused_by_operator', 'paused_by_policy', 'code_changed');

create type flowfabric.attempt_state as enum (
    'pending_first_attempt', 'running_attempt', 'attempt_interrupted', 'pending_retry_attempt',
    'pending_reclaim_attempt', 'pending_replay_attempt');

create type flowfabric.lease_end as enum ('expired', 'revoked');

-- The live state of an unfinished execution, and the row to lock for every change to the execution. `worker` and
-- `instance` are those of the last lease, because an interrupted attempt belongs to them. Null takes no space.
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
    suspended_at       timestamptz, -- with the suspension
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
    version            int, -- of its task, under which it has started; its route has the same
    bytes              int, -- the length of a payload above 16 KiB; 1,000 smaller ones stay below 16 MiB
    crashes            smallint, -- how many leases expired while its handler may have been running
    begun              boolean, -- whether the handler may have been called under the last lease; unknown when null
    ties               boolean, -- whether its end may have a wait, a reservation or a stream to close; never reset
    id                 uuid not null,
    lease_id           uuid,
    flow               uuid, -- so that a transaction that locks the ticket sees whether it had to lock the flow first
    suspension         uuid, -- the current one, or the one it resumed from until it is claimed again
    lane               text collate "C" not null,
    worker             text,
    instance           text collate "C",
    grant_kid          text, -- the key that signed the grant, and the worker it is granted to
    grant_worker       text,
    grant_instance     text,
    attempt_left       interval,
    resume_delay       interval, -- how long to wait after the suspension
    hold               jsonb,
    running            jsonb, -- the steps that its worker last reported as running; they count while it is active
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

create index tickets_blocked on flowfabric.tickets (lane)
    where phase = 'runnable' and eligibility = 'blocked_by_dependencies';

-- Not on the expiry: if any index contained it, no renewal would be a HOT update.
create index tickets_granted on flowfabric.tickets (lane) where phase = 'runnable' and eligibility = 'granted';

-- Not on the expiry, so that a renewal is a HOT update.
create index tickets_active on flowfabric.tickets (instance, lane) where phase = 'active';

-- What is left of each version of a task.
create index tickets_versioned on flowfabric.tickets (route) where version is not null;

-- The longest suspension of each lane first.
create index tickets_suspended on flowfabric.tickets (lane, suspended_at, partition, id) where phase = 'suspended';

create index tickets_deadline on flowfabric.tickets (deadline_at) where deadline_at is not null;

create index tickets_by_flow on flowfabric.tickets (flow) where flow is not null;

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

-- Claims and attempts.

-- Live worker processes. Feeds blocked_by_route; a claim works without an entry here.
create table flowfabric.workers (
    instance           text collate "C" primary key,
    worker             text not null,
    namespace          text,
    lanes              text[] not null,
    capabilities       text[] not null,
    ttl                interval not null,
    registered_at      timestamptz not null,
    beat_at            timestamptz not null,
    expires_at         timestamptz not null,
    lock_key           int, -- the advisory lock that the instance holds while it lives, if any
    lock_missing_since timestamptz,
    lock_checked_at    timestamptz, -- when it was last found missing
    lock_retaken_at    timestamptz, -- when the instance took it again after it had lost it
    tasks              jsonb, -- name, version and lane of each task of the instance, by name; null if unknown
    versions           text[] not null default '{}', -- what it has for routes of versions: see _version_word
    schemas            jsonb -- the JSON Schemas of their arguments, in the same order
) with (fillfactor = 50);

create type flowfabric.lifecycle as enum (
    'ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed');

-- Ended attempts that another may follow: failed ones that are retried, and those before a replay. The current attempt
-- is part of the ticket, and the one that ended with the execution is part of the record.
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

-- A saved result, or a sleep with its end time, by name and occurrence of that name in a run.
create table flowfabric.steps (
    partition  smallint not null,
    occurrence int not null,
    at         timestamptz not null,
    started_at timestamptz, -- when its function was called, if known
    due_at     timestamptz,
    execution  uuid not null,
    name       text collate "C" not null,
    kind       text not null,
    encoding   text,
    result     bytea,
    primary key (partition, execution, name, occurrence)
);

-- Streams: what an attempt puts out while it runs.

create type flowfabric.frame_kind as enum ('stdout', 'stderr', 'event', 'blob');

create type flowfabric.frame_mode as enum ('durable', 'summary', 'best_effort');

create type flowfabric.closed_reason as enum (
    'attempt_success', 'attempt_failure', 'attempt_cancelled', 'reclaimed', 'lease_expired', 'expired',
    'suspension_timeout', 'dependency_impossible');

-- The stream of an attempt: the counters that its next frame needs, and its summary. Created with the first frame, so
-- that an attempt without output costs nothing. `last_…` is the id of the last frame; `epoch` and `number` are those of
-- the last numbered frame, so that a repeat is noticed. `trim_at` is when `trim_frames` has something to remove, and
-- -infinity once the execution itself was removed.
create table flowfabric.streams (
    partition          smallint not null,
    attempt            int not null,
    last_ms            bigint not null default 0,
    last_seq           int not null default -1,
    max_frames         int not null, -- how many durable frames are kept, and how long all frames after the end
    retention          interval, -- as long as the execution if null
    epoch              bigint,
    number             bigint,
    frame_count        bigint not null default 0, -- of all frames ever appended, whether they are kept or not
    durable_count      bigint not null default 0,
    summary_version    bigint not null default 0,
    best_effort_count  bigint not null default 0,
    best_effort_at     timestamptz, -- when best-effort frames were last appended, at which rate, and how many are kept
    best_effort_rate   double precision not null default 0,
    best_effort_keep   int not null default 64,
    closed_reason      flowfabric.closed_reason,
    closed_at          timestamptz,
    trim_at            timestamptz,
    summary_first_at   timestamptz,
    summary_updated_at timestamptz,
    execution          uuid not null,
    summary            jsonb,
    primary key (partition, execution, attempt)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A rare value: most appends leave it as it is, and are HOT updates.
create index streams_to_trim on flowfabric.streams (trim_at) where trim_at is not null;

-- Frames are inserted and deleted, never updated. The id of a frame is `<ms>-<seq>`; its ordinal is its number among
-- the frames of its mode, which for a summary is the version. `type` is null if it is the kind.
create table flowfabric.frames (
    partition      smallint not null,
    attempt        int not null,
    ms             bigint not null,
    ordinal        bigint not null,
    at             timestamptz not null,
    expires_at     timestamptz, -- of best-effort frames
    seq            int not null,
    kind           flowfabric.frame_kind not null,
    mode           flowfabric.frame_mode not null,
    execution      uuid not null,
    type           text,
    encoding       text,
    correlation_id text,
    payload        bytea not null,
    primary key (partition, execution, attempt, ms, seq)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

-- What read_frames and tail_frames return: an item, how its execution stands, and one frame of the stream, or none.
-- `trimmed_to` says that the frames before this one have been deleted, up to this id, although they are asked for.
create type flowfabric.read_frame as (
    item int, latest int, has_ended boolean, attempt int, closed_at timestamptz, closed_reason text, more boolean,
    frame_id text, kind text, frame_type text, at timestamptz, payload bytea, encoding text, mode text,
    correlation_id text, summary_version bigint, trimmed_to text
);

-- Waits.

-- A wait for a signal, a time or a child, at its place in the journal. All open waits of a suspended execution belong
-- to the suspension that its ticket names; the suspension of a single wait has the id of that wait. While an execution
-- runs, waits of its last suspension may still be open. Waits that a run no longer requests are deleted.
create table flowfabric.waits (
    partition        smallint not null,
    child_partition  smallint,
    occurrence       int,
    choice           int, -- waits with the same choice are alternatives: the first to complete cancels the others
    suspended_at     timestamptz not null, -- when its suspension was requested
    timeout_at       timestamptz, -- cleared when the wait ends
    ended_at         timestamptz,
    bind             boolean not null default false,
    is_sleep         boolean not null default false,
    execution        uuid not null,
    id               uuid not null,
    suspension       uuid not null,
    child            uuid,
    name             text collate "C",
    reason_code      text not null,
    timeout_behavior text not null,
    requested_by     text not null,
    ended_by         text,
    condition        jsonb not null,
    waitpoints       uuid[], -- a sleep and a wait for a child have none
    satisfiers       uuid[],
    about            bytea,
    about_digest     bytea,
    primary key (partition, execution, id)
) with (fillfactor = 70);

create index waits_open on flowfabric.waits (partition, execution) where ended_at is null;
create unique index waits_by_place on flowfabric.waits (partition, execution, name, occurrence) where name is not null;
create index waits_of_child on flowfabric.waits (child) where child is not null;
create index waits_for_approval on flowfabric.waits (suspended_at, id)
    where reason_code = 'waiting_for_approval' and ended_at is null;
create index waits_timeout on flowfabric.waits (timeout_at) where timeout_at is not null;

-- One of the waits that a call of `suspend` requests. `known` is the wait at the same place that an earlier call
-- requested, `is_over` whether that has ended, `is_moot` whether an alternative has.
create type flowfabric.asked_wait as (
    item int, number int, wait flowfabric.waits, points jsonb, known uuid, is_over boolean, is_moot boolean,
    resume_delay interval, fault jsonb
);

-- Executions that a budget has suspended, until they resume or end.
create table flowfabric.budget_waits (
    partition smallint not null,
    asked_at  timestamptz not null,
    execution uuid not null,
    budget    uuid not null,
    amounts   jsonb not null,
    primary key (partition, execution)
);

create index budget_waits_in_order on flowfabric.budget_waits (budget, asked_at, partition, execution);

create type flowfabric.waitpoint_state as enum ('pending', 'active', 'closed');

-- `question` identifies the wait that was last released here, while no other wait uses the waitpoint: see `_question`.
-- Of the waitpoints with the same key only the newest can be open. No index contains a column that closing an active
-- waitpoint changes, so that this is a HOT update.
create table flowfabric.waitpoints (
    partition    smallint not null,
    state        flowfabric.waitpoint_state not null,
    created_at   timestamptz not null,
    activated_at timestamptz,
    expires_at   timestamptz, -- cleared when the waitpoint is used or closed
    closed_at    timestamptz,
    execution    uuid not null,
    id           uuid not null,
    wait         uuid, -- the wait that uses it, or that used it last
    key          text collate "C" not null,
    kid          text not null,
    fingerprint  text not null,
    close_reason text,
    question     bytea,
    primary key (partition, execution, key, created_at, id)
) with (fillfactor = 70);

create index waitpoints_by_id on flowfabric.waitpoints (id);
create index waitpoints_pending on flowfabric.waitpoints (expires_at) where expires_at is not null;

-- `number` grows within an execution and gives the order of arrival. `question` identifies the wait that a decision of
-- an authenticated person belongs to: see `_question`.
create table flowfabric.signals (
    partition       smallint not null,
    number          int not null,
    at              timestamptz not null,
    execution       uuid not null,
    id              uuid not null,
    waitpoint       uuid,
    name            text not null,
    category        text not null,
    source_type     text not null,
    source_identity text not null,
    effect          text not null,
    correlation_id  text,
    idempotency_key text,
    digest          bytea,
    encoding        text,
    payload         bytea,
    question        bytea,
    primary key (partition, execution, id)
);

create unique index signals_in_order on flowfabric.signals (partition, execution, number);
-- By the waitpoint alone, which belongs to one execution: with the partition in front, the planner may prefer another
-- index that begins with the partition.
create index signals_by_waitpoint on flowfabric.signals (waitpoint, idempotency_key);

-- A signal of an authorised sender, as a call gives it; `item` is its position in the call.
create type flowfabric.given_signal as (
    item int, partition smallint, execution uuid, waitpoint uuid, name text, id uuid, source_type text,
    source_identity text, category text, payload bytea, encoding text, correlation_id text, idempotency_key text,
    digest bytea
);

-- Children.

-- Ends that affect another execution: of a child, whose parent may wait for it, and of a parent, whose children may
-- have to be cancelled. Written with the end and processed later, so that no transaction locks two executions of a
-- family. `after_…` is the last child of an ended parent that has been processed.
create table flowfabric.child_ends (
    partition        smallint not null,
    parent_partition smallint,
    after_partition  smallint,
    at               timestamptz not null,
    retry_at         timestamptz, -- when to try again, if children of an ended parent were locked
    execution        uuid not null,
    parent           uuid, -- null if the parent itself has ended
    after_id         uuid
);

alter table flowfabric.child_ends replica identity full; -- as removals

create index child_ends_of_children on flowfabric.child_ends (at, execution) where parent is not null;
create index child_ends_of_parents on flowfabric.child_ends (at, execution) where parent is null;
-- For a loose index scan over the parents of ended children, which skips parents that are locked.
create index child_ends_by_parent on flowfabric.child_ends (parent, at, execution) where parent is not null;

-- Maps: children of one `ctx.map`, of which at most `max_running` have a turn. `has_room` is set while one more could
-- have a turn that was locked when it was looked for. Removed with the last of the children.
create table flowfabric.maps (
    partition   smallint not null,
    max_running int not null,
    turn_count  int not null default 0,
    has_room    boolean not null default false,
    id          uuid not null,
    execution   uuid not null, -- the parent
    primary key (partition, id)
);

-- By the id alone, which determines the partition.
create index maps_by_id on flowfabric.maps (id);
create index maps_with_room on flowfabric.maps (id) where has_room;

-- The children of maps that have not ended. One without a turn is blocked.
create table flowfabric.map_children (
    partition smallint not null,
    number    int not null,
    has_turn  boolean not null default false,
    execution uuid not null,
    map       uuid not null,
    primary key (partition, execution)
);

create index map_children_blocked on flowfabric.map_children (map, number) where not has_turn;

-- Flows: executions of one partition with dependencies between them.

-- The row to lock for everything in a flow: a transaction that changes the flow or ends a member locks it first.
create table flowfabric.flows (
    partition      smallint not null,
    revision       int not null default 0,
    node_count     int not null default 0,
    edge_count     int not null default 0,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    cancelled_at   timestamptz,
    id             uuid not null,
    namespace      text collate "C" not null,
    kind           text collate "C" not null,
    key            text collate "C",
    tags           jsonb,
    names          jsonb, -- names of members, if the flow was submitted as a whole
    cancel_policy  text,
    cancel_reason  text,
    cancel_by      text,
    cancel_count   int,
    cancel_members uuid[],
    primary key (partition, id)
) with (fillfactor = 50);

-- A submission refers to its flow by id alone.
create index flows_by_id on flowfabric.flows (id);
create index flows_by_namespace on flowfabric.flows (namespace, partition, id);

-- The flow of each idempotency key, for as long as the flow exists.
create table flowfabric.flow_keys (
    partition      smallint not null,
    flow_partition smallint not null,
    flow           uuid not null,
    namespace      text collate "C" not null,
    key            text collate "C" not null,
    primary key (partition, namespace, key)
);

create index flow_keys_by_flow on flowfabric.flow_keys (flow);

create type flowfabric.edge_state as enum ('pending', 'succeeded', 'failed', 'skipped');

create table flowfabric.flow_edges (
    partition  smallint not null,
    state      flowfabric.edge_state not null default 'pending',
    flow       uuid not null,
    upstream   uuid not null,
    downstream uuid not null,
    id         uuid not null,
    pass_as    text,
    primary key (partition, downstream, upstream)
) with (fillfactor = 50);

-- From an upstream to its edges, and from a flow to all its edges; an execution is in at most one flow. Without the
-- partition in front, because the planner might then use another index that begins with it.
create index flow_edges_by_upstream on flowfabric.flow_edges (upstream, downstream);
create index flow_edges_by_flow on flowfabric.flow_edges (flow, downstream, upstream);
create unique index flow_edges_by_id on flowfabric.flow_edges (partition, id);

create type flowfabric.group_state as enum ('pending', 'satisfied', 'impossible');

-- All edges into one member, and their rule. `needed` is null if all of them are needed.
create table flowfabric.edge_groups (
    partition  smallint not null,
    state      flowfabric.group_state not null default 'pending',
    cancels    boolean not null default false,
    needed     int,
    total      int not null default 0,
    succeeded  int not null default 0,
    failed     int not null default 0,
    skipped    int not null default 0,
    flow       uuid not null,
    downstream uuid not null,
    kind       text not null,
    primary key (partition, downstream)
) with (fillfactor = 50);

create index edge_groups_by_flow on flowfabric.edge_groups (flow, downstream);

-- What upstreams, all in its partition, pass to one member; `more` if it did not fit into the answer, and must be read
-- on demand.
create type flowfabric.inputs as (names text[], results bytea[], encodings text[], upstreams uuid[], more boolean);

-- What a worker needs to run an execution that it has claimed.
create type flowfabric.claimed as (
    partition int, id uuid, flow uuid, task text, namespace text, lane text, priority int, version int, tags text,
    payload bytea, encoding text, lease_id uuid, epoch bigint, attempt int, attempt_type text,
    attempt_started_at timestamptz, resumed boolean, expires_at timestamptz, attempt_deadline timestamptz,
    deadline_at timestamptz, policy text, route int, created_at timestamptz, journal text, input_names text[],
    inputs bytea[], input_encodings text[], input_upstreams uuid[], more_inputs boolean, must_mark boolean,
    alone boolean
);

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

-- Quotas: limits on how often executions start, and on how many run at once.

create table flowfabric.quotas (
    partition               smallint not null,
    max_concurrent          bigint,
    max_requests_per_window bigint,
    window_seconds          int not null,
    created_at              timestamptz not null,
    id                      uuid not null,
    namespace               text collate "C" not null,
    name                    text collate "C" not null,
    primary key (partition, id)
) with (fillfactor = 50);

-- A route stores only the ids of its quotas.
create index quotas_by_id on flowfabric.quotas (id);
create index quotas_by_name on flowfabric.quotas (namespace, name);

-- The limits of a quota are divided among stripes, so that claims that use different stripes do not wait for each
-- other. `slots` and `entries` are at least what the stripe holds and what its window counts; it admits while they are
-- below its shares. `newest` is the number of its newest entry, `used_at` the time of that entry.
create table flowfabric.quota_stripes (
    partition   smallint not null,
    number      smallint not null,
    slots       bigint not null default 0,
    slot_share  bigint not null default 0,
    entries     bigint not null default 0,
    entry_share bigint not null default 0,
    newest      bigint not null default 0,
    used_at     timestamptz not null default '-infinity',
    quota       uuid not null,
    primary key (partition, quota, number)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- Executions that were admitted and may hold a slot. One holds its slot while its ticket is active with this epoch, or
-- has this grant.
create table flowfabric.quota_slots (
    partition           smallint not null,
    stripe              smallint not null,
    execution_partition smallint not null,
    epoch               bigint not null,
    grant_expires_at    timestamptz,
    quota               uuid not null,
    execution           uuid not null,
    primary key (partition, quota, stripe, execution_partition, execution, epoch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The admissions of a sliding window, numbered without gaps in each stripe: the numbers at both ends of the window give
-- the count. The admission of a grant counts while the ticket shows that the grant is valid, and permanently once the
-- grant is used.
create table flowfabric.quota_entries (
    partition           smallint not null,
    stripe              smallint not null,
    execution_partition smallint not null,
    attempt             int not null,
    number              bigint not null,
    at                  timestamptz not null,
    grant_expires_at    timestamptz,
    quota               uuid not null,
    execution           uuid not null,
    primary key (partition, quota, stripe, at, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

create index quota_entries_by_execution on flowfabric.quota_entries (execution, quota, attempt);
create index quota_entries_granted on flowfabric.quota_entries (partition, quota, stripe, at)
    where grant_expires_at is not null;

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
    options        jsonb not null,
    tags           jsonb,
    pause          jsonb,
    refusal        jsonb,
    payload        bytea,
    primary key (namespace, name)
);

create index schedules_due on flowfabric.schedules (due_at, namespace, name) where due_at is not null;

-- The log.

-- The log. Ids are taken under the shared lock of _lock_log, so that a reader can tell when a gap is final. The
-- sessions of our own pool, which have the setting flowfabric.direct, take them as they write. In every other session
-- an event is a draft until its transaction commits (_number_events), so that an open transaction delays no reader.
create sequence flowfabric.event_ids cache 1;

create unlogged sequence flowfabric.draft_ids minvalue 4611686018427387904 cache 1;

create table flowfabric.events (
    id           bigint not null default case when current_setting('flowfabric.direct', true) = 'on'
                                              then nextval('flowfabric.event_ids')
                                              else nextval('flowfabric.draft_ids') end,
    at           timestamptz not null,
    route        int,
    partition    smallint,
    execution    uuid,
    flow         uuid,
    kind         text collate "C" not null,
    subject      text,
    by           text,
    tags         jsonb,
    detail       jsonb,
    -- What every lease and every end says. Readers get it as part of the detail; JSON costs more to write.
    epoch        bigint,
    attempt      int,
    attempt_type flowfabric.attempt_type,
    resumed      boolean,
    lease_id     uuid,
    worker       text,
    instance     text,
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

-- `id` is the highest event id below which no event can still appear. `mark` and `holders` describe the gap that stops
-- it: once all holders have ended, every id up to the mark that is still missing was rolled back. Events below `oldest`
-- have been trimmed; the last of them was written at `trimmed_until`.
create table flowfabric.horizon (
    only_row      boolean primary key default true check (only_row),
    id            bigint not null default 0,
    oldest        bigint not null default 0,
    mark          bigint,
    trimmed_until timestamptz,
    holders       text[] not null default '{}'
) with (fillfactor = 10);

insert into flowfabric.horizon default values;

create table flowfabric.consumers (
    name            text collate "C" primary key,
    event_id        bigint not null,
    acknowledged_at timestamptz not null
) with (fillfactor = 50);

-- Retention and sweeps.

-- When ended executions are removed: one entry for all that ended in the same call and are kept for the same time. A
-- separate table, because the update that ends a record must not touch an index. An execution that has been replayed
-- since is not removed, because its end time differs.
create table flowfabric.removals (
    amount     int not null,
    ended_at   timestamptz not null,
    remove_at  timestamptz, -- their own retention; null: the default retention, counted from ended_at
    partitions smallint[] not null,
    executions uuid[] not null
);

-- For a publication: without a key, logical replication identifies a row by all its columns. A key would cost every end
-- another index entry.
alter table flowfabric.removals replica identity full;

create index removals_by_end on flowfabric.removals (ended_at) where remove_at is null;
create index removals_by_date on flowfabric.removals (remove_at) where remove_at is not null;

-- Which process runs a sweep that only one process at a time may run, since when the sweep has had rows to process,
-- and when another process may take over.
create table flowfabric.turns (
    sweep   text collate "C" primary key,
    holder  uuid not null,
    since   timestamptz not null,
    ends_at timestamptz not null
) with (fillfactor = 50);
