-- Quotas: limits on how often executions start, and on how many run at once.

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

-- A route stores only the ids of its quotas.
create index quotas_by_id on flowfabric.quotas (id);
create index quotas_by_name on flowfabric.quotas (namespace, name);

-- Executions that were admitted and may hold a slot. One holds its slot while its ticket is active or granted.
create table flowfabric.quota_slots (
    partition           smallint not null,
    execution_partition smallint not null,
    quota               uuid not null,
    execution           uuid not null,
    primary key (partition, quota, execution_partition, execution)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The admissions of a sliding window, numbered without gaps: the numbers at both ends of the window give the count. The
-- admission of a grant counts while the ticket shows that the grant is valid, and permanently once the grant is used.
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
create index quota_entries_granted on flowfabric.quota_entries (partition, quota, at)
    where grant_expires_at is not null;

-- Routes with budgets or quotas.
create index routes_limited on flowfabric.routes (id) where budgets <> '{}' or quotas <> '{}';
