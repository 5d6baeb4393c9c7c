-- The horizon: how far the log can be read without skipping an event that commits late.

-- The transactions that are writing to the log now: they hold its lock.
--
--   returns  their virtual transaction ids, which no two live transactions share; '-1/…' for one that was prepared
--            before a restart
create or replace function flowfabric._event_writers()
returns text[]
language sql volatile as $$
    select coalesce(array_agg(l.virtualtransaction), '{}') from pg_locks l
    where l.locktype = 'advisory' and l.classid = 17990 and l.objid = 1 and l.objsubid = 2 and l.granted
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;

-- The highest event id taken so far, whether or not its transaction committed. A writer holds the log's lock when it
-- takes an id.
create or replace function flowfabric._last_taken_id()
returns bigint
language sql volatile as $$
    select case when s.is_called then s.last_value else s.last_value - 1 end from flowfabric.event_ids s
$$;

-- Move the horizon as far as possible. One process does it at a time; the others use the current value. This is correct
-- because a transaction takes the log's lock before its first event id and releases it after its commit is visible.
--
--   locks    the horizon; skips when another process is moving it
--   returns  the horizon
create or replace function flowfabric.advance_horizon()
returns bigint
language plpgsql as $$
declare
    known flowfabric.horizon;
    writers text[];
    is_renamed boolean;
    last_taken bigint;
    look_end bigint;
begin
    select h.* into known from flowfabric.horizon h;
    -- Nothing new was written; or this is a standby; or the snapshot is old and shows committed events as gaps.
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
        -- A transaction prepared for two-phase commit gets another id when Postgres restarts: a missing writer may be
        -- any of the prepared transactions.
        writers := flowfabric._event_writers();
        is_renamed := exists (select from unnest(known.holders) h where h not like '-1/%' and h <> all (writers));
        known.holders := array(
            select w from unnest(writers) w where w = any (known.holders) or is_renamed and w like '-1/%');
        if known.holders = '{}' then
            -- The writers of that time have ended: events still missing up to the mark will never appear.
            known.id := greatest(known.id, known.mark);
        end if;
    end if;
    last_taken := flowfabric._last_taken_id();
    loop
        look_end := least(known.id + 20000, last_taken);
        -- The end of the unbroken run of ids. The bounds are literals, so that the planner opens only the partitions
        -- between them.
        execute format(
            'select coalesce(max(x.id), %1$s) from (
                 select e.id, row_number() over (order by e.id) as place from flowfabric.events e
                 where e.id > %1$s and e.id <= %2$s) x
             where x.id = %1$s + x.place', known.id, look_end) into known.id;
        exit when known.id < look_end or known.id >= last_taken;
    end loop;
    if known.mark <= known.id then
        known.mark := null;
    end if;
    if known.id < last_taken and known.mark is null then
        -- Read the last id first and the writers second: in this order no writer is missed.
        known.holders := flowfabric._event_writers();
        known.mark := case when known.holders <> '{}' then last_taken end;
        known.id := case when known.holders <> '{}' then known.id else last_taken end;
    end if;
    update flowfabric.horizon h
    set id = known.id, mark = known.mark, holders = case when known.mark is null then '{}' else known.holders end
    where (h.id, h.mark) is distinct from (known.id, known.mark) or h.mark is not null and h.holders <> known.holders;
    return known.id;
end $$;

-- Move the horizon as far as possible, and say whether every event can be read.
--
--   locks    the horizon; skips when another process is moving it
--   returns  the horizon, and then the highest event id taken; if they are equal, no event is missing
create or replace function flowfabric.watch_log(out horizon_id bigint, out last_id bigint)
language plpgsql as $$
begin
    horizon_id := flowfabric.advance_horizon();
    last_id := flowfabric._last_taken_id();
end $$;
