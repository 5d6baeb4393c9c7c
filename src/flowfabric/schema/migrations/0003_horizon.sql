-- The horizon of the log (how far it can be read), and the positions of its named consumers.

-- `id` is the highest event id below which no event can still appear. `mark` and `holders` describe the gap that stops
-- it: once all holders have ended, every id up to the mark that is still missing was rolled back. Events below `oldest`
-- have been trimmed; the last of them was written at `trimmed_until`.
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
