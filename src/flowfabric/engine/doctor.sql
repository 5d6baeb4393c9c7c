-- Doctor: the facts about the work in a database that `ff doctor` judges. Nothing is changed.

-- The oldest row that each sweep should have handled by now. Sweeps do not record their runs, so overdue rows are the
-- only sign that a sweep does not run.
--
--   returns  a row per sweep with overdue rows: the due time of the oldest, and the delay that is still normal
create or replace function flowfabric._overdue(now timestamptz)
returns table (sweep text, oldest_at timestamptz, allowed interval)
language sql stable as $$
    select x.* from (
        select 'promote_due', min(d.due_at), interval '1 min' from flowfabric.lanes l cross join lateral (
            select t.due_at from flowfabric.tickets t
            where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
            order by t.due_at limit 1) d
        union all
        select 'expire_leases', min(a.expires_at), interval '1 min' from (
            select t.expires_at from flowfabric.tickets t where t.phase = 'active' limit 10001) a
        union all
        select 'time_out_attempts', min(a.attempt_deadline), interval '1 min' from (
            select t.attempt_deadline from flowfabric.tickets t where t.phase = 'active' limit 10001) a
        union all
        select 'expire_grants', min(g.expires_at), interval '1 min' from flowfabric.lanes l cross join lateral (
            select t.expires_at from flowfabric.tickets t
            where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'granted' limit 1001) g
        union all
        select 'expire_executions', (select t.deadline_at from flowfabric.tickets t where t.deadline_at is not null
                                     order by t.deadline_at limit 1), interval '1 min'
        union all
        select 'time_out_waits', (select w.timeout_at from flowfabric.waits w where w.timeout_at is not null
                                  order by w.timeout_at limit 1), interval '1 min'
        union all
        select 'trim_frames', (select s.trim_at from flowfabric.streams s where s.trim_at > '-infinity'
                               order by s.trim_at limit 1), interval '5 min'
        union all
        select 'close_waitpoints', (select w.expires_at from flowfabric.waitpoints w where w.expires_at is not null
                                    order by w.expires_at limit 1), interval '1 min'
        union all
        select 'deliver_child_ends', (select c.at from flowfabric.child_ends c where c.parent is not null
                                      order by c.at, c.execution limit 1),
               interval '1 min'
        union all
        select 'fire_schedules', (select s.due_at from flowfabric.schedules s where s.due_at is not null
                                  order by s.due_at, s.namespace, s.name limit 1), interval '1 min'
        union all
        select 'reset_budgets', (select b.next_reset_at from flowfabric.budgets b where b.next_reset_at is not null
                                 order by b.next_reset_at limit 1), interval '3 min'
        union all
        select 'expire_reservations', (select r.expires_at from flowfabric.reservations r where r.ended_at is null
                                       order by r.expires_at limit 1), interval '3 min'
        union all
        select 'expire_workers', min(w.expires_at), interval '3 min' from flowfabric.workers w
        union all
        -- While it runs, it may be late: _removing_since.
        select 'remove_ended', (select r.remove_at from flowfabric.removals r where r.remove_at is not null
                                  and flowfabric._removing_since(_overdue.now) is null
                                order by r.remove_at limit 1), interval '1 hour') x (sweep, oldest_at, allowed)
    where x.oldest_at <= _overdue.now
    order by x.oldest_at
$$;

-- Since when the sweep remove_ended has been running without reaching the end.
--
--   returns  null if no process runs it at the moment
create or replace function flowfabric._removing_since(now timestamptz)
returns timestamptz
language sql stable as $$
    select t.since from flowfabric.turns t where t.sweep = 'remove_ended' and t.ends_at > _removing_since.now
$$;

-- Find the running executions whose streams keep much: of the first 10,001, the 20 with the most frames. The bytes are
-- estimated from the last 100 frames of each attempt. A stream may keep a quarter more than its retention says, because
-- it is trimmed late.
--
--   returns  a row per execution that keeps at least `least_bytes`
create or replace function flowfabric._large_streams(least_bytes bigint)
returns table (execution_id text, lane text, attempts int, frames bigint, bytes bigint)
language sql stable as $$
    with running as materialized (
        select t.* from (select t.partition, t.id, t.lane, t.ties from flowfabric.tickets t
                         where t.phase = 'active' limit 10001) t
        where t.ties
    ), counted as materialized (
        select r.partition, r.id, r.lane, s.attempts, s.frames
        from running r
        cross join lateral (
            select count(*)::int as attempts, sum(least(s.frame_count, s.max_frames * 5 / 4))::bigint as frames
            from flowfabric.streams s where s.partition = r.partition and s.execution = r.id offset 0) s
        where s.frames >= _large_streams.least_bytes / 65536
        order by s.frames desc limit 20
    )
    select c.id::text, c.lane, c.attempts, c.frames, b.bytes
    from counted c
    cross join lateral (
        select sum(least(s.frame_count, s.max_frames * 5 / 4) * f.mean)::bigint as bytes
        from flowfabric.streams s
        cross join lateral (
            select coalesce(avg(octet_length(f.payload)), 0) as mean from (
                select f.payload from flowfabric.frames f
                where f.partition = s.partition and f.execution = s.execution and f.attempt = s.attempt
                order by f.ms desc, f.seq desc limit 100) f) f
        where s.partition = c.partition and s.execution = c.id) b
    where b.bytes >= _large_streams.least_bytes
    order by b.bytes desc
$$;

-- Collect the engine's facts for the doctor: its clock, the signing key, the log, overdue sweeps, stuck executions in
-- the first 100 lanes, the 100 named log consumers that are furthest behind, and how much the streams keep.
--
--   returns  {at, pid, clock_offset_s, has_key, log_room, unread_count, overdue, removing_since, stuck, consumers,
--            frames_bytes, database_bytes, large_streams}
create or replace function flowfabric.diagnose(large_stream_bytes bigint default 104857600)
returns text
language plpgsql stable set enable_bitmapscan = off as $$
declare
    now timestamptz := flowfabric.clock();
    names text[] := array(select l.name from flowfabric._busy_lanes(100) l);
    size constant bigint := 1000000;
    last_id bigint;
    horizon_id bigint;
    has_key boolean;
begin
    select s.last_value into last_id from flowfabric.event_ids s;
    select h.id into horizon_id from flowfabric.horizon h;
    -- Few roles may read the keys; for the others this stays null.
    if has_table_privilege('flowfabric.keys', 'select') then
        has_key := exists (select from flowfabric.keys k where k.expires_at is null);
    end if;
    return jsonb_build_object(
        'at', now, 'pid', pg_backend_pid(), 'clock_offset_s', extract(epoch from now - clock_timestamp()),
        'has_key', has_key, 'unread_count', greatest(last_id - horizon_id, 0),
        'log_room', (select greatest(count(*) * size - last_id % size, 0)
                     from generate_series(last_id / size, last_id / size + 16) r
                     where to_regclass(format('flowfabric.events_%s', r)) is not null),
        'overdue', (select coalesce(jsonb_agg(jsonb_build_object(
                               'sweep', o.sweep, 'since', o.oldest_at, 'late_s', extract(epoch from now - o.oldest_at),
                               'allowed_s', extract(epoch from o.allowed)) order by o.oldest_at), '[]')
                    from flowfabric._overdue(now) o),
        'removing_since', flowfabric._removing_since(now),
        'stuck', (select coalesce(jsonb_agg(s), '[]') from (
                      select l.name as lane, s.* from unnest(names) l (name)
                      cross join lateral (
                          select s.* from flowfabric._stuck_routes(l.name, now) s
                          union all
                          select s.* from flowfabric._stuck_tasks(l.name, now) s
                          union all
                          select s.* from flowfabric._stuck_holds(l.name) s where s.reason = 'code_changed') s
                      order by s.since limit 100) s),
        'consumers', (select coalesce(jsonb_agg(jsonb_build_object(
                          'name', c.name, 'behind_count', greatest(last_id - c.event_id, 0),
                          'acknowledged_at', c.acknowledged_at, 'is_cut_off', c.event_id < h.oldest - 1)
                          order by c.event_id), '[]')
                      from (select c.* from flowfabric.consumers c order by c.event_id limit 100) c
                      cross join flowfabric.horizon h),
        'frames_bytes', pg_total_relation_size('flowfabric.frames'),
        'database_bytes', pg_database_size(current_database()),
        'large_streams', (select coalesce(jsonb_agg(to_jsonb(l) order by l.bytes desc), '[]')
                          from flowfabric._large_streams(diagnose.large_stream_bytes) l));
end $$;
