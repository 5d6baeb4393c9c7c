-- Overview: one snapshot of waiting, running and stuck executions, at a cost that does not grow with the backlog.

-- The lanes to show: lanes with work first, then by name. Reads the first 1,000 lanes.
create or replace function flowfabric._busy_lanes(take int)
returns setof flowfabric.lanes
language sql stable as $$
    with running as (
        -- One scan: active tickets are few, and no index finds them by lane.
        select array_agg(distinct x.lane) as lanes from (
            select t.lane from flowfabric.tickets t where t.phase = 'active' limit 10001) x
    )
    select (l).* from (select l from flowfabric.lanes l order by l.name limit 1000) x
    -- Not `exists`, which Postgres may turn into a hash of all tickets.
    order by not coalesce((l).name = any ((select r.lanes from running r)::text[]), false)
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'eligible_now' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
              limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator'
              limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'granted' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'blocked_by_dependencies'
              limit 1) is null
         and (select t.lane from flowfabric.tickets t where t.lane = (l).name and t.phase = 'suspended'
              limit 1) is null,
        (l).name
    limit _busy_lanes.take
$$;

-- The routes of a lane that have ready tickets, by priority, each with its oldest ticket: a loose index scan over
-- distinct (priority, route) pairs.
--
--   returns  a row per priority and route, at most `most`
create or replace function flowfabric._ready_routes(lane text, most int)
returns table (priority smallint, route int, oldest_at timestamptz)
language sql stable as $$
    with recursive heads as (
        (select t.priority, t.route, t.created_at from flowfabric.tickets t
         where t.lane = _ready_routes.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
         order by t.priority desc, t.route, t.created_at limit 1)
        union all
        select n.* from heads h cross join lateral (
            (select t.priority, t.route, t.created_at from flowfabric.tickets t
             where t.lane = _ready_routes.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
               and t.priority = h.priority and t.route > h.route
             order by t.route, t.created_at limit 1)
            union all
            (select t.priority, t.route, t.created_at from flowfabric.tickets t
             where t.lane = _ready_routes.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
               and t.priority < h.priority
             order by t.priority desc, t.route, t.created_at limit 1)
            limit 1) n
    )
    select h.priority, h.route, h.created_at from heads h limit _ready_routes.most
$$;

-- Ready executions of a lane that no worker can claim now, grouped by the reason: `no_worker`, `no_version`, or the
-- state that blocks their route. Reads the first 200 (priority, route) pairs.
--
--   returns  a row per reason and set of needs: the reason code, the needs or the missing version as subject, an amount
--            counted up to 1,001, since when, when it resolves automatically, and why
create or replace function flowfabric._stuck_routes(lane text, now timestamptz)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language plpgsql stable as $$
declare
    -- By an unregistered worker, which has a lease there. Reads the first 10,001 active tickets.
    is_served boolean := exists (
        select from (select t.lane, t.instance, t.expires_at from flowfabric.tickets t where t.phase = 'active'
                     limit 10001) x
        where x.lane = _stuck_routes.lane and x.expires_at > _stuck_routes.now
          and not exists (select from flowfabric.workers w where w.instance = x.instance));
begin
    return query
    with judged as materialized (
        select r, h.priorities, h.oldest_at,
               case when a.admission = 'blocked_by_route'
                         and flowfabric._missing_version(r, _stuck_routes.now) is not null then 'no_version'
                    when a.admission <> 'eligible_now' or is_served or flowfabric._is_covered(r, _stuck_routes.now)
                    then a.admission else 'no_worker' end as prospect
        from (select h.route, array_agg(h.priority) as priorities, min(h.oldest_at) as oldest_at
              from flowfabric._ready_routes(_stuck_routes.lane, 200) h group by h.route) h
        cross join lateral (select r from flowfabric.routes r where r.id = h.route) x
        cross join lateral flowfabric._admission(h.route, _stuck_routes.now) a (admission)
    )
    select g.prospect, case g.prospect
               when 'no_version' then flowfabric._version_word((g.first_one).task, (g.first_one).version)
               else nullif(array_to_string((g.first_one).needs, ', '), '') end, g.amount, g.oldest_at,
           (w.words ->> 'releases_at')::timestamptz, w.words ->> 'sentence'
    from (
        select j.prospect, (array_agg(r order by j.oldest_at))[1] as first_one, min(j.oldest_at) as oldest_at,
               least(sum(c.amount), 1001)::bigint as amount
        from judged j cross join lateral (
            select sum((select count(*) from (
                select from flowfabric.tickets t
                where t.lane = _stuck_routes.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                  and t.priority = p and t.route = (r).id limit 1001) x)) as amount
            from unnest(j.priorities) p) c
        where j.prospect <> 'eligible_now'
        group by j.prospect, (r).needs, case j.prospect
            when 'blocked_by_budget' then (r).budgets when 'blocked_by_quota' then (r).quotas end) g
    cross join lateral flowfabric._stuck_words(g.prospect, g.first_one, _stuck_routes.now) w (words);
end $$;

-- Why no worker claims executions of a route, as a sentence, and when that resolves automatically.
--
--   returns  {sentence, releases_at?}
create or replace function flowfabric._stuck_words(prospect text, route flowfabric.routes, now timestamptz)
returns jsonb
language plpgsql stable as $$
begin
    if _stuck_words.prospect in ('blocked_by_budget', 'blocked_by_quota') then
        return flowfabric._explain_limited(_stuck_words.route, _stuck_words.prospect = 'blocked_by_budget',
                                           _stuck_words.now, _stuck_words.now);
    end if;
    return jsonb_build_object('sentence', case _stuck_words.prospect
        when 'blocked_by_lane_state' then (
            select flowfabric._paused_words(l) from flowfabric.lanes l where l.name = route.lane)
        when 'blocked_by_route' then flowfabric._explain_uncovered(_stuck_words.route, _stuck_words.now)
        when 'no_version' then flowfabric._missing_version(_stuck_words.route, _stuck_words.now)
        when 'no_worker' then format('no live worker serves lane %s', route.lane) || case when exists (
                select from flowfabric.workers w
                where w.expires_at > _stuck_words.now and route.lane = any (w.lanes))
            then format(' for namespace %s', route.namespace) else '' end
        else format('executions of lane %s in namespace %s are %s', route.lane, route.namespace,
                    replace(_stuck_words.prospect, '_', ' ')) end);
end $$;

-- Executions of a lane that workers serve, whose task none of them has registered: among the oldest ready ones, 20 for
-- each (priority, route) pair, and those due within ten seconds because a worker has delayed them; 200 of each at most.
--
--   returns  a row per route and task, at most ten, as _stuck_routes; the subject is the task
create or replace function flowfabric._stuck_tasks(lane text, now timestamptz)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language plpgsql stable as $$
begin
    if not exists (select from flowfabric._live_workers(_stuck_tasks.lane, null, _stuck_tasks.now) w
                   where w.tasks is not null) then
        return;
    end if;
    return query
    with oldest as (
        (select x.* from flowfabric._ready_routes(_stuck_tasks.lane, 50) h
         cross join lateral (
             select t.partition, t.id, t.route, t.created_at from flowfabric.tickets t
             where t.lane = _stuck_tasks.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
               and t.priority = h.priority and t.route = h.route
             order by t.created_at limit 20) x
         limit 200)
        union all
        select d.partition, d.id, d.route, d.created_at
        from (select t.* from flowfabric.tickets t
              where t.lane = _stuck_tasks.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
                and t.due_at <= _stuck_tasks.now + interval '10 s'
              order by t.due_at limit 200) d
        where d.reason = 'waiting_for_delay' and d.attempt_state = 'attempt_interrupted'
    ), waiting as materialized (
        select o.route, e.task, count(*) as amount, min(o.created_at) as since
        from oldest o
        cross join lateral (
            select e.task from flowfabric.executions e where e.partition = o.partition and e.id = o.id offset 0) e
        group by o.route, e.task
    )
    select 'no_task', w.task, w.amount, w.since, null::timestamptz, m.sentence
    from waiting w
    cross join lateral (select r from flowfabric.routes r where r.id = w.route offset 0) x
    cross join lateral (
        select flowfabric._missing_task(r, w.task, _stuck_tasks.now) as sentence offset 0) m
    where m.sentence is not null
    order by w.since, w.task limit 10;
end $$;

-- Delayed executions of a lane, and due ones that no worker has claimed; the first 1,001 by due time.
--
--   returns  a row per reason, as _stuck_routes; the subject is the execution due first
create or replace function flowfabric._stuck_delays(lane text, now timestamptz)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language sql stable as $$
    select g.reason, g.id, g.amount, case when g.reason = 'due' then g.due_at else g.created_at end,
           case when g.reason <> 'due' then g.due_at end,
           case when g.reason = 'due' then format('due since %s and not claimed yet: ', flowfabric._moment(g.due_at))
                else '' end
           || (flowfabric._explain_delay(g.first_one) ->> 'sentence')
    from (
        select x.reason, (array_agg(flowfabric._id((t).partition, (t).id) order by (t).due_at))[1] as id,
               count(*) as amount, min((t).created_at) as created_at, min((t).due_at) as due_at,
               (array_agg(t order by (t).due_at))[1] as first_one
        from (select t, case when t.due_at <= _stuck_delays.now then 'due' else t.reason::text end as reason
              from flowfabric.tickets t
              where t.lane = _stuck_delays.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
              order by t.due_at limit 1001) x
        group by x.reason) g
$$;

-- Executions of a lane that are held, by operators or because their code has changed.
--
--   returns  a row for each of the two, if there are any, as _stuck_routes; the subject is the execution held longest
create or replace function flowfabric._stuck_holds(lane text)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language sql stable as $$
    select x.reason, (array_agg(x.id order by x.since))[1], count(*), min(x.since), null::timestamptz,
           flowfabric._held_words((array_agg(x.hold order by x.since))[1])
    from (select t.hold, (t.hold ->> 'since')::timestamptz as since, flowfabric._id(t.partition, t.id) as id,
                 case t.reason when 'code_changed' then 'code_changed' else 'blocked_by_operator' end as reason
          from flowfabric.tickets t
          where t.lane = _stuck_holds.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator'
          limit 1001) x
    group by x.reason
$$;

-- Suspended executions that wait for an external answer, the longest wait first; the first 1,001 of all lanes.
--
--   returns  a row per lane and reason, as _stuck_routes; the subject is the execution that waits longest
create or replace function flowfabric._stuck_waits()
returns table (
    lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language sql stable as $$
    select (g.first_one).lane, (g.first_one).reason::text, flowfabric._id((g.first_one).partition, (g.first_one).id),
           g.amount, g.since, g.timeout_at, flowfabric._explain_suspended(g.first_one) ->> 'sentence'
    from (
        select (array_agg(x.t order by (x.t).suspended_at))[1] as first_one, count(*) as amount,
               min((x.t).suspended_at) as since, min(w.timeout_at) as timeout_at
        from (select y.t from flowfabric.lanes l cross join lateral (
                  select t from flowfabric.tickets t where t.lane = l.name and t.phase = 'suspended'
                  order by t.lane, t.suspended_at, t.partition, t.id limit 1001) y
              order by (y.t).suspended_at limit 1001) x
        cross join lateral (
            select min(w.timeout_at) as timeout_at from flowfabric.waits w
            where w.partition = (x.t).partition and w.execution = (x.t).id and w.ended_at is null) w
        group by (x.t).lane, (x.t).reason) g
$$;

-- Executions whose worker is lost: no heartbeat, a missing lock, or an expired lease. Reads the first 10,001 active
-- tickets.
--
--   returns  a row per instance, as _stuck_routes; the subject is the instance
create or replace function flowfabric._stuck_leases(now timestamptz)
returns table (
    lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language sql stable as $$
    select g.lane, v.reason, g.instance, case when v.reason = 'worker_lost' then g.amount else g.expired end,
           coalesce(w.beat_at, g.expires_at), g.expires_at,
           case when v.reason = 'worker_lost'
               then format('the last heartbeat of worker %s (instance %s) was at %s; it holds %s', g.worker, g.instance,
                           flowfabric._moment(w.beat_at),
                           case when g.amount = 1 then '1 lease' else g.amount || ' leases' end)
               else format('worker %s (instance %s) has not renewed its lease', g.worker, g.instance) end
           || format(case when g.expires_at > _stuck_leases.now then '; the first expires at %s'
                          else '; the first expired at %s' end, flowfabric._moment(g.expires_at))
    from (
        select x.instance, min(x.worker) as worker, min(x.lane) as lane, count(*) as amount,
               count(*) filter (where x.expires_at <= _stuck_leases.now) as expired, min(x.expires_at) as expires_at
        from (select t.instance, t.worker, t.lane, t.expires_at from flowfabric.tickets t where t.phase = 'active'
              limit 10001) x
        group by x.instance) g
    left join flowfabric.workers w on w.instance = g.instance
    cross join lateral (
        select case when flowfabric._is_lost(w, _stuck_leases.now) then 'worker_lost'
                    when g.expired > 0 then 'lease_expired' end) v (reason)
    where v.reason is not null
$$;

-- Whether a registered instance is gone: its registration has expired, or a sweep has found its lock missing.
--
--   returns  true or false; null for an unregistered instance
create or replace function flowfabric._is_lost(worker flowfabric.workers, now timestamptz)
returns boolean
language sql immutable as $$
    select (_is_lost.worker).expires_at <= _is_lost.now or (_is_lost.worker).lock_missing_since is not null
$$;

-- All stuck executions: of these lanes, and suspended executions and lost leases of any lane.
--
--   returns  a row per reason, as _stuck_routes, the oldest first; rows that time alone resolves come last
create or replace function flowfabric._stuck(lanes text[], now timestamptz)
returns table (
    lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, sentence text)
language sql stable as $$
    select * from (
        select l.name, s.* from unnest(_stuck.lanes) l (name) cross join lateral (
            select s.* from flowfabric._stuck_routes(l.name, _stuck.now) s
            union all
            select s.* from flowfabric._stuck_tasks(l.name, _stuck.now) s
            union all
            select s.* from flowfabric._stuck_holds(l.name) s
            union all
            select s.* from flowfabric._stuck_delays(l.name, _stuck.now) s) s
        union all
        select s.* from flowfabric._stuck_waits() s
        union all
        select s.* from flowfabric._stuck_leases(_stuck.now) s
    ) x (lane, reason, subject, amount, since, releases_at, sentence)
    order by x.reason in ('waiting_for_delay', 'waiting_for_resume_delay', 'waiting_for_retry_backoff'),
             x.since, x.lane, x.reason
    limit 100
$$;

-- Events per second over the last ten seconds, counted in the last 5,000 events of the log.
--
--   returns  {span_s, submitted, claimed, completed, failed, attempts_failed}, each per second
create or replace function flowfabric._rates(now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    look constant int := 5000;
    window_start constant timestamptz := _rates.now - interval '10 s';
    last_id bigint;
    seen record;
    span numeric;
begin
    select s.last_value into last_id from flowfabric.event_ids s;
    -- The bounds are literals in the query, so that the planner opens only the partitions between them.
    execute format(
        'select min(e.at) as oldest_at,
                count(*) filter (where e.at > $1 and e.kind = ''execution_submitted'') as submitted,
                count(*) filter (where e.at > $1 and e.kind = ''lease_acquired'') as claimed,
                count(*) filter (where e.at > $1 and e.kind = ''execution_completed'') as completed,
                count(*) filter (where e.at > $1 and e.kind in (''execution_failed'', ''execution_expired'')) as failed,
                count(*) filter (where e.at > $1 and e.kind = ''attempt_failed'') as attempts_failed
         from flowfabric.events e where e.id > %s and e.id <= %s', last_id - look, last_id)
    into seen using window_start;
    -- In a busy log that many events cover less than ten seconds.
    span := case when last_id <= look or seen.oldest_at is null then 10
                 else greatest(0.001, least(10, extract(epoch from _rates.now - seen.oldest_at))) end;
    return jsonb_build_object(
        'span_s', round(span, 3), 'submitted', round(seen.submitted / span, 1),
        'claimed', round(seen.claimed / span, 1), 'completed', round(seen.completed / span, 1),
        'failed', round(seen.failed / span, 1), 'attempts_failed', round(seen.attempts_failed / span, 1));
end $$;

-- One snapshot of waiting, running and stuck executions, for a screen that refreshes every second.
--
--   returns  {at, lanes, lane_count, workers, worker_count, rates, ages, stuck}; at most `take` lanes and workers, lost
--            workers first; `running_since` is found among the first 10,001 running executions
create or replace function flowfabric.overview(take int default 20)
returns text
language plpgsql stable set enable_bitmapscan = off as $$
declare
    now timestamptz := flowfabric.clock();
    most int := least(greatest(overview.take, 1), 100);
    names text[];
    shown jsonb;
    instances jsonb;
begin
    select array_agg(l.name), jsonb_agg(jsonb_build_object(
        'name', l.name, 'state', l.state, 'by', l.by, 'reason', l.reason, 'since', l.since, 'waiting_count', d.waiting,
        'active_count', d.active, 'delayed_count', d.delayed, 'suspended_count', d.suspended, 'held_count', d.held,
        'oldest_at', flowfabric._oldest_waiting(l.name, now)))
    into names, shown
    from flowfabric._busy_lanes(most) l
    cross join lateral flowfabric._lane_depth(l.name, now) d;
    select jsonb_agg(jsonb_build_object(
        'instance', w.instance, 'worker', w.worker, 'namespace', w.namespace, 'lanes', w.lanes,
        'capabilities', w.capabilities, 'beat_at', w.beat_at, 'is_lost', w.is_lost, 'running_count', (
            select count(*) from (
                select from flowfabric.tickets t where t.phase = 'active' and t.instance = w.instance limit 1001) y))
        order by not w.is_lost, w.instance)
    into instances
    from (select w.*, flowfabric._is_lost(w, now) as is_lost from flowfabric.workers w
          order by not flowfabric._is_lost(w, now), w.instance limit most) w;
    return jsonb_build_object(
        'at', now, 'lanes', coalesce(shown, '[]'), 'lane_count', (select count(*) from flowfabric.lanes),
        'workers', coalesce(instances, '[]'), 'worker_count', (select count(*) from flowfabric.workers),
        'rates', flowfabric._rates(now), 'ages', jsonb_build_object(
            'running_since', (select min(x.attempt_started_at) from (
                select t.attempt_started_at from flowfabric.tickets t where t.phase = 'active' limit 10001) x),
            'suspended_since', (select min(s.suspended_at) from flowfabric.lanes l cross join lateral (
                select t.suspended_at from flowfabric.tickets t where t.lane = l.name and t.phase = 'suspended'
                order by t.lane, t.suspended_at limit 1) s),
            'next_due_at', (select min(d.due_at) from unnest(names) l (name) cross join lateral (
                select t.due_at from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
                  and t.due_at > now
                order by t.due_at limit 1) d)),
        'stuck', (select coalesce(jsonb_agg(s), '[]') from flowfabric._stuck(names, now) s));
end $$;
