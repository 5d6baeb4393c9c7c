-- Reading the log: events after a cursor, up to the horizon, that match a filter.

-- Refuse a cursor whose following events have been trimmed: a gap is never silent.
--
--   refuses  cursor_expired
create or replace function flowfabric._check_cursor(after bigint)
returns void
language plpgsql stable as $$
declare
    size constant bigint := 1000000;
    range_start constant bigint := (least(_check_cursor.after, 4611686018427387904) + 1) / size * size;
    known flowfabric.horizon;
begin
    select h.* into known from flowfabric.horizon h;
    if _check_cursor.after < known.oldest - 1 and _check_cursor.after > 0
       -- In an older snapshot the horizon row does not show that a partition has been dropped since.
       or _check_cursor.after between 1 and known.id - 1
          and to_regclass(format('flowfabric.events_%s', range_start / size)) is null
          and not exists (select from flowfabric.events_rest e
                          where e.id >= range_start and e.id < range_start + size) then
        perform flowfabric._refuse('cursor_expired', format(
            'the cursor is at event %s, but retention has removed events after it; start again with the oldest event',
            _check_cursor.after), jsonb_build_object('oldest', known.oldest));
    end if;
end $$;

-- Read the log. One call scans at most 5,000 ids, or 16 partitions when reading one execution. The position it returns
-- is after everything it scanned, even when no event matched the filter. The events of one execution are read beyond
-- the horizon: their ids are taken while its ticket or record is locked, so none appears below one that is visible.
--
--   refuses  invalid_limit, cursor_expired
--   returns  events in order, each with the position after it; then a last row that holds only the position after the
--            whole scan
create or replace function flowfabric.read_events(
    after bigint default null, take int default 256, namespace text default null, tag_key text default null,
    tag_value text default null, lane text default null, kinds text[] default null, partitions int[] default null,
    execution uuid default null, flow uuid default null, by text default null, acts boolean default false,
    leases boolean default false)
returns table (id bigint, at timestamptz, kind text, partition int, execution_uuid uuid, flow_uuid uuid, subject text,
               namespace_name text, lane_name text, tags text, actor text, detail text, more boolean, truncated boolean)
language plpgsql as $$
declare
    known flowfabric.horizon;
    amount int := flowfabric._page(read_events.take) - 1;
    start bigint;
    log_end bigint;
    look_end bigint;
    last_id bigint;
    found_count int := 0;
begin
    select h.* into known from flowfabric.horizon h;
    log_end := case when read_events.execution is null then known.id
                    else greatest(known.id, flowfabric._last_taken_id()) end;
    start := greatest(least(read_events.after, known.id), known.oldest - 1);
    -- Beyond the horizon the scan of one execution reads all: a position there is only safe after an event it found.
    look_end := case when read_events.execution is null then least(start + 5000, known.id)
                     when start + 16000000 < known.id then start + 16000000
                     else log_end end;
    if read_events.after < log_end and amount > 0 then
        for id, at, kind, partition, execution_uuid, flow_uuid, subject, namespace_name, lane_name, tags, actor, detail
        in
            execute flowfabric._events_query(
                greatest(read_events.after, known.oldest - 1), look_end, amount, read_events.execution is not null)
            using read_events.namespace, read_events.tag_key, read_events.tag_value, read_events.lane,
                  read_events.kinds, read_events.partitions, read_events.execution, read_events.flow, read_events.by,
                  read_events.acts, read_events.leases
        loop
            last_id := id;
            found_count := found_count + 1;
            return next;
        end loop;
    end if;
    -- Checked after the query: a partition may have been dropped while the query waited to open it.
    perform flowfabric._check_cursor(read_events.after);
    id := case
        when read_events.after is null then known.id
        when amount = 0 or read_events.after >= log_end then read_events.after
        when found_count = amount then last_id
        else greatest(last_id, read_events.after, least(look_end, known.id)) end;
    more := case when found_count = amount then id < log_end else greatest(id, look_end) < log_end end;
    truncated := exists (
        select from flowfabric.executions e
        where e.partition = any (read_events.partitions::smallint[]) and e.id = read_events.execution
          and e.created_at <= known.trimmed_until);
    at := null; kind := null; partition := null; execution_uuid := null; flow_uuid := null; subject := null;
    namespace_name := null; lane_name := null; tags := null; actor := null; detail := null;
    return next;
end $$;

-- Build the query that scans the log. The bounds are literals in it, so that the planner opens only the partitions
-- between them.
--
--   returns  the query, with the parts of the filter as $1 to $11
create or replace function flowfabric._events_query(after bigint, last_id bigint, take int, of_one boolean)
returns text
language sql immutable as $$
    select format(
        'select e.id, e.at, e.kind, e.partition::int, e.execution, e.flow, e.subject, n.namespace, n.lane, e.tags::text,
                e.by, flowfabric._event_detail(e)::text
         from flowfabric.events e left join flowfabric.routes r on r.id = e.route
         cross join lateral (select
             coalesce(r.namespace, case when e.execution is null then e.detail ->> ''namespace'' end) as namespace,
             coalesce(r.lane, case when e.kind like ''lane\_%%'' then e.subject end) as lane) n
         where e.id > %s and e.id <= %s %s
           and ($1 is null or n.namespace = $1)
           and ($2 is null or e.tags ->> $2 = $3)
           and ($4 is null or n.lane = $4)
           and ($5 is null or e.kind = any ($5))
           and ($6 is null or e.partition = any ($6))
           and ($8 is null or e.flow = $8)
           and ($9 is null or e.by = $9)
           and (not $10 or e.by is not null)
           and (not $11 or flowfabric._is_about_lease(e.kind, e.by, e.detail))
         order by e.id limit %s',
        _events_query.after, _events_query.last_id,
        case when _events_query.of_one then 'and e.execution = $7' else 'and ($7 is null or e.execution = $7)' end,
        _events_query.take)
$$;

-- What an event says, with what is stored in columns of their own.
--
--   returns  the detail, or null if there is none
create or replace function flowfabric._event_detail(event flowfabric.events)
returns jsonb
language sql stable as $$
    select case when e.epoch is null then e.detail else
        jsonb_strip_nulls(jsonb_build_object(
            'epoch', e.epoch, 'attempt', e.attempt, 'attempt_type', e.attempt_type, 'resumed', e.resumed,
            'lease_id', e.lease_id, 'worker', e.worker, 'instance', e.instance,
            'outcome', case when e.kind = 'execution_completed' then 'success'
                            when e.kind like 'execution\_%' then split_part(e.kind, '_', 2) end))
        || coalesce(e.detail, '{}') end
    from (select (_event_detail.event).*) e
$$;

-- Whether an event shows a lease, or how a lease ended. The end of an execution that was leased names the lease, unless
-- the holder itself completed it; only an operator's completion has a `by`.
create or replace function flowfabric._is_about_lease(kind text, by text, detail jsonb)
returns boolean
language sql immutable as $$
    select _is_about_lease.kind in ('lease_acquired', 'lease_renewed', 'lease_expired', 'lease_revoked',
                                    'attempt_failed', 'execution_delayed', 'execution_suspended')
        or _is_about_lease.kind = 'execution_completed' and _is_about_lease.by is null
        or _is_about_lease.kind in ('execution_completed', 'execution_failed', 'execution_cancelled',
                                    'execution_expired', 'execution_skipped')
           and _is_about_lease.detail ? 'lease_id'
$$;

-- Store the position of a named consumer, so that it survives a restart of the consumer. It never moves back.
--
--   refuses  invalid_name, invalid_cursor
--   returns  'acknowledged', or 'noop' if the position was not ahead of the stored one
create or replace function flowfabric.acknowledge(consumer text, event_id bigint)
returns text
language plpgsql as $$
begin
    perform flowfabric._raise(flowfabric._length_fault(
        'invalid_name', 'consumer name', acknowledge.consumer, 1, 256, required => true));
    if acknowledge.event_id > (select h.id from flowfabric.horizon h) then
        perform flowfabric._refuse(
            'invalid_cursor', 'the cursor is after the last readable event; use the cursor of an event that was read',
            '{"cause": "ahead"}');
    end if;
    insert into flowfabric.consumers as c (name, event_id, acknowledged_at)
    values (acknowledge.consumer, acknowledge.event_id, flowfabric.clock())
    on conflict (name) do update set event_id = excluded.event_id, acknowledged_at = excluded.acknowledged_at
    where c.event_id < excluded.event_id;
    return case when found then 'acknowledged' else 'noop' end;
end $$;

-- The stored position of a named consumer.
--
--   returns  the id of the last event it acknowledged, or null if it never did
create or replace function flowfabric.get_acknowledged(consumer text)
returns bigint
language sql stable as $$
    select c.event_id from flowfabric.consumers c where c.name = get_acknowledged.consumer
$$;
