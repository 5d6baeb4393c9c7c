-- Lanes: the queues that workers claim from. A lane can be paused, drained and resumed.

-- Create a lane if it does not exist.
--
--   moves    lane – → active, if it is new
--   emits    lane_registered, if it is new
--   returns  true if the lane is new
create or replace function flowfabric._add_lane(name text)
returns boolean
language plpgsql as $$
begin
    insert into flowfabric.lanes (name, since) values (_add_lane.name, flowfabric.clock()) on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flowfabric._append('lane_registered', _add_lane.name);
    return true;
end $$;

-- Refuse the name of a lane that does not exist.
--
--   refuses  lane_not_found
create or replace function flowfabric._refuse_missing_lane(name text)
returns void
language plpgsql as $$
begin
    perform flowfabric._refuse('lane_not_found', format(
        'lane %s does not exist; %s', flowfabric._shown(_refuse_missing_lane.name), coalesce(
            'existing lanes: ' || (
                select string_agg(n.name, ', ' order by n.name)
                       || case when (select count(*) from flowfabric.lanes) > 20 then ', …' else '' end
                from (select l.name from flowfabric.lanes l order by l.name limit 20) n),
            'there are no lanes yet: submit to it, or use configure_lane to create it')));
end $$;

-- Give a lane a new state, and write down who changed it and why.
--
--   moves    lane any → the state given
--   locks    the lane
--   emits    lane_paused, lane_drain_started, lane_resumed
--   returns  the state, or 'noop' if it is in this state already
create or replace function flowfabric._set_lane_state(name text, state flowfabric.lane_state, by text, reason text)
returns text
language plpgsql as $$
declare
    kept text := flowfabric._kept_text(_set_lane_state.reason);
begin
    perform flowfabric._check_by(_set_lane_state.by);
    perform from flowfabric.lanes l where l.name = _set_lane_state.name for update;
    if not found then
        perform flowfabric._refuse_missing_lane(_set_lane_state.name);
    end if;
    update flowfabric.lanes l
    set state = _set_lane_state.state, by = _set_lane_state.by, reason = kept, since = flowfabric.clock()
    where l.name = _set_lane_state.name and l.state <> _set_lane_state.state;
    if not found then
        return 'noop';
    end if;
    perform flowfabric._append(
        case _set_lane_state.state when 'paused' then 'lane_paused' when 'draining' then 'lane_drain_started'
                                   else 'lane_resumed' end,
        _set_lane_state.name, _set_lane_state.by, jsonb_build_object('reason', kept));
    return _set_lane_state.state;
end $$;

-- Create a lane or change its options. An option that is null keeps its value. The options of streams hold for streams
-- that begin afterwards, of executions whose policy says nothing about them; a stream_retention_ms of 0 removes it.
--
--   moves    lane – → active, if it is new
--   emits    lane_registered, if it is new
--   refuses  invalid_lane
--   returns  'registered', 'changed', or 'noop' if nothing changed
create or replace function flowfabric.configure_lane(
    name text, keep_renewals boolean default null, stream_retention_maxlen bigint default null,
    stream_retention_ms bigint default null)
returns text
language plpgsql as $$
declare
    is_new boolean;
begin
    perform flowfabric._raise(coalesce(
        flowfabric._label_fault('invalid_lane', 'lane name', configure_lane.name),
        case when configure_lane.stream_retention_maxlen not between 1 and 100000 then
            flowfabric._fault('invalid_lane', format('stream_retention_maxlen %s is invalid; use 1 to 100,000 frames',
                                                     configure_lane.stream_retention_maxlen),
                              '{"field": "stream_retention_maxlen"}')
        when configure_lane.stream_retention_ms not between 0 and 315360000000 then
            flowfabric._fault('invalid_lane', format('stream_retention of %s ms is invalid; use up to 3,650 days',
                                                     configure_lane.stream_retention_ms),
                              '{"field": "stream_retention"}') end));
    is_new := flowfabric._add_lane(configure_lane.name);

    update flowfabric.lanes l
    set keep_renewals = x.keep_renewals, stream_retention_maxlen = x.maxlen, stream_retention = x.retention
    from (
        select coalesce(configure_lane.keep_renewals, o.keep_renewals) as keep_renewals,
               coalesce(configure_lane.stream_retention_maxlen::int, o.stream_retention_maxlen) as maxlen,
               case when configure_lane.stream_retention_ms is null then o.stream_retention
                    else nullif(configure_lane.stream_retention_ms, 0) * interval '1 ms' end as retention
        from flowfabric.lanes o where o.name = configure_lane.name) x
    where l.name = configure_lane.name
      and (l.keep_renewals, l.stream_retention_maxlen, l.stream_retention)
          is distinct from (x.keep_renewals, x.maxlen, x.retention);
    return case when is_new then 'registered' when found then 'changed' else 'noop' end;
end $$;

-- Pause a lane: workers stop claiming from it. Running executions continue, new ones wait. Updates one row, whatever
-- the backlog.
--
--   moves    lane active, draining → paused
--   locks    the lane
--   emits    lane_paused
--   refuses  lane_not_found, invalid_body
--   returns  'paused', or 'noop' if the lane was already paused
create or replace function flowfabric.pause_lane(name text, by text, reason text default null)
returns text
language sql as $$
    select flowfabric._set_lane_state(pause_lane.name, 'paused', pause_lane.by, pause_lane.reason)
$$;

-- Drain a lane: refuse new submissions. Its existing executions are still claimed, retried and ended.
--
--   moves    lane active, paused → draining
--   locks    the lane
--   emits    lane_drain_started
--   refuses  lane_not_found, invalid_body
--   returns  'draining', or 'noop' if the lane was already draining; and how many executions are left, counted up to
--            10,001
create or replace function flowfabric.drain_lane(
    name text, by text, reason text default null, out outcome text, out left_count int)
language plpgsql set enable_bitmapscan = off as $$
begin
    outcome := flowfabric._set_lane_state(drain_lane.name, 'draining', drain_lane.by, drain_lane.reason);
    select least(c.waiting + c.delayed + c.held + c.blocked + c.active + c.suspended, 10001) into left_count
    from flowfabric._lane_depth(drain_lane.name, flowfabric.clock()) c;
end $$;

-- Resume a paused or draining lane.
--
--   moves    lane paused, draining → active
--   locks    the lane
--   emits    lane_resumed
--   refuses  lane_not_found, invalid_body
--   returns  'active', or 'noop' if the lane was already active
create or replace function flowfabric.resume_lane(name text, by text, reason text default null)
returns text
language sql as $$
    select flowfabric._set_lane_state(resume_lane.name, 'active', resume_lane.by, resume_lane.reason)
$$;

-- Count the executions of a lane by state. Each count stops at 10,001, which bounds the cost for a huge backlog. A due
-- execution counts as waiting even if no sweep has promoted it yet.
--
--   returns  the counts: waiting (claimable), delayed, held, blocked (by dependencies), active and suspended
create or replace function flowfabric._lane_depth(
    lane text, now timestamptz, out waiting bigint, out delayed bigint, out held bigint, out blocked bigint,
    out active bigint, out suspended bigint)
language sql stable as $$
    select (select count(*) from (
               (select from flowfabric.tickets t
                where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now' limit 10001)
               union all
               (select from flowfabric.tickets t
                where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
                  and t.due_at <= _lane_depth.now limit 10001)
               union all
               (select from flowfabric.tickets t
                where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'granted' limit 10001)
               limit 10001) x),
           (select count(*) from (
               select from flowfabric.tickets t
               where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
                 and t.due_at > _lane_depth.now limit 10001) x),
           (select count(*) from (
               select from flowfabric.tickets t
               where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator'
               limit 10001) x),
           (select count(*) from (
               select from flowfabric.tickets t
               where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_dependencies'
               limit 10001) x),
           (select count(*) from (
               select from flowfabric.tickets t
               where t.lane = _lane_depth.lane and t.phase = 'active' limit 10001) x),
           (select count(*) from (
               select from flowfabric.tickets t
               where t.lane = _lane_depth.lane and t.phase = 'suspended' limit 10001) x)
$$;

-- Find when the oldest claimable execution was submitted: of the first 10,001 (priority, route) pairs with ready
-- tickets, and of as many due executions that are not yet promoted.
--
--   returns  the time, or null if no execution is claimable
create or replace function flowfabric._oldest_waiting(lane text, now timestamptz)
returns timestamptz
language sql stable as $$
    select min(x.oldest_at) from (
        select r.oldest_at from flowfabric._ready_routes(_oldest_waiting.lane, 10001) r
        union all
        (select t.created_at from flowfabric.tickets t
         where t.lane = _oldest_waiting.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
           and t.due_at <= _oldest_waiting.now
         limit 10001)) x
$$;

-- Describe a lane, with its counts.
--
--   refuses  lane_not_found
--   returns  the columns of `list_lanes`
create or replace function flowfabric.describe_lane(name text)
returns table (state text, since timestamptz, by text, reason text, keep_renewals boolean,
               stream_retention_maxlen int, stream_retention interval, waiting_count bigint, delayed_count bigint,
               active_count bigint, suspended_count bigint, oldest_at timestamptz)
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
begin
    return query
    select l.state::text, l.since, l.by, l.reason, l.keep_renewals, l.stream_retention_maxlen, l.stream_retention,
           d.waiting, d.delayed, d.active, d.suspended, flowfabric._oldest_waiting(l.name, now)
    from flowfabric.lanes l cross join lateral flowfabric._lane_depth(l.name, now) d
    where l.name = describe_lane.name;
    if not found then
        perform flowfabric._refuse_missing_lane(describe_lane.name);
    end if;
end $$;

-- List the lanes, by name, with their counts. Keyset pagination.
--
--   refuses  invalid_limit
--   returns  one row per lane: its state, who changed it and when, the executions by state (counted up to 10,001), and
--            when the oldest claimable execution was submitted
create or replace function flowfabric.list_lanes(after text default null, take int default 50)
returns table (name text, state text, since timestamptz, by text, reason text, keep_renewals boolean,
               stream_retention_maxlen int, stream_retention interval, waiting_count bigint, delayed_count bigint,
               active_count bigint, suspended_count bigint, oldest_at timestamptz)
language plpgsql stable set enable_bitmapscan = off as $$
declare
    now timestamptz := flowfabric.clock();
begin
    return query
    select l.name, l.state::text, l.since, l.by, l.reason, l.keep_renewals, l.stream_retention_maxlen,
           l.stream_retention, d.waiting, d.delayed, d.active, d.suspended, flowfabric._oldest_waiting(l.name, now)
    from flowfabric.lanes l cross join lateral flowfabric._lane_depth(l.name, now) d
    where l.name > coalesce(list_lanes.after, '')
    order by l.name
    limit flowfabric._page(list_lanes.take);
end $$;
