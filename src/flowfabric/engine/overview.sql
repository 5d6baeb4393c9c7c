-- Overview: one frame of what waits, runs and is stuck, at a cost that does not grow with the backlog.

-- The lanes to show: those with work first, then by name. It looks at the first 1 000 there are.
--
--   returns  the lanes
create or replace function flowfabric._busy_lanes(take int)
returns setof flowfabric.lanes
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    with running as (
        -- In one pass: active tickets are few, and no index finds them by lane.
        select array_agg(distinct x.lane) as lanes from (
            select t.lane from flowfabric.tickets t where t.phase = 'active' limit 10001) x
    )
    select (l).* from (select l from flowfabric.lanes l order by l.name limit 1000) x
    -- Not `exists`, which may read all there is into a hash table.
    order by not coalesce((l).name = any ((select r.lanes from running r)::text[]), false)
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'eligible_now' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'granted' limit 1) is null
         and (select t.lane from flowfabric.tickets t
              where t.lane = (l).name and t.phase = 'runnable' and t.eligibility = 'blocked_by_dependencies' limit 1) is null
         and (select t.lane from flowfabric.tickets t where t.lane = (l).name and t.phase = 'suspended' limit 1) is null,
        (l).name
    limit _busy_lanes.take
$$;

-- The routes of a lane that have ready work, by priority, each with its oldest: one look per priority and route.
--
--   returns  a row per priority and route, at most so many
create or replace function flowfabric._ready_routes(lane text, most int)
returns table (priority smallint, route int, oldest_at timestamptz)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- Whether somebody works in a lane without having registered: he holds a lease there. Looks at the first 10 001 that run.
--
--   returns  true or false
create or replace function flowfabric._is_served_unseen(lane text, now timestamptz)
returns boolean
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select exists (
        select from (select t.lane, t.instance, t.expires_at from flowfabric.tickets t where t.phase = 'active' limit 10001) x
        where x.lane = _is_served_unseen.lane and x.expires_at > _is_served_unseen.now
          and not exists (select from flowfabric.workers w where w.instance = x.instance))
$$;

-- Whether ready work of a route will be taken, and if not, why.
--
--   returns  'eligible_now', 'no_worker', or what the route is blocked by
create or replace function flowfabric._prospect(route flowfabric.routes, is_served boolean, now timestamptz)
returns text
language sql stable as $$
    select case when a.admission <> 'eligible_now' or _prospect.is_served or flowfabric._is_covered(_prospect.route, _prospect.now)
        then a.admission else 'no_worker' end
    from flowfabric._admission((_prospect.route).id, _prospect.now) a (admission)
$$;

-- Work of a lane that is ready and that nobody will take as things are, by what stands in its way. It looks at the first
-- 200 combinations of priority and route.
--
--   returns  a row per reason and set of needs: an amount counted up to 1 001, since when, why, and what to do
create or replace function flowfabric._stuck_routes(lane text, now timestamptz)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    is_served boolean := flowfabric._is_served_unseen(_stuck_routes.lane, _stuck_routes.now);
begin
    return query
    with judged as materialized (
        select r, flowfabric._prospect(r, is_served, _stuck_routes.now) as prospect, h.priorities, h.oldest_at
        from (select h.route, array_agg(h.priority) as priorities, min(h.oldest_at) as oldest_at
              from flowfabric._ready_routes(_stuck_routes.lane, 200) h group by h.route) h
        cross join lateral (select r from flowfabric.routes r where r.id = h.route) x
    )
    select g.prospect, nullif(array_to_string((g.first_one).needs, ', '), ''), g.amount, g.oldest_at, (w.words ->> 'releases_at')::timestamptz,
           w.words ->> 'sentence', flowfabric._stuck_remedy(g.prospect, _stuck_routes.lane, array_to_string((g.first_one).needs, ','))
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
        group by j.prospect, (r).needs, case j.prospect when 'blocked_by_budget' then (r).budgets when 'blocked_by_quota' then (r).quotas end) g
    cross join lateral flowfabric._stuck_words(g.prospect, g.first_one, _stuck_routes.now) w (words);
end $$;

-- Why nobody takes work of a route, in words, and when that is over by itself.
--
--   returns  {sentence, releases_at?}
create or replace function flowfabric._stuck_words(prospect text, route flowfabric.routes, now timestamptz)
returns jsonb
language plpgsql stable as $$
begin
    if prospect in ('blocked_by_budget', 'blocked_by_quota') then
        return flowfabric._explain_limited(route, prospect = 'blocked_by_budget', _stuck_words.now, _stuck_words.now);
    end if;
    return jsonb_build_object('sentence', flowfabric._stuck_why(prospect, route, _stuck_words.now));
end $$;

-- Why nobody takes work of a route, in words.
--
--   returns  the sentence
create or replace function flowfabric._stuck_why(prospect text, route flowfabric.routes, now timestamptz)
returns text
language sql stable as $$
    select case prospect
        when 'blocked_by_lane_state' then (
            select format('lane %s is paused since %s by %s%s', l.name, flowfabric._moment(l.since), coalesce(l.by, 'an unnamed operator'), ': ' || l.why)
            from flowfabric.lanes l where l.name = (route).lane)
        when 'blocked_by_route' then flowfabric._explain_uncovered(route, _stuck_why.now)
        when 'no_worker' then format('no live worker serves lane %s', (route).lane) || case when exists (
            select from flowfabric.workers w where w.expires_at > _stuck_why.now and (route).lane = any (w.lanes))
            then format(' for namespace %s', (route).namespace) else '' end
        else format('work of lane %s in namespace %s is %s', (route).lane, (route).namespace, replace(prospect, '_', ' ')) end
$$;

-- A word as a shell takes it.
--
--   returns  the word, in quotes where it needs them
create or replace function flowfabric._shell_word(word text)
returns text
language sql immutable as $$
    select case when _shell_word.word ~ '^[A-Za-z0-9_./:@%+,-]+$' then _shell_word.word
                else '''' || replace(_shell_word.word, '''', '''\''''') || '''' end
$$;

-- What to do about work that is stuck, with the command to type.
--
--   returns  the sentence
create or replace function flowfabric._stuck_remedy(reason text, lane text, subject text default null)
returns text
language sql immutable as $$
    select format(case reason
        when 'blocked_by_lane_state' then 'when its cause is gone: ff lanes resume %1$s'
        when 'blocked_by_route' then 'start a worker that can: ff worker FILE.py:app %3$slanes %1$s %3$scapabilities %2$s'
        when 'no_worker' then 'start a worker: ff worker FILE.py:app %3$slanes %1$s'
        when 'blocked_by_operator' then 'when it has been looked at: ff executions unhold %2$s'
        when 'due' then 'the next claim or sweep takes it; if it stays: ff sweep %3$sonce'
        when 'waiting_for_retry_backoff' then 'time releases it; what went wrong: ff executions attempts %2$s'
        when 'waiting_for_delay' then 'nothing: time releases it'
        when 'waiting_for_resume_delay' then 'nothing: time releases it'
        when 'waiting_for_approval' then 'let those who were asked decide: ff waitpoints approve %2$s'
        when 'waiting_for_children' then 'its children release it: ff executions explain %2$s'
        when 'paused_by_operator' then 'when it has been looked at: ff executions resume %2$s'
        when 'worker_lost' then 'a sweep takes its work back when the lease lapses; at once: ff workers mark-dead %2$s'
        when 'lease_lapsed' then 'a sweep takes its work back within seconds; if it stays: ff sweep %3$sonce'
        when 'blocked_by_budget' then 'raise the budget or reset it, or wait until it resets: ff budgets list'
        when 'waiting_for_budget' then 'raise the budget or reset it, or wait until it resets: ff budgets list'
        when 'blocked_by_quota' then 'wait for room, or raise the quota: ff quotas list'
        else 'send what it waits for: ff waitpoints show %2$s' end,
        flowfabric._shell_word(_stuck_remedy.lane), flowfabric._shell_word(_stuck_remedy.subject),
        repeat('-', 2)) -- written out, it would begin a comment for whoever reads this file line by line
$$;

-- Work of a lane that waits for its time, or whose time has come without anybody taking it; the first 1 001 in order.
--
--   returns  a row per reason, as _stuck_routes; the subject is the first of them
create or replace function flowfabric._stuck_delays(lane text, now timestamptz)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select g.reason, g.id, g.amount, case when g.reason = 'due' then g.due_at else g.created_at end,
           case when g.reason <> 'due' then g.due_at end,
           case when g.reason = 'due' then format('due since %s and not taken yet: ', flowfabric._moment(g.due_at)) else '' end
           || (flowfabric._explain_delay(g.first_one) ->> 'sentence'),
           flowfabric._stuck_remedy(g.reason, _stuck_delays.lane, g.id)
    from (
        select x.reason, (array_agg(flowfabric._id((t).partition, (t).id) order by (t).due_at))[1] as id, count(*) as amount, min((t).created_at) as created_at, min((t).due_at) as due_at,
               (array_agg(t order by (t).due_at))[1] as first_one
        from (select t, case when t.due_at <= _stuck_delays.now then 'due' else t.reason::text end as reason
              from flowfabric.tickets t
              where t.lane = _stuck_delays.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
              order by t.due_at limit 1001) x
        group by x.reason) g
$$;

-- Work of a lane that operators hold back.
--
--   returns  a row if there is any, as _stuck_routes; the subject is the one held longest
create or replace function flowfabric._stuck_holds(lane text)
returns table (reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select 'blocked_by_operator', (array_agg(x.id order by x.since))[1], count(*), min(x.since), null::timestamptz,
           format('held by %s since %s%s', (array_agg(x.hold ->> 'by' order by x.since))[1], flowfabric._moment(min(x.since)),
                  ': ' || (array_agg(x.hold ->> 'why' order by x.since))[1]),
           flowfabric._stuck_remedy('blocked_by_operator', _stuck_holds.lane, (array_agg(x.id order by x.since))[1])
    from (select t.hold, (t.hold ->> 'since')::timestamptz as since, flowfabric._id(t.partition, t.id) as id
          from flowfabric.tickets t
          where t.lane = _stuck_holds.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator' limit 1001) x
    having count(*) > 0
$$;

-- What waits for something from outside, the longest first; the first 1 001 of all lanes.
--
--   returns  a row per lane and reason, as _stuck_routes; the subject is the one that waits longest
create or replace function flowfabric._stuck_waits()
returns table (lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select (g.first_one).lane, (g.first_one).reason::text, flowfabric._id((g.first_one).partition, (g.first_one).id), g.amount, g.since,
           g.timeout_at, flowfabric._explain_suspended(g.first_one) ->> 'sentence',
           flowfabric._stuck_remedy((g.first_one).reason::text, (g.first_one).lane,
                                    flowfabric._id((g.first_one).partition, (g.first_one).id))
    from (
        select (array_agg(t order by x.suspended_at))[1] as first_one, count(*) as amount, min(x.suspended_at) as since,
               min(x.timeout_at) as timeout_at
        from (select s.partition, s.execution, s.suspended_at, s.timeout_at from flowfabric.suspensions s
              where s.ended_at is null and s.within is null order by s.suspended_at, s.partition, s.execution limit 1001) x
        cross join lateral (
            select t from flowfabric.tickets t where t.partition = x.partition and t.id = x.execution and t.phase = 'suspended' limit 1) y
        group by (t).lane, (t).reason) g
$$;

-- Work whose worker is lost: it beats no more, its lock is gone, or its lease has lapsed. Among the first 10 001 that run.
--
--   returns  a row per instance, as _stuck_routes; the subject is the instance
create or replace function flowfabric._stuck_leases(now timestamptz)
returns table (lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select g.lane, v.reason, g.instance, case when v.reason = 'worker_lost' then g.amount else g.lapsed end,
           coalesce(w.beat_at, g.expires_at), g.expires_at,
           case when v.reason = 'worker_lost'
               then format('worker %s (instance %s) was last heard of at %s and holds %s', g.worker, g.instance, flowfabric._moment(w.beat_at),
                           case when g.amount = 1 then 'a lease' else g.amount || ' leases' end)
               else format('worker %s (instance %s) has not renewed', g.worker, g.instance) end
           || format(case when g.expires_at > _stuck_leases.now then '; the first lapses at %s' else '; the first lapsed at %s' end,
                     flowfabric._moment(g.expires_at)),
           flowfabric._stuck_remedy(v.reason, g.lane, g.instance)
    from (
        select x.instance, min(x.worker) as worker, min(x.lane) as lane, count(*) as amount,
               count(*) filter (where x.expires_at <= _stuck_leases.now) as lapsed, min(x.expires_at) as expires_at
        from (select t.instance, t.worker, t.lane, t.expires_at from flowfabric.tickets t where t.phase = 'active' limit 10001) x
        group by x.instance) g
    left join flowfabric.workers w on w.instance = g.instance
    cross join lateral (select case when flowfabric._is_lost(w, _stuck_leases.now) then 'worker_lost' when g.lapsed > 0 then 'lease_lapsed' end) v (reason)
    where v.reason is not null
$$;

-- Whether an instance that has registered is gone: its time is over, or a sweep has missed its lock.
--
--   returns  true or false; null for one that is not registered
create or replace function flowfabric._is_lost(worker flowfabric.workers, now timestamptz)
returns boolean
language sql immutable as $$
    select (worker).expires_at <= _is_lost.now or (worker).lock_missing_since is not null
$$;

-- All that is stuck in these lanes, and what waits or is lost in any lane.
--
--   returns  a row per reason, as _stuck_routes, the longest first; what time alone releases comes last
create or replace function flowfabric._stuck(lanes text[], now timestamptz)
returns table (lane text, reason text, subject text, amount bigint, since timestamptz, releases_at timestamptz, why text, remedy text)
language sql stable as $$
    select * from (
        select l.name, s.* from unnest(_stuck.lanes) l (name) cross join lateral flowfabric._stuck_routes(l.name, _stuck.now) s
        union all
        select l.name, s.* from unnest(_stuck.lanes) l (name) cross join lateral flowfabric._stuck_holds(l.name) s
        union all
        select l.name, s.* from unnest(_stuck.lanes) l (name) cross join lateral flowfabric._stuck_delays(l.name, _stuck.now) s
        union all
        select s.* from flowfabric._stuck_waits() s
        union all
        select s.* from flowfabric._stuck_leases(_stuck.now) s) x (lane, reason, subject, amount, since, releases_at, why, remedy)
    order by x.reason in ('waiting_for_delay', 'waiting_for_resume_delay', 'waiting_for_retry_backoff'), x.since, x.lane, x.reason
    limit 100
$$;

-- How fast things happen: what the last 5 000 lines of the log have of the last ten seconds.
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
    -- The bounds stand in the text as numbers, so that only the ranges between them are opened.
    execute format(
        'select min(e.at) as oldest_at,
                count(*) filter (where e.at > $1 and e.kind = ''execution_submitted'') as submitted,
                count(*) filter (where e.at > $1 and e.kind = ''lease_acquired'') as claimed,
                count(*) filter (where e.at > $1 and e.kind = ''execution_completed'') as completed,
                count(*) filter (where e.at > $1 and e.kind in (''execution_failed'', ''execution_expired'')) as failed,
                count(*) filter (where e.at > $1 and e.kind = ''attempt_failed'') as attempts_failed
         from flowfabric.events e where e.id > %s and e.id <= %s', last_id - look, last_id) into seen using window_start;
    -- A busy log holds less than the whole span in that many lines.
    span := case when last_id <= look or seen.oldest_at is null then 10
                 else greatest(0.001, least(10, extract(epoch from _rates.now - seen.oldest_at))) end;
    return jsonb_build_object(
        'span_s', round(span, 3), 'submitted', round(seen.submitted / span, 1), 'claimed', round(seen.claimed / span, 1),
        'completed', round(seen.completed / span, 1), 'failed', round(seen.failed / span, 1),
        'attempts_failed', round(seen.attempts_failed / span, 1));
end $$;

-- Since when the oldest of each kind is what it is: what runs (among the first 10 001), what waits for something from
-- outside; and when the next is due.
--
--   returns  {running_since, suspended_since, next_due_at}
create or replace function flowfabric._ages(lanes text[], now timestamptz)
returns jsonb
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select jsonb_build_object(
        'running_since', (select min(x.attempt_started_at) from (
            select t.attempt_started_at from flowfabric.tickets t where t.phase = 'active' limit 10001) x),
        'suspended_since', (select s.suspended_at from flowfabric.suspensions s where s.ended_at is null and s.within is null
                            order by s.suspended_at, s.partition, s.execution limit 1),
        'next_due_at', (select min(d.due_at) from unnest(_ages.lanes) l (name) cross join lateral (
            select t.due_at from flowfabric.tickets t
            where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time' and t.due_at > _ages.now
            order by t.due_at limit 1) d))
$$;

-- The instances that are registered, the lost ones first, each with how much it runs (counted up to 1 001).
--
--   returns  a list of them
create or replace function flowfabric._crew(take int, now timestamptz)
returns jsonb
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'instance', (w).instance, 'worker', (w).worker, 'namespace', (w).namespace, 'lanes', (w).lanes, 'capabilities', (w).capabilities,
        'beat_at', (w).beat_at, 'is_lost', flowfabric._is_lost(w, _crew.now), 'running_count', (
            select count(*) from (
                select from flowfabric.tickets t where t.phase = 'active' and t.instance = (w).instance limit 1001) y))
        order by not flowfabric._is_lost(w, _crew.now), (w).instance), '[]')
    from (select w from flowfabric.workers w order by not flowfabric._is_lost(w, _crew.now), w.instance limit _crew.take) x
$$;

-- One frame of what waits, runs and is stuck, for a screen that asks again every second.
--
--   returns  {at, lanes, lane_count, workers, worker_count, rates, ages, stuck}; at most so many lanes and workers
create or replace function flowfabric.overview(take int default 20)
returns text
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    most int := least(greatest(overview.take, 1), 100);
    names text[];
    shown jsonb;
begin
    select array_agg(l.name), jsonb_agg(jsonb_build_object(
        'name', l.name, 'state', l.state, 'by', l.by, 'why', l.why, 'since', l.since, 'waiting_count', d.waiting, 'active_count', d.active,
        'delayed_count', d.delayed, 'suspended_count', d.suspended, 'held_count', d.held, 'oldest_at', flowfabric._oldest_waiting(l.name, now)))
    into names, shown
    from flowfabric._busy_lanes(most) l
    cross join lateral (
        select sum(x.amount) filter (where x.what = 'waiting') as waiting, sum(x.amount) filter (where x.what = 'active') as active,
               sum(x.amount) filter (where x.what = 'delayed') as delayed, sum(x.amount) filter (where x.what = 'suspended') as suspended,
               sum(x.amount) filter (where x.what = 'held') as held
        from flowfabric._lane_depth(l.name, now) x) d;
    return jsonb_build_object(
        'at', now, 'lanes', coalesce(shown, '[]'), 'lane_count', (select count(*) from flowfabric.lanes),
        'workers', flowfabric._crew(most, now), 'worker_count', (select count(*) from flowfabric.workers),
        'rates', flowfabric._rates(now), 'ages', flowfabric._ages(names, now),
        'stuck', (select coalesce(jsonb_agg(s), '[]') from flowfabric._stuck(names, now) s));
end $$;
