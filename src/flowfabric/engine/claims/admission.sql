-- Admission: which routes are closed by a budget or a quota, and how much the open ones may give. Only routes that have one
-- come here.

-- Leave out the routes that are closed: a budget of theirs is exhausted, or a quota has no room. What a claim has learnt of
-- a quota it does not ask again.
--
--   returns  the open ones and their lanes, in their order; and what each quota looked at so far admits
create or replace function flowfabric._open_routes(take int, now timestamptz, inout routes int[], inout route_lanes text[], inout rooms jsonb)
language plpgsql stable as $$
#variable_conflict use_column
declare
    fresh uuid[];
begin
    select coalesce(array_agg(x.route order by x.turn), '{}'), coalesce(array_agg(x.lane order by x.turn), '{}') into routes, route_lanes
    from unnest(_open_routes.routes, _open_routes.route_lanes) with ordinality as x (route, lane, turn)
    cross join lateral (select r.budgets from flowfabric.routes r where r.id = x.route offset 0) r
    where r.budgets = '{}' or not coalesce(flowfabric._budgets_closed(r.budgets, _open_routes.now), true);

    fresh := array(
        select distinct u.id from unnest(_open_routes.routes) x (route)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
        cross join lateral unnest(r.quotas) u (id)
        where not _open_routes.rooms ? u.id::text);
    rooms := flowfabric._noted_rooms(rooms, fresh, flowfabric._rooms(fresh, take, now));
    if rooms = '{}' then
        return;
    end if;
    select coalesce(array_agg(x.route order by x.turn), '{}'), coalesce(array_agg(x.lane order by x.turn), '{}') into routes, route_lanes
    from unnest(_open_routes.routes, _open_routes.route_lanes) with ordinality as x (route, lane, turn)
    cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
    where not exists (select from unnest(r.quotas) u (id) where _open_routes.rooms -> u.id::text = '0');
end $$;

-- What a claim knows of quotas, with what it has learnt of some.
--
--   returns  how many more each admits, by its id
create or replace function flowfabric._noted_rooms(rooms jsonb, quotas uuid[], amounts bigint[])
returns jsonb
language sql immutable as $$
    select _noted_rooms.rooms || coalesce(jsonb_object_agg(x.id, x.amount), '{}')
    from unnest(_noted_rooms.quotas, _noted_rooms.amounts) x (id, amount)
$$;

-- Of the routes that take their turn at one priority, the open ones. Where many are closed the walk goes on behind them, in
-- growing strides, until there are as many as there is work to take: each gets one before any gets a second.
--
--   returns  their numbers and lanes, in turn order; where to go on; what each quota looked at so far admits; and routes
--            that are known to be closed, not all of them when there are many. Fewer than asked for are all there are
create or replace function flowfabric._open_turns(
    lanes text[], level int, after_route int, capabilities text[], namespace text, partitions int[], most int, now timestamptz,
    inout behind int, inout wrapped boolean, inout routes int[], inout route_lanes text[], inout rooms jsonb, inout closed int[])
language plpgsql stable as $$
declare
    stride int := most;
    walked int := cardinality(routes);
    found record := flowfabric._open_routes(most, now, routes, route_lanes, rooms);
    turns record;
begin
    closed := flowfabric._noted_closed(closed, routes, found.routes);
    routes := found.routes;
    route_lanes := found.route_lanes;
    while cardinality(routes) < most and walked >= stride loop
        stride := least(2 * stride, 1000);
        turns := flowfabric._turn_order(lanes, level, after_route, capabilities, namespace, partitions, stride, behind, wrapped);
        walked := cardinality(turns.routes);
        exit when walked = 0;
        behind := turns.behind;
        wrapped := turns.wrapped;
        found := flowfabric._open_routes(most, now, turns.routes, turns.route_lanes, found.rooms);
        closed := flowfabric._noted_closed(closed, turns.routes, found.routes);
        routes := routes || found.routes;
        route_lanes := route_lanes || found.route_lanes;
    end loop;
    rooms := found.rooms;
end $$;

-- Routes that are known to be closed, with those of some that were not found open: up to 1 000, so that looking there stays
-- cheap.
--
--   returns  the routes
create or replace function flowfabric._noted_closed(closed int[], walked int[], opened int[])
returns int[]
language plpgsql immutable as $$
begin
    if cardinality(walked) = cardinality(opened) or cardinality(closed) >= 1000 then
        return closed;
    end if;
    return closed || array(select unnest(walked) except select unnest(opened) except select unnest(closed));
end $$;

-- Lock the quotas of some routes that a claim has not locked yet, and count anew: before, somebody else may have been
-- admitting. In key order; one that comes before those it holds already is not waited for, and admits nothing this time. A
-- claim that holds other things besides waits for none.
--
--   locks    the quotas, in key order
--   returns  what each quota known admits, and those that are locked
create or replace function flowfabric._lock_rooms(routes int[], take int, now timestamptz, may_wait boolean, inout rooms jsonb, inout locked uuid[])
language plpgsql as $$
#variable_conflict use_column
declare
    wanted uuid[] := array(
        select distinct u.id from unnest(_lock_rooms.routes) x (route)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
        cross join lateral unnest(r.quotas) u (id)
        where u.id <> all (_lock_rooms.locked));
    highest uuid := (select u.id from unnest(_lock_rooms.locked) u (id) order by u.id desc limit 1);
    held uuid[];
begin
    if wanted = '{}' then
        return;
    end if;
    held := array(select q.id from flowfabric.quotas q
                  where q.id = any (wanted) and _lock_rooms.may_wait and (highest is null or q.id > highest) order by q.id for update);
    if cardinality(held) < cardinality(wanted) then
        held := held || array(select q.id from flowfabric.quotas q
                              where q.id = any (wanted) and q.id <> all (held) order by q.id for update skip locked);
    end if;
    perform flowfabric._drop_slots(array(
        select q.id from flowfabric.quotas q
        where q.id = any (held) and case when q.max_concurrent is not null then q.max_concurrent - _lock_rooms.take < (
            select count(*) from flowfabric.quota_slots s where s.partition = q.partition and s.quota = q.id) end));
    rooms := flowfabric._noted_rooms(rooms, wanted, array_fill(0::bigint, array[cardinality(wanted)]));
    rooms := flowfabric._noted_rooms(rooms, held, flowfabric._rooms(held, take, now));
    locked := locked || held;
end $$;

-- Serve open routes of one priority in turn, as far as their quotas go: as many at a time as there is work to take, so that
-- no more quotas are locked than that needs.
--
--   locks    the tickets it chooses; skips those that are locked; the quotas of their routes, in key order
--   returns  their places; what each quota known admits, and those that are locked
create or replace function flowfabric._serve_within(
    routes int[], route_lanes text[], level int, take int, partitions int[], now timestamptz, may_wait boolean,
    inout rooms jsonb, inout locked uuid[], out places tid[])
language plpgsql as $$
declare
    asked int;
    limits record;
    served record;
begin
    places := '{}';
    while cardinality(routes) > 0 and cardinality(places) < take loop
        asked := take - cardinality(places);
        limits := flowfabric._lock_rooms(routes[:asked], asked, now, may_wait, rooms, locked);
        served := flowfabric._serve_shares(routes[:asked], route_lanes[:asked], level, asked, partitions, limits.rooms);
        rooms := served.rooms;
        locked := limits.locked;
        places := places || served.places;
        routes := routes[asked + 1 :];
        route_lanes := route_lanes[asked + 1 :];
    end loop;
end $$;

-- Serve routes in turn until so many tickets are chosen, or none is left, or their quotas have no more room: one each, then
-- a second each, and what a route cannot fill goes to the others.
--
--   locks    the tickets it chooses; skips those that are locked
--   returns  their places, and what each quota known still admits
create or replace function flowfabric._serve_shares(
    routes int[], route_lanes text[], level int, take int, partitions int[], inout rooms jsonb, out places tid[])
language plpgsql as $$
declare
    amount constant int := cardinality(routes);
    behind timestamptz[] := array_fill('-infinity'::timestamptz, array[amount]);
    is_spent boolean[] := array_fill(false, array[amount]);
    quotas record := flowfabric._quotas_of(routes, rooms);
    shares int[];
    counts int[];
    served record;
begin
    places := '{}';
    loop
        shares := flowfabric._shares(is_spent, take - cardinality(places), quotas.places, quotas.ends, quotas.rooms);
        exit when 0 = all (shares);
        served := flowfabric._lock_ready(routes, route_lanes, behind, level, shares, places, partitions);
        places := places || served.places;
        counts := array_fill(0, array[amount]);
        for number in 1 .. cardinality(served.places) loop
            counts[served.turns[number]] := counts[served.turns[number]] + 1;
            behind[served.turns[number]] := greatest(behind[served.turns[number]], served.ages[number]);
        end loop;
        for turn in 1 .. amount loop
            is_spent[turn] := is_spent[turn] or counts[turn] < shares[turn];
        end loop;
        quotas.rooms := flowfabric._spend(counts, quotas.places, quotas.ends, quotas.rooms);
        exit when cardinality(places) >= take;
    end loop;
    rooms := flowfabric._noted_rooms(rooms, quotas.ids, quotas.rooms);
end $$;

-- The quotas of some routes, and what is known of each.
--
--   returns  their ids and how many more each admits; for the routes, one behind the other, where in that list their quotas
--            stand, and where those of each route end
create or replace function flowfabric._quotas_of(routes int[], known jsonb, out ids uuid[], out rooms bigint[], out places int[], out ends int[])
language plpgsql stable as $$
#variable_conflict use_column
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
            rooms[place] := coalesce((known ->> quota::text)::bigint, 0);
            places := places || place;
        end loop;
        ends := ends || cardinality(places);
    end loop;
end $$;

-- Share what is left to take among routes in turn: one each, then a second each, as far as their quotas go. Routes that
-- have nothing more to give are passed over.
--
--   returns  how many each may give, in the order of the routes
create or replace function flowfabric._shares(is_spent boolean[], take int, places int[], ends int[], rooms bigint[])
returns int[]
language plpgsql immutable as $$
declare
    shares int[] := array_fill(0, array[cardinality(is_spent)]);
    before int;
    first int;
begin
    loop
        before := take;
        <<turns>>
        for turn in 1 .. cardinality(shares) loop
            exit when take = 0;
            continue when is_spent[turn];
            first := coalesce(ends[turn - 1], 0) + 1;
            for number in first .. ends[turn] loop
                continue turns when rooms[places[number]] <= 0;
            end loop;
            for number in first .. ends[turn] loop
                rooms[places[number]] := rooms[places[number]] - 1;
            end loop;
            shares[turn] := shares[turn] + 1;
            take := take - 1;
        end loop;
        exit when take in (0, before);
    end loop;
    return shares;
end $$;

-- Take what routes have given off the room of their quotas.
--
--   returns  how many more each quota admits
create or replace function flowfabric._spend(counts int[], places int[], ends int[], rooms bigint[])
returns bigint[]
language plpgsql immutable as $$
begin
    for turn in 1 .. cardinality(counts) loop
        for number in coalesce(ends[turn - 1], 0) + 1 .. ends[turn] loop
            rooms[places[number]] := rooms[places[number]] - counts[turn];
        end loop;
    end loop;
    return rooms;
end $$;
