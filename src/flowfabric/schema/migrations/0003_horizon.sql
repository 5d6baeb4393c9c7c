-- How far the log can be read, and how far its named consumers have read it.

-- The highest id below which nothing can still appear, and what is known of the hole that stops it: once none of the
-- holders is left, every id up to the mark that is still missing was rolled back. Ids below `oldest` have been trimmed, the
-- last of them written at `trimmed_until`.
create table flowfabric.horizon (
    only_row boolean primary key default true check (only_row),
    id       bigint not null default 0,
    oldest   bigint not null default 0,
    mark     bigint,
    trimmed_until timestamptz,
    holders  text[] not null default '{}'
) with (fillfactor = 10);

insert into flowfabric.horizon default values;

create table flowfabric.consumers (
    name            text collate "C" primary key,
    event_id        bigint not null,
    acknowledged_at timestamptz not null
) with (fillfactor = 50);
