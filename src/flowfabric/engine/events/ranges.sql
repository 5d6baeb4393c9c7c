-- The partitions of the log: ranges of a million ids each, created in advance and dropped when they are old.

-- Sweep: create the log partitions that will be needed next, up to sixteen million ids ahead. Each is created first and
-- attached afterwards, so that no writer waits. Every migration calls this too.
--
--   locks    an advisory lock, so that only one such call runs at a time
--   returns  how many partitions were created
create or replace function flowfabric.extend_events(
    take int default 100, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql as $$
#variable_conflict use_column
declare
    size constant bigint := 1000000;
    ahead constant int := 16;
    first_range bigint;
    range bigint;
begin
    perform pg_advisory_xact_lock(17990, 3);
    moved := 0;
    select (s.last_value + 1) / size into first_range from flowfabric.event_ids s;
    for range in
        select r from generate_series(first_range, first_range + ahead) r
        where to_regclass(format('flowfabric.events_%s', r)) is null
        order by r limit extend_events.take offset extend_events.passing
    loop
        execute format('create table flowfabric.events_%s '
                       '(like flowfabric.events including defaults including constraints)', range);
        execute format('alter table flowfabric.events attach partition flowfabric.events_%s '
                       'for values from (%s) to (%s)', range, range * size, (range + 1) * size);
        moved := moved + 1;
    end loop;
end $$;

-- Find the first partition to keep, from the oldest one on: partitions before it lie below the horizon and hold no
-- event younger than the retention.
--
--   returns  the number of the first partition to keep
create or replace function flowfabric._first_kept_range(
    oldest bigint, horizon_id bigint, ranges int, retention_ms bigint)
returns bigint
language plpgsql stable as $$
declare
    size constant bigint := 1000000;
    youngest constant timestamptz := flowfabric.clock() - _first_kept_range.retention_ms * interval '1 ms';
    range bigint := _first_kept_range.oldest / size;
    is_young boolean;
begin
    while range < _first_kept_range.oldest / size + _first_kept_range.ranges
        and (range + 1) * size <= _first_kept_range.horizon_id + 1 loop
        if to_regclass(format('flowfabric.events_%s', range)) is not null then
            -- The last event almost always decides; another one is younger only if the clock was set back.
            execute format('select e.at > $1 from flowfabric.events_%s e order by e.id desc limit 1', range)
            into is_young using youngest;
            exit when is_young;
            execute format('select exists (select from flowfabric.events_%s e where e.at > $1)', range) into is_young
            using youngest;
            exit when is_young;
        end if;
        range := range + 1;
    end loop;
    return range;
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
#variable_conflict use_column
declare
    size constant bigint := 1000000;
    known flowfabric.horizon;
    kept bigint;
    newest timestamptz;
begin
    moved := 0;
    select h.* into known from flowfabric.horizon h;
    kept := flowfabric._first_kept_range(known.oldest, known.id, trim_events.take, trim_events.retention_ms);
    if kept = known.oldest / size then
        return;
    end if;

    select h.* into known from flowfabric.horizon h for update;
    lock table only flowfabric.events in access exclusive mode;
    for range in known.oldest / size .. kept - 1 loop
        if to_regclass(format('flowfabric.events_%s', range)) is not null then
            -- Writers are waiting for the log by now, so do not also wait for a vacuum of this partition.
            execute format('lock table flowfabric.events_%s in access exclusive mode nowait', range);
            execute format('select e.at from flowfabric.events_%s e order by e.id desc limit 1', range) into newest;
            execute format('drop table flowfabric.events_%s', range);
            known.trimmed_until := greatest(known.trimmed_until, newest);
            moved := moved + 1;
        end if;
    end loop;
    update flowfabric.horizon h set oldest = greatest(h.oldest, kept * size), trimmed_until = known.trimmed_until;
exception when lock_not_available then
    moved := 0;
end $$;
