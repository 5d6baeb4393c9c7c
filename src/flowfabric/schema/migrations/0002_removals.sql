-- When to remove the record of an ended execution, which process does so, and whether a worker lives.

-- When each ended execution is removed. A separate table, because the update that ends a record must not touch an
-- index. If the execution has been replayed since, the entry is ignored, because its end time differs.
create table flowfabric.removals (
    partition smallint not null,
    execution uuid not null,
    ended_at  timestamptz not null,
    remove_at timestamptz -- its own retention; null: the default retention, counted from ended_at
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

-- The advisory lock that an instance holds while it lives, if any; since when it has been missing, and when that was
-- last checked; and when the instance took it again after it had lost it.
alter table flowfabric.workers add column lock_key int, add column lock_missing_since timestamptz,
    add column lock_checked_at timestamptz, add column lock_retaken_at timestamptz;
