-- The registry of migrations: which ones this database has, and which release its functions are from. This file is
-- applied before every migration, so it is safe to repeat. Old and new releases call these functions, so their
-- signatures never change: add a new function instead.

-- Not `create schema if not exists`, which needs the privilege to create even if the schema already exists.
do $$
begin
    if to_regnamespace('flowfabric') is null then
        create schema flowfabric;
    end if;
end $$;

create table if not exists flowfabric.migrations (
    number     int primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- A hash of the migration's text. Tables that were created before this column have none.
alter table flowfabric.migrations add column if not exists digest text;

create table if not exists flowfabric.functions (
    name      text primary key,
    signature text not null
);

-- The release that the functions are from, in one row. The digest distinguishes two states of one release.
create table if not exists flowfabric.release (
    only_row boolean primary key default true check (only_row),
    version  text not null,
    digest   text not null
);

-- Databases from before 0.1.0 have this function with other columns.
drop function if exists flowfabric.schema_state();

-- Read the schema version of this database.
--
--   returns  the last migration (0 for none), the release and digest of the functions, the cell, the partition counts
create or replace function flowfabric.schema_state(
    out last_migration int, out version text, out digest text, out cell int, out budget_partitions int,
    out quota_partitions int)
language plpgsql stable as $$
#variable_conflict use_column
begin
    select coalesce(max(m.number), 0) into last_migration from flowfabric.migrations m;
    select r.version, r.digest into version, digest from flowfabric.release r;
    if to_regclass('flowfabric.deployment') is not null then
        select d.cell, d.budget_partitions, d.quota_partitions
        into cell, budget_partitions, quota_partitions from flowfabric.deployment d;
    end if;
end $$;

-- Read the digest of the migration that created the tables.
--
--   returns  the digest, empty if none was stored, null if there are no tables yet
create or replace function flowfabric.schema_layout()
returns text
language sql stable as $$
    select coalesce(m.digest, '') from flowfabric.migrations m where m.number = 1
$$;

-- Record that a migration has been applied.
create or replace function flowfabric._note_migration(number int, name text, digest text)
returns void
language sql as $$
    insert into flowfabric.migrations (number, name, digest)
    values (_note_migration.number, _note_migration.name, _note_migration.digest)
$$;

-- Store the cell and the partition counts, if none are stored yet: they never change.
create or replace function flowfabric._fix_deployment(cell int, budget_partitions int, quota_partitions int)
returns void
language plpgsql as $$
begin
    insert into flowfabric.deployment (cell, budget_partitions, quota_partitions)
    values (_fix_deployment.cell, _fix_deployment.budget_partitions, _fix_deployment.quota_partitions)
    on conflict do nothing;
end $$;

-- Drop the functions that were removed or whose signature changed, because `create or replace` can do neither, and
-- store the new list. The function of a trigger stays: the trigger depends on it, and its signature never changes.
--
--   returns  how many were dropped
create or replace function flowfabric._prepare_functions(names text[], signatures text[], version text, digest text)
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    old text;
    dropped int := 0;
begin
    for old in
        select f.name from flowfabric.functions f
        left join unnest(_prepare_functions.names, _prepare_functions.signatures) as n (name, signature)
            on n.name = f.name
        where n.signature is distinct from f.signature and coalesce(n.signature, '') not like '%returns trigger'
    loop
        execute format('drop function if exists flowfabric.%I', old);
        dropped := dropped + 1;
    end loop;
    delete from flowfabric.functions;
    insert into flowfabric.functions (name, signature)
    select n.* from unnest(_prepare_functions.names, _prepare_functions.signatures) as n (name, signature);
    insert into flowfabric.release (version, digest) values (_prepare_functions.version, _prepare_functions.digest)
    on conflict (only_row) do update set version = excluded.version, digest = excluded.digest;
    -- Functions call each other regardless of the order of their files.
    set local check_function_bodies = off;
    return dropped;
end $$;

-- Turn off JIT compilation in every function that is called from outside, and so in all that it calls, whatever the
-- session has set. Before Postgres 18 the planner overestimates statements that read a small table whole although scans
-- are off, and compiles them: for 10 to 400 ms each. The clock reads no table, and is called by all the others.
create or replace function flowfabric._turn_off_jit()
returns void
language plpgsql as $$
declare
    called regprocedure;
begin
    for called in
        select p.oid from pg_proc p
        where p.pronamespace = 'flowfabric'::regnamespace and p.proname <> 'clock'
          and (p.proname not like '\_%' or p.proname = '_due_schedules')
    loop
        execute format('alter function %s set jit = off', called);
    end loop;
end $$;
