-- What a handler has done so far, so that a run that begins again from the top does not do it again.

-- A saved result, or a sleep with the moment it ends, by name and how often the name came in a run.
create table flowfabric.steps (
    partition  smallint not null,
    occurrence int not null,
    at         timestamptz not null,
    due_at     timestamptz,
    execution  uuid not null,
    name       text collate "C" not null,
    kind       text not null,
    encoding   text,
    result     bytea,
    primary key (partition, execution, name, occurrence)
);
