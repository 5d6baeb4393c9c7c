-- Saved steps of a handler, so that a handler that runs again from the top does not repeat them.

-- A saved result, or a sleep with its end time, by name and occurrence of that name in a run.
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
