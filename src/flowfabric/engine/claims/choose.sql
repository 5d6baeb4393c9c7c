-- Choosing: which of all that is ready is given next, at a cost that does not grow with the backlog.

-- Make due work claimable before a claim looks for it, a bounded number at a time: row by row from the index, because a
-- bitmap reads all that is due before the limit stops it.
--
--   moves    not_eligible_until_time → eligible_now
--   locks    the tickets it moves; skips those that are locked
--   returns  the lanes of those it moved, one entry each
create or replace function flowfabric._promote(lanes text[], take int, now timestamptz, passing int default 0)
returns text[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- The next route, by number, that has ready work of one priority in these lanes. Written to be inlined.
--
--   returns  its number and lane; nothing when there is none behind that one
create or replace function flowfabric._next_route(lanes text[], level int, behind int, upto int, partitions int[])
returns table (route int, lane text)
language sql stable as $$
    select n.route, n.lane from unnest(lanes) l (name)
    cross join lateral (
        select t.route, t.lane from flowfabric.tickets t
        where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
          and t.priority = level and t.route > behind and t.route <= upto
          and (partitions is null or t.partition = any (partitions))
        order by t.route limit 1) n
    order by n.route limit 1
$$;

-- The routes that take their turn at one priority: those with ready work that suit the worker, from behind the one served
-- last and round; budgets and quotas are not looked at. At most as many as there is work to take: each gets one before any gets a second. A walk from route to route, which goes
-- no further than it must.
--
--   returns  their numbers and lanes, in turn order; whether any of them has a budget or a quota; and where to go on, should
--            none of theirs be free. Fewer than asked for are all there are
create or replace function flowfabric._turn_order(
    lanes text[], level int, after_route int, capabilities text[], namespace text, partitions int[], most int,
    inout behind int, inout wrapped boolean, out routes int[], out route_lanes text[], out is_limited boolean)
language plpgsql stable as $$
#variable_conflict use_column
declare
    last_one constant int := 2147483647;
    found record;
begin
    if cardinality(lanes) = 1 and partitions is null and behind = after_route and wrapped = (after_route = 0) then
        -- Most often a single route has work, and there is nothing to walk through.
        select (select t.route from flowfabric.tickets t
                where t.lane = lanes[1] and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority = level
                order by t.route limit 1) as first,
               (select t.route from flowfabric.tickets t
                where t.lane = lanes[1] and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority = level
                order by t.route desc limit 1) as last into found;
        if found.first = found.last then
            select array[r.id], r.budgets <> '{}' or r.quotas <> '{}' into routes, is_limited from flowfabric.routes r
            where r.id = found.first and r.needs <@ _turn_order.capabilities and r.namespace = coalesce(_turn_order.namespace, r.namespace);
            routes := coalesce(routes, '{}');
            route_lanes := lanes;
            behind := found.first;
            wrapped := found.first <= after_route or after_route = 0;
            return;
        end if;
    end if;
    with recursive ahead as (
        select n.route, n.lane from flowfabric._next_route(
            _turn_order.lanes, level, behind, case when wrapped and after_route > 0 then after_route else last_one end, partitions) n
        union all
        select n.route, n.lane from ahead a cross join lateral flowfabric._next_route(
            _turn_order.lanes, level, a.route, case when wrapped and after_route > 0 then after_route else last_one end, partitions) n
    ), round as (
        select n.route, n.lane from flowfabric._next_route(_turn_order.lanes, level, 0, after_route, partitions) n where not wrapped
        union all
        select n.route, n.lane from round a cross join lateral flowfabric._next_route(_turn_order.lanes, level, a.route, after_route, partitions) n
    )
    select array_agg(w.route) as routes, array_agg(w.lane) as lanes, bool_or(w.wrapped) as wrapped, bool_or(w.is_limited) as is_limited into found
    from (
        select x.*, r.is_limited from (select a.*, wrapped from ahead a union all select a.*, true from round a) x (route, lane, wrapped)
        -- Each looked up as it comes: another join might walk to the end first.
        cross join lateral (
            select r.budgets <> '{}' or r.quotas <> '{}' as is_limited from flowfabric.routes r
            where r.id = x.route and r.needs <@ _turn_order.capabilities
              and r.namespace = coalesce(_turn_order.namespace, r.namespace) offset 0) r
        limit most) w;
    routes := coalesce(found.routes, '{}');
    route_lanes := found.lanes;
    is_limited := found.is_limited;
    behind := routes[cardinality(routes)];
    wrapped := found.wrapped;
end $$;

-- Lock the oldest ready tickets of one priority for each of several routes, from a moment on and without those chosen
-- already: exactly as many of each as asked for, or as there are.
--
--   locks    those tickets; skips the ones that are locked
--   returns  their places, which of the routes each is of, and its age
create or replace function flowfabric._lock_ready(
    routes int[], route_lanes text[], behind timestamptz[], level int, amounts int[], chosen tid[], partitions int[],
    out places tid[], out turns bigint[], out ages timestamptz[])
language plpgsql as $$
#variable_conflict use_column
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
        order by t.created_at
        limit x.amount
        for update skip locked) s;
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
    behind timestamptz[] := array_fill('-infinity'::timestamptz, array[cardinality(routes)]);
    asked int;
    share int;
    served record;
begin
    loop
        asked := least(take - cardinality(chosen), cardinality(routes));
        share := (take - cardinality(chosen)) / asked;
        served := flowfabric._lock_ready(routes[:asked], route_lanes[:asked], behind[:asked], level, array_fill(share, array[asked]), chosen, partitions);
        chosen := chosen || served.places;
        -- None had its whole share when all together have not: then none has more.
        exit when cardinality(chosen) >= take or (asked = cardinality(routes) and cardinality(served.places) < share);

        -- Those whose turn did not come, and those that had their whole share, which may have more.
        select array_agg(x.route order by x.turn), array_agg(x.lane order by x.turn), array_agg(coalesce(f.youngest, x.behind) order by x.turn)
        into routes, route_lanes, behind
        from unnest(routes, route_lanes, behind) with ordinality as x (route, lane, behind, turn)
        left join (
            select u.turn, max(u.age) as youngest from unnest(served.turns, served.ages) as u (turn, age)
            group by u.turn having count(*) = share) f on f.turn = x.turn
        where f.turn is not null or x.turn > asked;
        exit when routes is null;
    end loop;
    return chosen;
end $$;

-- The next lower priority that has ready work of a route that suits the worker and is not known to be closed: a walk through
-- a backlog of which a worker can have very little. It goes from pair of priority and route to the next, whatever they hold;
-- after many in vain it reads on in the index, for as long as that passes a pair with every few entries.
--
--   returns  the priority, or null when there is none
create or replace function flowfabric._next_level(lanes text[], level int, capabilities text[], namespace text, closed int[])
returns int
language plpgsql stable as $$
#variable_conflict use_column
declare
    lane_name text;
    behind_priority int;
    behind_route int;
    place record;
    steps int;
    found int;
begin
    foreach lane_name in array lanes loop
        behind_priority := level;
        behind_route := 2147483647;
        steps := 500;
        loop
            with recursive pair as (
                select 0 as number, behind_priority as priority, behind_route as route, false as is_suited
                union all
                select p.number + 1, n.priority, n.route, n.route <> all (_next_level.closed) and exists (
                    select from flowfabric.routes r
                    where r.id = n.route and r.needs <@ _next_level.capabilities and r.namespace = coalesce(_next_level.namespace, r.namespace)
                    offset 0)
                from pair p cross join lateral (
                    (select t.priority, t.route from flowfabric.tickets t
                     where t.lane = lane_name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
                       and t.priority = p.priority and t.route > p.route
                     order by t.route limit 1)
                    union all
                    (select t.priority, t.route from flowfabric.tickets t
                     where t.lane = lane_name and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority < p.priority
                     order by t.priority desc, t.route limit 1)
                    limit 1) n
                where not p.is_suited and p.number < steps
            )
            select p.priority, p.route, p.is_suited, p.number < steps as is_over into place from pair p order by p.number desc limit 1;
            while not place.is_over and not place.is_suited loop
                place := flowfabric._read_pairs(lane_name, place.priority, place.route, capabilities, namespace, closed);
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

-- Read the next entries of what is ready in a lane, behind a pair of priority and route, and look up each route among them.
--
--   returns  the first pair that suits the worker and is not known to be closed, or else the last; whether it suits; whether
--            there are no more; and whether the entries are of few pairs
create or replace function flowfabric._read_pairs(
    lane text, inout priority int, inout route int, capabilities text[], namespace text, closed int[],
    out is_suited boolean, out is_over boolean, out is_dense boolean)
language plpgsql stable as $$
#variable_conflict use_column
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
         where t.lane = _read_pairs.lane and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority < _read_pairs.priority
         order by t.priority desc, t.route limit most)
        limit most
    ), routes as (
        select e.route, count(*) as amount, count(distinct e.priority) as pairs, max(e.priority) as priority from entries e group by e.route
    )
    select sum(x.amount) as amount, sum(x.pairs) as pairs,
           max(x.priority) filter (where x.route <> all (_read_pairs.closed) and exists (
               select from flowfabric.routes r
               where r.id = x.route and r.needs <@ _read_pairs.capabilities and r.namespace = coalesce(_read_pairs.namespace, r.namespace)
               offset 0)) as priority,
           (select array[e.priority, e.route] from entries e order by e.priority, e.route desc limit 1) as last into seen
    from routes x;
    is_suited := seen.priority is not null;
    is_over := not is_suited and coalesce(seen.amount, 0) < most;
    is_dense := 4 * seen.pairs < seen.amount;
    priority := coalesce(seen.priority, seen.last[1]);
    route := seen.last[2];
end $$;

-- Choose and lock up to so many ready tickets: strict priority; at equal priority routes take turns; within a route the
-- oldest first. It touches the routes it visits and the rows it takes, whatever the backlog: always along the index, which
-- is why other ways are closed, here and in all it calls.
--
--   locks    the tickets it chooses; skips those that are locked; the quotas of their routes
--   returns  their places
create or replace function flowfabric._choose(
    lanes text[], capabilities text[], namespace text, partitions int[], take int, after_route int, now timestamptz, may_wait boolean)
returns tid[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    chosen tid[] := '{}';
    level int := 32767;
    asked int;
    turns record;
    limits record;
    closed int[] := '{}';
    before int := -1;
    in_vain int := 0;
begin
    select '{}'::jsonb as rooms, '{}'::uuid[] as locked, '{}'::tid[] as places into limits;
    while cardinality(chosen) < take loop
        in_vain := case when cardinality(chosen) = before then in_vain + 1 else 0 end;
        before := cardinality(chosen);
        if in_vain < 3 then
            -- Lanes that have nothing need not be looked at again.
            select max(p.priority), array_agg(l.name) into level, lanes from unnest(lanes) l (name) cross join lateral (
                select t.priority from flowfabric.tickets t
                where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.priority < level
                order by t.priority desc limit 1) p;
        else
            level := flowfabric._next_level(lanes, level, capabilities, namespace, closed);
        end if;
        exit when level is null;
        select after_route as behind, after_route = 0 as wrapped into turns;
        loop
            asked := take - cardinality(chosen);
            turns := flowfabric._turn_order(lanes, level, after_route, capabilities, namespace, partitions, asked, turns.behind, turns.wrapped);
            exit when turns.routes = '{}';
            if turns.is_limited then
                turns := flowfabric._open_turns(lanes, level, after_route, capabilities, namespace, partitions, asked, now,
                    turns.behind, turns.wrapped, turns.routes, turns.route_lanes, limits.rooms, closed);
                closed := turns.closed;
                limits := flowfabric._serve_within(turns.routes, turns.route_lanes, level, asked, partitions, now, may_wait, turns.rooms, limits.locked);
                chosen := chosen || limits.places;
            else
                chosen := chosen || flowfabric._serve(turns.routes, turns.route_lanes, level, asked, partitions);
            end if;
            -- Others may hold all that these routes had: then the next ones have their turn before a lower priority has.
            exit when cardinality(turns.routes) < asked or cardinality(chosen) >= take;
        end loop;
    end loop;
    return chosen;
end $$;
