-- Shortcuts: simple cases of a claim that skip the full choice.

-- Lock the only ready ticket, if the worker covers its route's needs and the route has neither budget nor quota. With
-- one ticket there are no turns to take.
--
--   locks    that ticket, unless it is locked
--   returns  its ctid; empty if the full choice must decide
create or replace function flowfabric._lock_only(place tid, capabilities text[], namespace text, partitions int[])
returns tid[]
language plpgsql as $$
begin
    return array(
        select t.ctid from flowfabric.tickets t
        where t.ctid = _lock_only.place and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and (_lock_only.partitions is null or t.partition = any (_lock_only.partitions))
          and exists (
              select from flowfabric.routes r
              where r.id = t.route and r.needs <@ _lock_only.capabilities
                and r.namespace = coalesce(_lock_only.namespace, r.namespace)
                and r.budgets = '{}' and r.quotas = '{}' offset 0)
        for update skip locked);
end $$;

-- Continue in the route served last, from the creation time of the last execution taken, minus 100 ms for transactions
-- that commit out of order. The index entries of tickets taken since then stay until vacuum removes them, and this
-- skips them. Only while no higher priority and no other route has work, and when the route has neither budget nor
-- quota. Lower priorities are left to the next claim.
--
--   returns  their ctids; empty if the claim must start from the front
create or replace function flowfabric._continue_in_route(
    lanes text[], capabilities text[], namespace text, take int, last_route int, last_priority int,
    last_created timestamptz)
returns tid[]
language plpgsql set enable_bitmapscan = off as $$
declare
    route_lane text;
    found record;
begin
    select r.lane into route_lane from flowfabric.routes r
    where r.id = _continue_in_route.last_route and r.lane = any (_continue_in_route.lanes)
      and r.needs <@ _continue_in_route.capabilities
      and r.namespace = coalesce(_continue_in_route.namespace, r.namespace) and r.budgets = '{}' and r.quotas = '{}';
    if route_lane is null or exists (
        select from unnest(_continue_in_route.lanes) l (name)
        where exists (
                select from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                  and t.priority > _continue_in_route.last_priority)
           or exists (
                select from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                  and t.priority = _continue_in_route.last_priority
                  and t.route < _continue_in_route.last_route)
           or exists (
                select from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                  and t.priority = _continue_in_route.last_priority
                  and t.route > _continue_in_route.last_route)) then
        return '{}';
    end if;
    found := flowfabric._lock_ready(
        array[_continue_in_route.last_route], array[route_lane],
        array[_continue_in_route.last_created - interval '100 ms'], _continue_in_route.last_priority,
        array[_continue_in_route.take], '{}', null);
    return found.places;
end $$;

-- Serve one route whose turn it is alone, if it has no budget and one unlocked stripe of each of its quotas has room
-- for as many executions as asked for.
--
--   returns  the ctids of the tickets, null if the long way must decide; the capacity of each known quota, the locked
--            quotas, and the ctids of their stripes
create or replace function flowfabric._serve_one_route(
    routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz, skips_late boolean,
    inout rooms jsonb, inout locked uuid[], inout stripes tid[], out places tid[])
language plpgsql as $$
declare
    wanted uuid[];
    stripe record;
    rest bigint := _serve_one_route.take;
begin
    select r.quotas into wanted from flowfabric.routes r
    where r.id = _serve_one_route.routes[1] and r.budgets = '{}' and cardinality(_serve_one_route.routes) = 1;
    if wanted is null or locked <> '{}' then
        return;
    end if;
    for number in 1 .. cardinality(wanted) loop
        stripe := flowfabric._lock_stripe(wanted[number], _serve_one_route.take, '{}', _serve_one_route.now);
        if stripe.place is not null then
            stripes := stripes || stripe.place;
        elsif stripes = '{}' then
            return;
        end if;
        -- A claim that has locked a stripe must not wait for another of its quota, so it does not take the long way.
        rest := greatest(0, least(rest, coalesce(stripe.room, 0)));
        rooms := rooms || jsonb_build_object(wanted[number], greatest(0, coalesce(stripe.room, 0)));
    end loop;
    locked := wanted;
    select l.places into places from flowfabric._lock_ready(
        _serve_one_route.routes, _serve_one_route.route_lanes, array['-infinity'::timestamptz], _serve_one_route.level,
        array[rest::int], '{}', _serve_one_route.partitions, _serve_one_route.now, _serve_one_route.skips_late) l;
    rooms := rooms || (select jsonb_object_agg(u.id, (rooms ->> u.id::text)::bigint - cardinality(places))
                       from unnest(wanted) u (id));
end $$;
