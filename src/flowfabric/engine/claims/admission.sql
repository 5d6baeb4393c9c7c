-- Admission: which routes a budget or quota closes, and how many executions the open routes may supply. Routes without
-- budgets and quotas do not use these functions.

-- Drop the routes that are closed: one of their budgets is exhausted or one of their quotas is full. A quota that this
-- claim has already checked is not checked again.
--
--   returns  the open routes and their lanes, in the given order; and how many more executions each checked quota
--            admits
create or replace function flowfabric._open_routes(
    take int, now timestamptz, inout routes int[], inout route_lanes text[], inout rooms jsonb)
language plpgsql stable as $$
begin
    select coalesce(array_agg(x.route order by x.turn), '{}'), coalesce(array_agg(x.lane order by x.turn), '{}')
    into routes, route_lanes
    from unnest(_open_routes.routes, _open_routes.route_lanes) with ordinality as x (route, lane, turn)
    cross join lateral (select r.budgets from flowfabric.routes r where r.id = x.route offset 0) r
    where r.budgets = '{}' or not coalesce(flowfabric._budgets_closed(r.budgets, _open_routes.now), true);

    -- Grants count until a sweep or a claim expires them. A quota that does not exist admits nothing.
    rooms := rooms || coalesce((
        select jsonb_object_agg(f.id, coalesce((
                   select flowfabric._quota_room(q, _open_routes.now, '-infinity', _open_routes.take)
                   from flowfabric.quotas q where q.id = f.id), 0))
        from (select distinct u.id from unnest(_open_routes.routes) x (route)
              cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
              cross join lateral unnest(r.quotas) u (id)
              where not _open_routes.rooms ? u.id::text) f), '{}');
    if rooms = '{}' then
        return;
    end if;
    select coalesce(array_agg(x.route order by x.turn), '{}'), coalesce(array_agg(x.lane order by x.turn), '{}')
    into routes, route_lanes
    from unnest(_open_routes.routes, _open_routes.route_lanes) with ordinality as x (route, lane, turn)
    cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
    where not exists (select from unnest(r.quotas) u (id) where _open_routes.rooms -> u.id::text = '0');
end $$;

-- From the routes whose turn it is at one priority, keep the open ones. If many are closed, the scan continues with the
-- routes after them, in strides that double, until it has as many open routes as executions to take: every route gets
-- one before any gets a second.
--
--   returns  the route numbers and lanes, in turn order; where the scan stopped; the capacity of each checked quota;
--            and routes known to be closed (not all of them when there are many). Fewer routes than asked for means
--            that there are no more
create or replace function flowfabric._open_turns(
    lanes text[], level int, after_route int, capabilities text[], namespace text, partitions int[], most int,
    now timestamptz, inout behind int, inout wrapped boolean, inout routes int[], inout route_lanes text[],
    inout rooms jsonb, inout closed int[])
language plpgsql stable as $$
declare
    stride int := _open_turns.most;
    turns record;
    found record;
begin
    select routes as routes, route_lanes as route_lanes, behind as behind, wrapped as wrapped into turns;
    routes := '{}';
    route_lanes := '{}';
    loop
        found := flowfabric._open_routes(_open_turns.most, _open_turns.now, turns.routes, turns.route_lanes, rooms);
        rooms := found.rooms;
        routes := routes || found.routes;
        route_lanes := route_lanes || found.route_lanes;
        -- At most 1,000 are remembered, so that searching them stays cheap.
        if cardinality(turns.routes) > cardinality(found.routes) and cardinality(closed) < 1000 then
            closed := closed || array(
                select unnest(turns.routes) except select unnest(found.routes) except select unnest(closed));
        end if;
        exit when cardinality(routes) >= _open_turns.most or cardinality(turns.routes) < stride;
        stride := least(2 * stride, 1000);
        turns := flowfabric._turn_order(_open_turns.lanes, _open_turns.level, _open_turns.after_route,
                                        _open_turns.capabilities, _open_turns.namespace, _open_turns.partitions, stride,
                                        behind, wrapped);
        exit when turns.routes = '{}';
        behind := turns.behind;
        wrapped := turns.wrapped;
    end loop;
end $$;

-- Lock stripes of the quotas of these routes from which the claim has locked none yet, with room for as many executions
-- as it takes. Quotas are visited in key order. For one that sorts before those it has locked, it does not wait, and
-- neither does a claim that holds other locks too: such a quota admits nothing this time.
--
--   returns  the capacity of each known quota, the locked quotas, and the ctids of their stripes
create or replace function flowfabric._lock_rooms(
    routes int[], take int, now timestamptz, may_wait boolean, inout rooms jsonb, inout locked uuid[],
    inout stripes tid[])
language plpgsql as $$
declare
    wanted uuid[] := array(
        select distinct u.id from unnest(_lock_rooms.routes) x (route)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
        cross join lateral unnest(r.quotas) u (id)
        where u.id <> all (_lock_rooms.locked)
        order by u.id);
    highest uuid := (select u.id from unnest(_lock_rooms.locked) u (id) order by u.id desc limit 1);
    quota uuid;
    held record;
begin
    foreach quota in array wanted loop
        held := flowfabric._lock_stripes(
            quota, least(_lock_rooms.take, (rooms ->> quota::text)::bigint), _lock_rooms.now,
            _lock_rooms.may_wait and (highest is null or quota > highest));
        rooms := rooms || jsonb_build_object(quota, held.room);
        locked := locked || quota;
        stripes := stripes || held.stripes;
    end loop;
end $$;

-- Serve the open routes of one priority in turn, within their quotas: per round as many routes as executions are still
-- to be taken, so that no more quotas are locked than needed.
--
--   returns  the ctids of the tickets; the capacity of each known quota, the locked quotas, and the ctids of their
--            stripes
create or replace function flowfabric._serve_within(
    routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz, may_wait boolean,
    skips_late boolean, inout rooms jsonb, inout locked uuid[], inout stripes tid[], out places tid[])
language plpgsql as $$
declare
    asked int;
    limits record;
    served record;
begin
    places := '{}';
    while cardinality(_serve_within.routes) > 0 and cardinality(places) < _serve_within.take loop
        asked := _serve_within.take - cardinality(places);
        limits := flowfabric._lock_rooms(_serve_within.routes[:asked], asked, _serve_within.now, _serve_within.may_wait,
                                         rooms, locked, stripes);
        served := flowfabric._serve_shares(_serve_within.routes[:asked], _serve_within.route_lanes[:asked],
                                           _serve_within.level, asked, _serve_within.partitions, _serve_within.now,
                                           _serve_within.skips_late, limits.rooms);
        rooms := served.rooms;
        locked := limits.locked;
        stripes := limits.stripes;
        places := places || served.places;
        _serve_within.routes := _serve_within.routes[asked + 1 :];
        _serve_within.route_lanes := _serve_within.route_lanes[asked + 1 :];
    end loop;
end $$;

-- Serve routes round-robin until `take` tickets are chosen, no ticket is left, or the quotas are full: one ticket per
-- route, then a second one each. If a route has too few tickets, the others supply more.
--
--   returns  the ctids of the tickets, and the remaining capacity of each known quota
create or replace function flowfabric._serve_shares(
    routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz, skips_late boolean,
    inout rooms jsonb, out places tid[])
language plpgsql as $$
declare
    amount constant int := cardinality(_serve_shares.routes);
    behind timestamptz[] := array_fill('-infinity'::timestamptz, array[amount]);
    is_spent boolean[] := array_fill(false, array[amount]);
    quotas record := flowfabric._quotas_of(_serve_shares.routes, rooms);
    amounts bigint[] := quotas.rooms;
    shares int[];
    counts int[];
    served record;
    place int;
begin
    places := '{}';
    loop
        shares := flowfabric._shares(is_spent, _serve_shares.take - cardinality(places), quotas.places, quotas.ends,
                                     amounts);
        exit when 0 = all (shares);
        served := flowfabric._lock_ready(_serve_shares.routes, _serve_shares.route_lanes, behind, _serve_shares.level,
                                         shares, places, _serve_shares.partitions, _serve_shares.now,
                                         _serve_shares.skips_late);
        places := places || served.places;
        counts := array_fill(0, array[amount]);
        for number in 1 .. cardinality(served.places) loop
            counts[served.turns[number]] := counts[served.turns[number]] + 1;
            behind[served.turns[number]] := greatest(behind[served.turns[number]], served.ages[number]);
        end loop;
        for turn in 1 .. amount loop
            is_spent[turn] := is_spent[turn] or counts[turn] < shares[turn];
            for number in coalesce(quotas.ends[turn - 1], 0) + 1 .. quotas.ends[turn] loop
                place := quotas.places[number];
                amounts[place] := amounts[place] - counts[turn];
            end loop;
        end loop;
        exit when cardinality(places) >= _serve_shares.take;
    end loop;
    rooms := rooms || coalesce((
        select jsonb_object_agg(x.id, x.amount) from unnest(quotas.ids, amounts) x (id, amount)), '{}');
end $$;

-- The quotas of these routes and their known capacity.
--
--   returns  the quota ids and the capacity of each; for the routes, concatenated, the positions of their quotas in
--            that list, and where the positions of each route end
create or replace function flowfabric._quotas_of(
    routes int[], known jsonb, out ids uuid[], out rooms bigint[], out places int[], out ends int[])
language plpgsql stable as $$
declare
    route record;
    quota uuid;
    place int;
begin
    ids := '{}';
    places := '{}';
    for route in
        select r.quotas from unnest(_quotas_of.routes) with ordinality as x (number, turn)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.number offset 0) r
        order by x.turn
    loop
        foreach quota in array route.quotas loop
            place := coalesce(array_position(ids, quota), cardinality(ids) + 1);
            ids[place] := quota;
            rooms[place] := coalesce((_quotas_of.known ->> quota::text)::bigint, 0);
            places := places || place;
        end loop;
        ends := ends || cardinality(places);
    end loop;
end $$;

-- Split the executions still to be taken among routes round-robin, within their quotas. Routes that have no more
-- tickets are skipped.
--
--   returns  how many tickets to take from each route, in route order
create or replace function flowfabric._shares(is_spent boolean[], take int, places int[], ends int[], rooms bigint[])
returns int[]
language plpgsql immutable as $$
declare
    shares int[] := array_fill(0, array[cardinality(_shares.is_spent)]);
    before int;
    first int;
begin
    loop
        before := _shares.take;
        <<turns>>
        for turn in 1 .. cardinality(shares) loop
            exit when _shares.take = 0;
            continue when _shares.is_spent[turn];
            first := coalesce(_shares.ends[turn - 1], 0) + 1;
            for number in first .. _shares.ends[turn] loop
                continue turns when _shares.rooms[_shares.places[number]] <= 0;
            end loop;
            for number in first .. _shares.ends[turn] loop
                _shares.rooms[_shares.places[number]] := _shares.rooms[_shares.places[number]] - 1;
            end loop;
            shares[turn] := shares[turn] + 1;
            _shares.take := _shares.take - 1;
        end loop;
        exit when _shares.take in (0, before);
    end loop;
    return shares;
end $$;
