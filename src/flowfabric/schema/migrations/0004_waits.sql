-- Suspending executions: signing keys, grants, suspensions, waitpoints and signals.

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

-- When a migration installed the first key, which happens once.
alter table flowfabric.deployment add column seeded_at timestamptz;

-- The current suspension of a ticket, or the one it resumed from until it is claimed again; the worker it is granted
-- to, and the key that signed the grant. `worker` and `instance` stay those of the last lease, because an interrupted
-- attempt belongs to them.
alter table flowfabric.tickets add column suspension uuid, add column grant_kid text, add column grant_worker text,
    add column grant_instance text;

-- Not on the expiry: if any index contained it, no renewal would be a HOT update.
create index tickets_granted on flowfabric.tickets (lane) where phase = 'runnable' and eligibility = 'granted';

create table flowfabric.suspensions (
    partition        smallint not null,
    occurrence       int,
    suspended_at     timestamptz not null,
    timeout_at       timestamptz,
    ended_at         timestamptz,
    resume_delay     interval,
    execution        uuid not null,
    id               uuid not null,
    reason_code      text not null,
    timeout_behavior text not null,
    requested_by     text not null,
    ended_by         text,
    idempotency_key  text,
    name             text,
    condition        jsonb not null,
    satisfiers       uuid[],
    about            bytea,
    about_digest     bytea,
    bind             boolean not null default false,
    primary key (partition, execution, id)
) with (fillfactor = 70);

create unique index suspensions_open on flowfabric.suspensions (partition, execution) where ended_at is null;
create unique index suspensions_by_key on flowfabric.suspensions (partition, execution, idempotency_key)
    where idempotency_key is not null;
create index suspensions_oldest on flowfabric.suspensions (suspended_at, partition, execution) where ended_at is null;
-- The timeout is cleared when the suspension ends, the expiry when the waitpoint is used or closed.
create index suspensions_timeout on flowfabric.suspensions (timeout_at) where timeout_at is not null;

create type flowfabric.waitpoint_state as enum ('pending', 'active', 'closed');

-- `question` identifies the wait that was last released here, while no other wait uses the waitpoint: see `_question`.
create table flowfabric.waitpoints (
    partition    smallint not null,
    state        flowfabric.waitpoint_state not null,
    created_at   timestamptz not null,
    activated_at timestamptz,
    expires_at   timestamptz,
    closed_at    timestamptz,
    execution    uuid not null,
    id           uuid not null,
    suspension   uuid,
    key          text collate "C" not null,
    kid          text not null,
    fingerprint  text not null,
    close_reason text,
    question     bytea,
    primary key (partition, execution, id)
) with (fillfactor = 70);

create unique index waitpoints_open on flowfabric.waitpoints (partition, execution, key) where state <> 'closed';
create index waitpoints_by_id on flowfabric.waitpoints (id);
create index waitpoints_of_suspension on flowfabric.waitpoints (suspension) where suspension is not null;
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
