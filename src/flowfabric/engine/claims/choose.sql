-- Choosing: which ready execution a worker gets next, at a cost that does not grow with the backlog.

-- The next route number after `behind` with ready tickets of one priority in these lanes: one step of a loose index
-- scan. Kept simple enough for Postgres to inline it.
--
--   returns  the route number and its lane; no row if there is none
create or replace function flowfabric._next_route(lanes text[], level int, behind int, upto int, partitions int[])
returns table (route int, lane text)
language sql stable as $$
    select n.route, n.lane from unnest(_next_route.lanes) l (name)
    cross join lateral (
        select t.route, t.lane from flowfabric.tickets t
        where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and t.priority = _next_route.level and t.route > _next_route.behind and t.route <= _next_route.upto
          and (_next_route.partitions is null or t.partition = any (_next_route.partitions))
        order by t.route limit 1) n
    order by n.route limit 1
$$;

-- The routes whose turn it is at one priority: routes with ready tickets whose needs the worker covers, starting after
-- the route served last and wrapping around. Budgets and quotas are not checked here. A loose index scan over distinct
-- routes that stops after `most` routes: every route gives one ticket before any gives a second.
--
--   returns  the route numbers and lanes, in turn order; whether any of them has a budget or a quota; and where to
--            continue if all their tickets are locked. Fewer routes than asked for means that there are no more
create or replace function flowfabric._turn_order(
    lanes text[], level int, after_route int, capabilities text[], namespace text, partitions int[], most int,
    inout behind int, inout wrapped boolean, out routes int[], out route_lanes text[], out is_limited boolean)
language plpgsql stable as $$
declare
    found record;
begin
    with recursive turn as (
        select behind as route, null as lane, wrapped
        union all
        select n.route, n.lane, n.wrapped from turn t cross join lateral (
            select a.route, a.lane, t.wrapped from flowfabric._next_route(
                _turn_order.lanes, _turn_order.level, t.route,
                case when t.wrapped and _turn_order.after_route > 0 then _turn_order.after_route else 2147483647 end,
                _turn_order.partitions) a
            union all
            select f.route, f.lane, true from flowfabric._next_route(
                _turn_order.lanes, _turn_order.level, 0, _turn_order.after_route, _turn_order.partitions) f
            where not t.wrapped
            limit 1) n
    )
    select coalesce(array_agg(w.route), '{}') as routes, array_agg(w.lane) as lanes, bool_or(w.wrapped) as wrapped,
           bool_or(w.is_limited) as is_limited into found
    from (
        select t.*, r.is_limited from turn t cross join lateral (
            select r.budgets <> '{}' or r.quotas <> '{}' as is_limited from flowfabric.routes r
            where r.id = t.route and r.needs <@ _turn_order.capabilities
              and r.namespace = coalesce(_turn_order.namespace, r.namespace) offset 0) r
        where t.lane is not null limit _turn_order.most) w;
    routes := found.routes;
    route_lanes := found.lanes;
    is_limited := found.is_limited;
    behind := routes[cardinality(routes)];
    wrapped := found.wrapped;
end $$;

-- Lock the oldest ready tickets of one priority for each of several routes, created at or after a time and not chosen
-- already: as many per route as asked for, or as exist. With `now`, members of flows past their deadline are left out,
-- because a claim cannot end them; with `skips_late`, all tickets past their deadline.
--
--   locks    those tickets, skipping locked ones
--   returns  the ctids of the tickets, the position of each ticket's route, and when each was created
create or replace function flowfabric._lock_ready(
    routes int[], route_lanes text[], behind timestamptz[], level int, amounts int[], chosen tid[], partitions int[],
    now timestamptz default null, skips_late boolean default false,
    out places tid[], out turns bigint[], out ages timestamptz[])
language plpgsql as $$
begin
    select coalesce(array_agg(s.place), '{}'), array_agg(x.turn), array_agg(s.created_at) into places, turns, ages
    from unnest(_lock_ready.routes, _lock_ready.route_lanes, _lock_ready.behind, _lock_ready.amounts)
         with ordinality as x (route, lane, behind, amount, turn)
    cross join lateral (
        select t.ctid as place, t.created_at from flowfabric.tickets t
        where t.lane = x.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and t.priority = _lock_ready.level and t.route = x.route
          and t.created_at >= x.behind and t.ctid <> all (_lock_ready.chosen)
          and (_lock_ready.partitions is null or t.partition = any (_lock_ready.partitions))
          and ((t.deadline_at > _lock_ready.now) is not false or t.flow is null and not _lock_ready.skips_late)
        order by t.created_at
        limit x.amount
        for update skip locked) s;
end $$;

-- Serve the routes of one priority round-robin until `take` tickets are chosen or none is left: equal shares per round.
-- If a route has too few tickets, the next round takes more from routes that may have some.
--
--   returns  the ctids of the tickets
create or replace function flowfabric._serve(
    routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz, skips_late boolean)
returns tid[]
language plpgsql as $$
declare
    chosen tid[] := '{}';
    behind timestamptz[] := array_fill('-infinity'::timestamptz, array[cardinality(_serve.routes)]);
    asked int;
    share int;
    served record;
begin
    loop
        asked := least(_serve.take - cardinality(chosen), cardinality(_serve.routes));
        share := (_serve.take - cardinality(chosen)) / asked;
        served := flowfabric._lock_ready(_serve.routes[:asked], _serve.route_lanes[:asked], behind[:asked],
                                         _serve.level, array_fill(share, array[asked]), chosen, _serve.partitions,
                                         _serve.now, _serve.skips_late);
        chosen := chosen || served.places;
        -- Together they gave less than one share, so no route gave a full share and none has more tickets.
        exit when cardinality(chosen) >= _serve.take
            or (asked = cardinality(_serve.routes) and cardinality(served.places) < share);

        -- Next round: the routes not asked yet, and those that gave a full share and may have more.
        select array_agg(x.route order by x.turn), array_agg(x.lane order by x.turn),
               array_agg(coalesce(f.youngest, x.behind) order by x.turn)
        into _serve.routes, _serve.route_lanes, behind
        from unnest(_serve.routes, _serve.route_lanes, behind) with ordinality as x (route, lane, behind, turn)
        left join (
            select u.turn, max(u.age) as youngest from unnest(served.turns, served.ages) as u (turn, age)
            group by u.turn having count(*) = share) f on f.turn = x.turn
        where f.turn is not null or x.turn > asked;
        exit when _serve.routes is null;
    end loop;
    return chosen;
end $$;

-- Find the next lower priority with work that this worker may claim: a loose index scan over distinct (priority, route)
-- pairs that skips unsuitable routes and routes known to be closed. After many pairs without a match it reads plain
-- index ranges instead, for as long as there are only a few tickets per pair.
--
--   returns  the priority, or null if there is none
create or replace function flowfabric._next_level(
    lanes text[], level int, capabilities text[], namespace text, closed int[])
returns int
language plpgsql stable as $$
declare
    lane_name text;
    behind_priority int;
    behind_route int;
    place record;
    steps int;
    found int;
begin
    foreach lane_name in array _next_level.lanes loop
        behind_priority := _next_level.level;
        behind_route := 2147483647;
        steps := 500;
        loop
            with recursive pair as (
                select 0 as number, behind_priority as priority, behind_route as route, false as is_suited
                union all
                select p.number + 1, n.priority, n.route, n.route <> all (_next_level.closed) and exists (
                    select from flowfabric.routes r
                    where r.id = n.route and r.needs <@ _next_level.capabilities
                      and r.namespace = coalesce(_next_level.namespace, r.namespace)
                    offset 0)
                from pair p cross join lateral (
                    (select t.priority, t.route from flowfabric.tickets t
                     where t.lane = lane_name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                       and t.priority = p.priority and t.route > p.route
                     order by t.route limit 1)
                    union all
                    (select t.priority, t.route from flowfabric.tickets t
                     where t.lane = lane_name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                       and t.priority < p.priority
                     order by t.priority desc, t.route limit 1)
                    limit 1) n
                where not p.is_suited and p.number < steps
            )
            select p.priority, p.route, p.is_suited, p.number < steps as is_over into place from pair p
            order by p.number desc limit 1;
            while not place.is_over and not place.is_suited loop
                place := flowfabric._read_pairs(lane_name, place.priority, place.route, _next_level.capabilities,
                                                _next_level.namespace, _next_level.closed);
                exit when place.is_dense;
            end loop;
            exit when place.is_over or place.is_suited;
            behind_priority := place.priority;
            behind_route := place.route;
            steps := 2 * steps;
        end loop;
        if place.is_suited then
            found := greatest(found, place.priority);
        end if;
    end loop;
    return found;
end $$;

-- Read the next range of ready tickets of a lane after a (priority, route) pair, and check each route in it.
--
--   returns  the first pair that suits the worker and is not known to be closed, else the last pair read; whether it
--            suits; whether the index is exhausted; and whether the range holds many tickets per pair
create or replace function flowfabric._read_pairs(
    lane text, inout priority int, inout route int, capabilities text[], namespace text, closed int[],
    out is_suited boolean, out is_over boolean, out is_dense boolean)
language plpgsql stable as $$
declare
    most constant int := 256;
    seen record;
begin
    with entries as materialized (
        (select t.priority, t.route from flowfabric.tickets t
         where t.lane = _read_pairs.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
           and t.priority = _read_pairs.priority and t.route > _read_pairs.route
         order by t.route limit most)
        union all
        (select t.priority, t.route from flowfabric.tickets t
         where t.lane = _read_pairs.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now'
           and t.priority < _read_pairs.priority
         order by t.priority desc, t.route limit most)
        limit most
    ), routes as (
        select e.route, count(*) as amount, count(distinct e.priority) as pairs, max(e.priority) as priority
        from entries e group by e.route
    )
    select sum(x.amount) as amount, sum(x.pairs) as pairs,
           max(x.priority) filter (where x.route <> all (_read_pairs.closed) and exists (
               select from flowfabric.routes r
               where r.id = x.route and r.needs <@ _read_pairs.capabilities
                 and r.namespace = coalesce(_read_pairs.namespace, r.namespace)
               offset 0)) as priority,
           (select array[e.priority, e.route] from entries e order by e.priority, e.route desc limit 1) as last
    into seen from routes x;
    is_suited := seen.priority is not null;
    is_over := not is_suited and coalesce(seen.amount, 0) < most;
    is_dense := 4 * seen.pairs < seen.amount;
    priority := coalesce(seen.priority, seen.last[1]);
    route := seen.last[2];
end $$;

-- Choose and lock up to `take` ready tickets: strict priority, round-robin between routes of equal priority, oldest
-- first within a route. Tickets past their deadline that a claim cannot end are left out; with `skips_late`, all of
-- them. It reads only the routes it visits and the rows it takes, whatever the backlog. Every plan must use the ready
-- index, so other scan types are off here and in everything it calls.
--
--   returns  the ctids of the tickets, and of the stripes of quotas that it has locked for them
create or replace function flowfabric._choose(
    lanes text[], capabilities text[], namespace text, partitions int[], take int, after_route int, now timestamptz,
    may_wait boolean, skips_late boolean, out chosen tid[], out stripes tid[])
language plpgsql set enable_bitmapscan = off as $$
declare
    level int := 32767;
    asked int;
    turns record;
    limits record;
    served record;
    closed int[] := '{}';
    before int := -1;
    empty_levels int := 0;
begin
    chosen := '{}';
    select '{}'::jsonb as rooms, '{}'::uuid[] as locked, '{}'::tid[] as stripes, '{}'::tid[] as places into limits;
    while cardinality(chosen) < _choose.take loop
        empty_levels := case when cardinality(chosen) = before then empty_levels + 1 else 0 end;
        before := cardinality(chosen);
        if empty_levels < 3 then
            -- Lanes without ready tickets are dropped.
            select max(p.priority), array_agg(l.name) into level, _choose.lanes from unnest(_choose.lanes) l (name)
            cross join lateral (
                select t.priority from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority < level
                order by t.priority desc limit 1) p;
        else
            level := flowfabric._next_level(_choose.lanes, level, _choose.capabilities, _choose.namespace, closed);
        end if;
        exit when level is null;
        select _choose.after_route as behind, _choose.after_route = 0 as wrapped into turns;
        loop
            asked := _choose.take - cardinality(chosen);
            turns := flowfabric._turn_order(_choose.lanes, level, _choose.after_route, _choose.capabilities,
                                            _choose.namespace, _choose.partitions, asked, turns.behind, turns.wrapped);
            exit when turns.routes = '{}';
            if turns.is_limited then
                served := flowfabric._serve_one_route(
                    turns.routes, turns.route_lanes, level, asked, _choose.partitions, _choose.now, _choose.skips_late,
                    limits.rooms, limits.locked, limits.stripes);
                if served.places is null then
                    turns := flowfabric._open_turns(
                        _choose.lanes, level, _choose.after_route, _choose.capabilities, _choose.namespace,
                        _choose.partitions, asked, _choose.now, turns.behind, turns.wrapped, turns.routes,
                        turns.route_lanes, limits.rooms, closed);
                    closed := turns.closed;
                    served := flowfabric._serve_within(
                        turns.routes, turns.route_lanes, level, asked, _choose.partitions, _choose.now,
                        _choose.may_wait, _choose.skips_late, turns.rooms, limits.locked, limits.stripes);
                end if;
                limits := served;
                chosen := chosen || limits.places;
            else
                chosen := chosen || flowfabric._serve(turns.routes, turns.route_lanes, level, asked,
                                                      _choose.partitions, _choose.now, _choose.skips_late);
            end if;
            -- Other claims may have locked all tickets of these routes: try the next routes before a lower priority.
            exit when cardinality(turns.routes) < asked or cardinality(chosen) >= _choose.take;
        end loop;
    end loop;
    stripes := limits.stripes;
end $$;
