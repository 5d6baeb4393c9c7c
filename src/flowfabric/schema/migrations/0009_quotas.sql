-- Quotas: how often, and how many at once.

create table flowfabric.quotas (
    partition               smallint not null,
    max_concurrent          bigint,
    max_requests_per_window bigint,
    window_seconds          int not null,
    created_at              timestamptz not null,
    used_at                 timestamptz not null default '-infinity',
    id                      uuid not null,
    namespace               text collate "C" not null,
    name                    text collate "C" not null,
    primary key (partition, id)
) with (fillfactor = 50);

-- A route knows its quotas by their ids alone.
create index quotas_by_id on flowfabric.quotas (id);
create index quotas_by_name on flowfabric.quotas (namespace, name);

-- What may hold a slot: one that was admitted. It holds it while its ticket is active or granted, which the ticket says.
create table flowfabric.quota_slots (
    partition           smallint not null,
    execution_partition smallint not null,
    quota               uuid not null,
    execution           uuid not null,
    primary key (partition, quota, execution_partition, execution)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The admissions of a sliding window, numbered without a gap: how many there are follows from the numbers at its ends.
-- One that was a grant's counts while that grant is good, which the ticket says, and for good once the grant is used.
create table flowfabric.quota_entries (
    partition           smallint not null,
    execution_partition smallint not null,
    attempt             int not null,
    number              bigint not null,
    at                  timestamptz not null,
    grant_expires_at    timestamptz,
    quota               uuid not null,
    execution           uuid not null,
    primary key (partition, quota, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

create index quota_entries_by_age on flowfabric.quota_entries (partition, quota, at, number);
create index quota_entries_by_execution on flowfabric.quota_entries (execution, quota, attempt);
create index quota_entries_granted on flowfabric.quota_entries (partition, quota, at) where grant_expires_at is not null;

-- Routes that are not open to everybody at all times.
create index routes_limited on flowfabric.routes (id) where budgets <> '{}' or quotas <> '{}';
