-- The horizon: how far the log can be read without ever stepping over a line that commits late.

-- Who is writing to the log at this moment: the transactions that hold its lock.
--
--   returns  their virtual transaction ids, which no two live transactions share; '-1/…' for one that was prepared before a restart
create or replace function flowfabric._event_writers()
returns text[]
language sql volatile as $$
    select coalesce(array_agg(l.virtualtransaction), '{}') from pg_locks l
    where l.locktype = 'advisory' and l.classid = 17990 and l.objid = 1 and l.objsubid = 2 and l.granted
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;

-- Those of some earlier writers that may not have ended. One that was prepared for a two-phase commit goes by another
-- name after a restart of Postgres: where one is gone, it may be any of those.
--
--   returns  their virtual transaction ids
create or replace function flowfabric._still_writing(holders text[])
returns text[]
language plpgsql volatile as $$
declare
    writers text[] := flowfabric._event_writers();
    is_renamed boolean := exists (select from unnest(_still_writing.holders) h where h not like '-1/%' and h <> all (writers));
begin
    return array(select w from unnest(writers) w where w = any (_still_writing.holders) or is_renamed and w like '-1/%');
end $$;

-- The highest id that has been given out, to whatever became of it. A writer has the log's lock when it takes one.
--
--   returns  the id
create or replace function flowfabric._last_taken_id()
returns bigint
language sql volatile as $$
    select case when s.is_called then s.last_value else s.last_value - 1 end from flowfabric.event_ids s
$$;

-- The end of the unbroken run of ids that begins behind one, if it does; looks no further than another.
--
--   returns  its last id
create or replace function flowfabric._run_end(behind bigint, last_id bigint)
returns bigint
language plpgsql volatile as $$
declare
    run_end bigint;
begin
    -- The bounds stand in the text as numbers, so that only the ranges between them are opened.
    execute format(
        'select max(x.id) from (
             select e.id, row_number() over (order by e.id) as place from flowfabric.events e where e.id > %1$s and e.id <= %2$s) x
         where x.id = %1$s + x.place', behind, last_id) into run_end;
    return coalesce(run_end, behind);
end $$;

-- Move the horizon as far as it can go now. One process at a time does it; the others use what is there. A transaction
-- takes the log's lock before its first id and lets it go after its commit is visible, which is what makes this right.
--
--   locks    the horizon; skips when another process is moving it
--   returns  the horizon
create or replace function flowfabric.advance_horizon()
returns bigint
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    known flowfabric.horizon;
    last_taken bigint;
    look_end bigint;
begin
    select h.* into known from flowfabric.horizon h;
    -- Nothing was written since; or a standby; or an older snapshot, in which what has committed could look like a hole.
    if flowfabric._last_taken_id() <= known.id or current_setting('transaction_read_only') = 'on'
       or current_setting('transaction_isolation') <> 'read committed' then
        return known.id;
    end if;
    perform from flowfabric.horizon h for update skip locked;
    if not found then
        return known.id;
    end if;
    select h.* into known from flowfabric.horizon h;

    if known.mark is not null then
        known.holders := flowfabric._still_writing(known.holders);
        if known.holders = '{}' then
            -- The writers of that time are gone: what is still missing up to the mark never comes.
            known.id := greatest(known.id, known.mark);
        end if;
    end if;
    last_taken := flowfabric._last_taken_id();
    loop
        look_end := least(known.id + 20000, last_taken);
        known.id := flowfabric._run_end(known.id, look_end);
        exit when known.id < look_end or known.id = last_taken;
    end loop;
    if known.mark <= known.id then
        known.mark := null;
    end if;
    if known.id < last_taken and known.mark is null then
        -- First what has been taken, then who might still fill it: in this order nobody is overlooked.
        known.holders := flowfabric._event_writers();
        known.mark := case when known.holders <> '{}' then last_taken end;
        known.id := case when known.holders <> '{}' then known.id else last_taken end;
    end if;
    update flowfabric.horizon h set id = known.id, mark = known.mark, holders = case when known.mark is null then '{}' else known.holders end
    where (h.id, h.mark) is distinct from (known.id, known.mark) or h.mark is not null and h.holders <> known.holders;
    return known.id;
end $$;
