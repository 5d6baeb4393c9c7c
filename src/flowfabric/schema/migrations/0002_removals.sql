-- What the life of a claimed execution needs besides its ticket: when to remove its record, and whether its worker lives.

-- When each ended execution is to be removed. Apart from the record, whose ending must not touch an index. An entry of
-- an execution that was replayed since is void: it names another end.
create table flowfabric.removals (
    partition smallint not null,
    execution uuid not null,
    ended_at  timestamptz not null,
    remove_at timestamptz -- its own retention; null: the deployment's, from ended_at
);

create index removals_by_end on flowfabric.removals (ended_at) where remove_at is null;
create index removals_by_date on flowfabric.removals (remove_at) where remove_at is not null;

-- The advisory lock an instance holds while it lives, if it holds one, and since when it has been missing.
alter table flowfabric.workers add column lock_key int, add column lock_missing_since timestamptz;
