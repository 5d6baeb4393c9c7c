-- Choosing: which of all that is ready is given next, at a cost that does not grow with the backlog.

-- Make due work claimable before a claim looks for it, a bounded number at a time.
--
--   moves    not_eligible_until_time → eligible_now
--   locks    the tickets it moves; skips those that are locked
--   returns  the lanes of those it moved, one entry each
create or replace function flowfabric._promote(lanes text[], take int, now timestamptz, passing int default 0)
returns text[]
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    promoted text[];
begin
    with due as (
        select t.ctid as place from flowfabric.tickets t
        where t.lane = any (_promote.lanes) and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
          and t.due_at <= _promote.now
        limit _promote.take offset _promote.passing
        for update skip locked
    ), moved as (
        update flowfabric.tickets t set eligibility = 'eligible_now', reason = 'waiting_for_worker'
        where t.ctid = any (array(select d.place from due d))
        returning t.lane
    )
    select array_agg(m.lane) into promoted from moved m;
    return promoted;
end $$;

-- The next route, by number, that has ready work of one priority in these lanes.
--
--   returns  its number and lane, or null when there is none behind that one
create or replace function flowfabric._next_route(
    lanes text[], level int, behind int, partitions int[], out route int, out lane text)
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
begin
    select n.route, n.lane into route, lane from unnest(_next_route.lanes) l (name)
    cross join lateral (
        select t.route, t.lane from flowfabric.tickets t
        where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and t.priority = _next_route.level and t.route > _next_route.behind
          and (_next_route.partitions is null or t.partition = any (_next_route.partitions))
        order by t.route limit 1) n
    order by n.route limit 1;
end $$;

-- The routes that take their turn at one priority: open ones with ready work, from behind the one served last and round.
-- At most as many as there is work to take: each gets one before any gets a second.
--
--   returns  their numbers and lanes, in turn order; and where to go on, should none of theirs be free. Fewer than asked
--            for are all there are
create or replace function flowfabric._turn_order(
    lanes text[], level int, after_route int, capabilities text[], namespace text, partitions int[], most int,
    inout behind int, inout wrapped boolean, out routes int[], out route_lanes text[])
language plpgsql stable as $$
#variable_conflict use_column
declare
    candidate record;
begin
    routes := '{}';
    route_lanes := '{}';
    while cardinality(routes) < most loop
        candidate := flowfabric._next_route(lanes, level, behind, partitions);
        if candidate.route is null or (wrapped and after_route > 0 and candidate.route > after_route) then
            exit when wrapped;
            wrapped := true;
            behind := 0;
            continue;
        end if;
        behind := candidate.route;
        if exists (select from flowfabric.routes r where r.id = candidate.route and r.needs <@ _turn_order.capabilities
                                                    and r.namespace = coalesce(_turn_order.namespace, r.namespace)) then
            routes := routes || candidate.route;
            route_lanes := route_lanes || candidate.lane;
        end if;
    end loop;
end $$;

-- Lock the oldest ready tickets of one priority and route, from a moment on and without those chosen already: exactly as
-- many as asked for, or as there are.
--
--   locks    those tickets; skips the ones that are locked
--   returns  their places, and the age of the youngest
create or replace function flowfabric._lock_ready(
    lane text, level int, route int, amount int, behind timestamptz, chosen tid[], partitions int[],
    out places tid[], out youngest timestamptz)
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    select coalesce(array_agg(x.place), '{}'), max(x.created_at) into places, youngest from (
        select t.ctid as place, t.created_at from flowfabric.tickets t
        where t.lane = _lock_ready.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and t.priority = _lock_ready.level and t.route = _lock_ready.route
          and t.created_at >= _lock_ready.behind and t.ctid <> all (_lock_ready.chosen)
          and (_lock_ready.partitions is null or t.partition = any (_lock_ready.partitions))
        order by t.created_at
        limit _lock_ready.amount
        for update skip locked) x;
end $$;

-- Serve the routes of one priority in turn until so many tickets are chosen or none is left: equal shares, and what a
-- route cannot fill goes round again among those that still have work.
--
--   locks    the tickets it chooses; skips those that are locked
--   returns  their places
create or replace function flowfabric._serve(routes int[], route_lanes text[], level int, take int, partitions int[])
returns tid[]
language plpgsql as $$
declare
    chosen tid[] := '{}';
    youngest timestamptz[] := array_fill('-infinity'::timestamptz, array[cardinality(routes)]);
    hungry int[] := array(select generate_series(1, cardinality(routes)));
    fed int[];
    share int;
    turn int;
    served record;
begin
    while cardinality(hungry) > 0 and cardinality(chosen) < take loop
        share := greatest((take - cardinality(chosen)) / cardinality(hungry), 1);
        fed := '{}';
        foreach turn in array hungry loop
            exit when cardinality(chosen) >= take;
            served := flowfabric._lock_ready(route_lanes[turn], level, routes[turn], share, youngest[turn], chosen, partitions);
            chosen := chosen || served.places;
            if cardinality(served.places) = share then
                fed := fed || turn;
                youngest[turn] := served.youngest;
            end if;
        end loop;
        hungry := fed;
    end loop;
    return chosen;
end $$;

-- Choose and lock up to so many ready tickets: strict priority; at equal priority routes take turns; within a route the
-- oldest first. It touches the routes it visits and the rows it takes, whatever the backlog.
--
--   locks    the tickets it chooses; skips those that are locked
--   returns  their places
create or replace function flowfabric._choose(
    lanes text[], capabilities text[], namespace text, partitions int[], take int, after_route int)
returns tid[]
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    chosen tid[] := '{}';
    level int := 32767;
    asked int;
    turns record;
begin
    while cardinality(chosen) < take loop
        select max(p.priority) into level from unnest(lanes) l (name) cross join lateral (
            select t.priority from flowfabric.tickets t
            where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority < level
            order by t.priority desc limit 1) p;
        exit when level is null;
        select after_route as behind, after_route = 0 as wrapped into turns;
        loop
            asked := take - cardinality(chosen);
            turns := flowfabric._turn_order(lanes, level, after_route, capabilities, namespace, partitions, asked, turns.behind, turns.wrapped);
            exit when turns.routes = '{}';
            chosen := chosen || flowfabric._serve(turns.routes, turns.route_lanes, level, asked, partitions);
            -- Others may hold all that these routes had: then the next ones have their turn before a lower priority has.
            exit when cardinality(turns.routes) < asked or cardinality(chosen) >= take;
        end loop;
    end loop;
    return chosen;
end $$;
