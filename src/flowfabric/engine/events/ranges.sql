-- The partitions of the log: ranges of a million ids each, created in advance and dropped when they are old.

-- Sweep: create the log partitions that will be needed next, up to sixteen million ids ahead. Each is created first and
-- attached afterwards, so that no writer waits. Every migration and a sweep call this. If it comes too late, events are
-- in events_rest, and their ranges are never created. Attaching locks that table, which is normally empty and unused.
-- The call waits for it at most 100 ms; otherwise the next pass tries again.
--
--   locks    an advisory lock, so that only one such call runs at a time; the log, if it came too late; events_rest,
--            while partitions are attached
--   returns  how many partitions were created
create or replace function flowfabric.extend_events(
    take int default 100, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    size constant bigint := 1000000;
    ahead constant int := 16;
    first_range bigint;
    last_rest bigint;
    range bigint;
begin
    perform pg_advisory_xact_lock(17990, 3);
    moved := 0;
    select (s.last_value + 1) / size into first_range from flowfabric.event_ids s;
    select max(e.id) / size into last_rest from flowfabric.events_rest e;
    if last_rest >= first_range or to_regclass(format('flowfabric.events_%s', first_range)) is null then
        -- Writers are using events_rest. Wait for those: one with an id in a range that is attached now would fail.
        perform pg_advisory_xact_lock(17990, 1);
        select (s.last_value + 1) / size into first_range from flowfabric.event_ids s;
        select max(e.id) / size into last_rest from flowfabric.events_rest e;
    end if;
    for range in
        select r from generate_series(first_range, first_range + ahead) r
        where to_regclass(format('flowfabric.events_%s', r)) is null and (last_rest is null or r > last_rest)
        order by r limit extend_events.take offset extend_events.passing
    loop
        execute format('create table flowfabric.events_%s '
                       '(like flowfabric.events including defaults including constraints)', range);
        execute format('alter table flowfabric.events attach partition flowfabric.events_%s '
                       'for values from (%s) to (%s)', range, range * size, (range + 1) * size);
        moved := moved + 1;
    end loop;
exception when lock_not_available then
    moved := 0;
end $$;

-- Find the first partition to keep, from the oldest one on: partitions before it lie below the horizon and hold no
-- event younger than the retention.
--
--   returns  the number of the first partition to keep, and the time of the newest event before it
create or replace function flowfabric._first_kept_range(
    oldest bigint, horizon_id bigint, ranges int, retention_ms bigint, out kept bigint, out newest timestamptz)
language plpgsql stable as $$
declare
    size constant bigint := 1000000;
    youngest constant timestamptz := flowfabric.clock() - _first_kept_range.retention_ms * interval '1 ms';
    last_at timestamptz;
begin
    kept := _first_kept_range.oldest / size;
    while kept < _first_kept_range.oldest / size + _first_kept_range.ranges
        and (kept + 1) * size <= _first_kept_range.horizon_id + 1 loop
        -- The last event almost always decides. Another one is younger if the clock was set back, or if the last one
        -- was written in a transaction that stayed open for long. The bounds are literals, for the planner.
        execute format('select e.at from flowfabric.events e where e.id >= %s and e.id < %s order by e.id desc limit 1',
                       kept * size, (kept + 1) * size) into last_at;
        exit when last_at > youngest;
        execute format('select max(e.at) from flowfabric.events e where e.id >= %s and e.id < %s',
                       kept * size, (kept + 1) * size) into last_at;
        exit when last_at > youngest;
        newest := greatest(newest, last_at);
        kept := kept + 1;
    end loop;
end $$;

-- Sweep: drop the oldest log partitions that lie below the horizon and whose newest event is older than the retention.
-- Waits at most 100 ms for the lock, so that it never blocks writers for longer; then the next pass tries again.
--
--   locks    the horizon, then the log, while partitions are dropped
--   returns  how many partitions were dropped
create or replace function flowfabric.trim_events(
    take int default 100, passing int default 0, retention_ms bigint default 604800000, out moved int, out lanes text[],
    out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    size constant bigint := 1000000;
    known flowfabric.horizon;
    old record;
begin
    moved := 0;
    select h.* into known from flowfabric.horizon h;
    old := flowfabric._first_kept_range(known.oldest, known.id, trim_events.take, trim_events.retention_ms);
    if old.kept = known.oldest / size then
        return;
    end if;

    select h.* into known from flowfabric.horizon h for update;
    delete from flowfabric.events_rest e where e.id < old.kept * size;
    moved := case when found then 1 else 0 end;
    lock table only flowfabric.events in access exclusive mode;
    for range in known.oldest / size .. old.kept - 1 loop
        if to_regclass(format('flowfabric.events_%s', range)) is not null then
            -- Writers are waiting for the log by now, so do not also wait for a vacuum of this partition.
            execute format('lock table flowfabric.events_%s in access exclusive mode nowait', range);
            execute format('drop table flowfabric.events_%s', range);
            moved := moved + 1;
        end if;
    end loop;
    update flowfabric.horizon h
    set oldest = greatest(h.oldest, old.kept * size), trimmed_until = greatest(h.trimmed_until, old.newest);
exception when lock_not_available then
    moved := 0;
end $$;
