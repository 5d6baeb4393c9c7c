-- Lanes: where work queues, and the switch that stops it.

-- Make a lane that is not there yet.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   returns  whether it is new
create or replace function flowfabric._add_lane(name text)
returns boolean
language plpgsql as $$
#variable_conflict use_column
begin
    insert into flowfabric.lanes (name, since) values (_add_lane.name, flowfabric.clock()) on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flowfabric._append('lane_registered', _add_lane.name);
    return true;
end $$;

-- The state of a lane, which appears with its first use.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   returns  its state
create or replace function flowfabric._register_lane(name text)
returns flowfabric.lane_state
language plpgsql as $$
#variable_conflict use_column
declare
    state flowfabric.lane_state;
begin
    loop
        select l.state into state from flowfabric.lanes l where l.name = _register_lane.name;
        if found then
            return state;
        end if;
        -- Whoever made it meanwhile may have paused or drained it too: look again.
        perform flowfabric._add_lane(_register_lane.name);
    end loop;
end $$;

-- The lane of that name, locked for a change of its state.
--
--   locks    the lane
--   refuses  lane_not_found
--   returns  the lane
create or replace function flowfabric._lock_lane(name text)
returns flowfabric.lanes
language plpgsql as $$
#variable_conflict use_column
declare
    lane flowfabric.lanes;
begin
    select l.* into lane from flowfabric.lanes l where l.name = _lock_lane.name for update;
    if lane.name is null then
        perform flowfabric._refuse('lane_not_found',
            format('no lane %s; lanes appear with their first submission or with configure_lane', flowfabric._shown(_lock_lane.name)));
    end if;
    return lane;
end $$;

-- Write the state of a lane that the caller holds, and who changed it and why.
--
--   moves    lane any → the state given
create or replace function flowfabric._set_lane_state(name text, state flowfabric.lane_state, by text, why text)
returns void
language sql as $$
    update flowfabric.lanes l
    set state = _set_lane_state.state, since = flowfabric.clock(), by = _set_lane_state.by,
        why = flowfabric._kept_text(_set_lane_state.why)
    where l.name = _set_lane_state.name
$$;

-- Make a lane, or change how it keeps its history. An option left out stays as it is.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   refuses  invalid_lane
--   returns  'registered', 'changed', or 'noop' when it was so already
create or replace function flowfabric.configure_lane(name text, keep_renewals boolean default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    is_new boolean;
begin
    if configure_lane.name !~ '^[\x20-\x7e]{1,64}$' then
        perform flowfabric._refuse('invalid_lane',
            format('lane %s: a lane is 1 to 64 printable ASCII characters', flowfabric._shown(configure_lane.name)));
    end if;
    is_new := flowfabric._add_lane(configure_lane.name);

    update flowfabric.lanes l set keep_renewals = configure_lane.keep_renewals
    where l.name = configure_lane.name and l.keep_renewals <> configure_lane.keep_renewals;
    return case when is_new then 'registered' when found then 'changed' else 'noop' end;
end $$;

-- Stop claiming from a lane. What runs goes on; what is submitted waits. One row is written, whatever the backlog.
--
--   moves    lane active, draining → paused
--   locks    the lane
--   emits    lane_paused
--   refuses  lane_not_found, invalid_body
--   returns  'paused', or 'noop' when it was paused already
create or replace function flowfabric.pause_lane(name text, by text, why text default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._check_by(pause_lane.by);
    if (flowfabric._lock_lane(pause_lane.name)).state = 'paused' then
        return 'noop';
    end if;
    perform flowfabric._set_lane_state(pause_lane.name, 'paused', pause_lane.by, pause_lane.why);
    perform flowfabric._append('lane_paused', pause_lane.name, pause_lane.by,
                               jsonb_build_object('why', flowfabric._kept_text(pause_lane.why)));
    return 'paused';
end $$;

-- Refuse new work for a lane and let it finish what it has: that is still claimed, retried and ended.
--
--   moves    lane active, paused → draining
--   locks    the lane
--   emits    lane_drain_started
--   refuses  lane_not_found, invalid_body
--   returns  'draining', or 'noop' when it was draining already; and how much is left, counted up to 10 001
create or replace function flowfabric.drain_lane(name text, by text, why text default null, out outcome text, out left_count int)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._check_by(drain_lane.by);
    if (flowfabric._lock_lane(drain_lane.name)).state = 'draining' then
        outcome := 'noop';
    else
        perform flowfabric._set_lane_state(drain_lane.name, 'draining', drain_lane.by, drain_lane.why);
        perform flowfabric._append('lane_drain_started', drain_lane.name, drain_lane.by,
                                   jsonb_build_object('why', flowfabric._kept_text(drain_lane.why)));
        outcome := 'draining';
    end if;
    select least(sum(c.amount), 10001) into left_count from flowfabric._lane_depth(drain_lane.name, flowfabric.clock()) c;
end $$;

-- Open a lane again, paused or draining.
--
--   moves    lane paused, draining → active
--   locks    the lane
--   emits    lane_resumed
--   refuses  lane_not_found, invalid_body
--   returns  'active', or 'noop' when it was active already
create or replace function flowfabric.resume_lane(name text, by text, why text default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._check_by(resume_lane.by);
    if (flowfabric._lock_lane(resume_lane.name)).state = 'active' then
        return 'noop';
    end if;
    perform flowfabric._set_lane_state(resume_lane.name, 'active', resume_lane.by, resume_lane.why);
    perform flowfabric._append('lane_resumed', resume_lane.name, resume_lane.by,
                               jsonb_build_object('why', flowfabric._kept_text(resume_lane.why)));
    return 'active';
end $$;

-- How much a lane holds, kind by kind, each counted up to 10 001 so that a huge backlog costs no more than that: row by row
-- from an index, because a bitmap reads all of it before the limit stops it. What is due counts as waiting, whether or not
-- a sweep has come by.
--
--   returns  'waiting' (what a claim could take), 'delayed', 'held', 'blocked' (by upstreams), 'active', 'suspended', each with
--            its amount
create or replace function flowfabric._lane_depth(lane text, now timestamptz)
returns table (what text, amount bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select 'waiting', count(*) from (
        (select from flowfabric.tickets t
         where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now' limit 10001)
        union all
        (select from flowfabric.tickets t
         where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
           and t.due_at <= _lane_depth.now limit 10001)
        union all
        (select from flowfabric.tickets t
         where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'granted' limit 10001)
        limit 10001) x
    union all
    select 'delayed', count(*) from (
        select from flowfabric.tickets t
        where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
          and t.due_at > _lane_depth.now limit 10001) x
    union all
    select 'held', count(*) from (
        select from flowfabric.tickets t
        where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_operator' limit 10001) x
    union all
    select 'blocked', count(*) from (
        select from flowfabric.tickets t
        where t.lane = _lane_depth.lane and t.phase = 'runnable' and t.eligibility = 'blocked_by_dependencies' limit 10001) x
    union all
    select 'active', count(*) from (
        select from flowfabric.tickets t where t.lane = _lane_depth.lane and t.phase = 'active' limit 10001) x
    union all
    select 'suspended', count(*) from (
        select from flowfabric.tickets t where t.lane = _lane_depth.lane and t.phase = 'suspended' limit 10001) x
$$;

-- When the oldest work that a claim could take was submitted: one look per priority and route that has any, and one at
-- each of what is due but not yet promoted. Of either at most 10 001, so that a huge backlog costs no more than that.
--
--   returns  the moment, or null when nothing waits
create or replace function flowfabric._oldest_waiting(lane text, now timestamptz)
returns timestamptz
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    with recursive heads as (
        (select t.priority, t.route, t.created_at from flowfabric.tickets t
         where t.lane = _oldest_waiting.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
         order by t.priority desc, t.route, t.created_at limit 1)
        union all
        select n.* from heads h cross join lateral (
            (select t.priority, t.route, t.created_at from flowfabric.tickets t
             where t.lane = _oldest_waiting.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
               and t.priority = h.priority and t.route > h.route
             order by t.route, t.created_at limit 1)
            union all
            (select t.priority, t.route, t.created_at from flowfabric.tickets t
             where t.lane = _oldest_waiting.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
               and t.priority < h.priority
             order by t.priority desc, t.route, t.created_at limit 1)
            limit 1) n
    )
    select min(x.created_at) from (
        (select h.created_at from heads h limit 10001)
        union all
        (select t.created_at from flowfabric.tickets t
         where t.lane = _oldest_waiting.lane and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
           and t.due_at <= _oldest_waiting.now
         limit 10001)) x
$$;

-- The lanes there are, by name, with what is in them.
--
--   refuses  invalid_limit
--   returns  a row each: state, since when and by whom, how many wait and run (counted up to 10 001), when the
--            oldest that waits was submitted
create or replace function flowfabric.list_lanes(after text default null, take int default 50)
returns table (name text, state text, since timestamptz, by text, why text, keep_renewals boolean,
               waiting_count bigint, delayed_count bigint, active_count bigint, suspended_count bigint, oldest_at timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    return query
    select l.name, l.state::text, l.since, l.by, l.why, l.keep_renewals, d.waiting, d.delayed, d.active, d.suspended,
           flowfabric._oldest_waiting(l.name, now)
    from flowfabric.lanes l
    cross join lateral (
        select sum(x.amount) filter (where x.what = 'waiting')::bigint as waiting,
               sum(x.amount) filter (where x.what = 'delayed')::bigint as delayed,
               sum(x.amount) filter (where x.what = 'active')::bigint as active,
               sum(x.amount) filter (where x.what = 'suspended')::bigint as suspended
        from flowfabric._lane_depth(l.name, now) x) d
    where l.name > coalesce(list_lanes.after, '')
    order by l.name
    limit flowfabric._page(list_lanes.take);
end $$;
