-- Routes: executions with the same lane, namespace, capabilities, budgets and quotas are admitted alike.
-- Whether a route is open is computed, never stored.

-- Check a set of capabilities: those that a submission needs, or those that a worker has.
--
--   refuses  invalid_capabilities, as a value
--   returns  the fault, or null if the set is valid
create or replace function flowfabric._capabilities_fault(what text, capabilities jsonb)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('invalid_capabilities',
        format('%s %s are invalid; use a list of up to 256 words without commas, whitespace or control characters, at '
               'most 4,096 bytes in total', _capabilities_fault.what,
               flowfabric._shown(_capabilities_fault.capabilities::text)), jsonb_build_object('cause', x.cause))
    from (select case
        when jsonb_typeof(_capabilities_fault.capabilities) is distinct from 'array' then 'not_array'
        else (
            select case
                when bool_or(jsonb_typeof(c.token) <> 'string') then 'non_string_token'
                when bool_or(c.token #>> '{}' = '') then 'empty_token'
                when bool_or(strpos(c.token #>> '{}', ',') > 0) then 'comma_in_token'
                when bool_or(
                    c.token #>> '{}' ~ '[\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000]')
                    then 'control_or_whitespace'
                when count(distinct c.token) > 256 then 'too_many_tokens'
                when octet_length(string_agg(distinct c.token #>> '{}', ',')) > 4096 then 'too_many_bytes'
            end
            from jsonb_array_elements(_capabilities_fault.capabilities) c (token))
        end as cause) x
    where x.cause is not null
$$;

-- Find a route by its fields, or create it and its lane. Only the first use of a route can wait for another
-- transaction.
--
--   moves    lane – → active, if it is new
--   returns  the route's id
create or replace function flowfabric._make_route(route flowfabric.routes)
returns int
language plpgsql as $$
begin
    perform flowfabric._add_lane(route.lane);
    return flowfabric._add_route(_make_route.route);
end $$;

-- Find a route by its fields, or create it. Its lane exists.
--
--   returns  the route's id
create or replace function flowfabric._add_route(route flowfabric.routes)
returns int
language plpgsql as $$
declare
    found_id int;
begin
    loop
        select r.id into found_id from flowfabric.routes r
        where r.lane = route.lane and r.namespace = route.namespace and r.digest = route.digest
          and r.budgets = route.budgets and r.quotas = route.quotas;
        exit when found;

        insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas, task, version)
        values (route.lane, route.namespace, route.needs, route.digest, route.budgets, route.quotas, route.task,
                route.version)
        on conflict do nothing
        returning id into found_id;
        exit when found_id is not null;
    end loop;
    return found_id;
end $$;

-- Create the routes that a call needs and that do not exist: those of the items that will be written, which are valid,
-- not duplicates, and the first with their id. In the order of their fields, so that two calls that create the same
-- routes cannot deadlock.
--
--   moves    lane – → active, if it is new
--   returns  the options, with the ids of the new routes filled in
create or replace function flowfabric._make_routes(
    inout options flowfabric.options[], options_of int[], partitions int[], ids uuid[], faults jsonb[], owners text[])
language plpgsql as $$
declare
    place int;
begin
    for place in
        select w.option from (
            select distinct x.option from (
                select distinct on (x.partition, x.id) x.* from unnest(
                    _make_routes.options_of, _make_routes.partitions, _make_routes.ids, _make_routes.faults,
                    _make_routes.owners) with ordinality as x (option, partition, id, fault, owner, item)
                where x.fault is null and x.owner is null
                order by x.partition, x.id, x.item) x
            left join lateral (
                select e.id from flowfabric.executions e
                where e.partition = x.partition and e.id = x.id offset 0) e on true
            where e.id is null) w
        cross join lateral (select ((options[w.option]).route).*) r
        where r.id is null order by r.lane, r.namespace, r.needs, r.budgets, r.quotas
    loop
        options[place].route.id := flowfabric._make_route((options[place]).route);
    end loop;
end $$;

-- Look up the budgets or the quotas of a submission by name or id. One that does not exist is refused, never ignored.
--
--   refuses  invalid_body, budget_not_found, as a value
--   returns  their distinct ids, in order; or the fault
create or replace function flowfabric._find_limits(
    what text, namespace text, words jsonb, out ids uuid[], out fault jsonb)
language plpgsql stable as $$
declare
    missing text;
begin
    ids := '{}';
    if _find_limits.words = '[]' then
        return;
    elsif jsonb_typeof(_find_limits.words) <> 'array' or jsonb_array_length(_find_limits.words) > 16
          or jsonb_path_exists(_find_limits.words, '$[*] ? (@.type() != "string")') then
        fault := flowfabric._fault('invalid_body',
            format('%s %s are invalid; use a list of up to 16 names', _find_limits.what,
                   flowfabric._shown(_find_limits.words::text)), jsonb_build_object('field', _find_limits.what));
        return;
    end if;
    select array_agg(distinct f.id), (array_agg(w.word order by w.place) filter (where f.id is null))[1]
    into ids, missing from jsonb_array_elements_text(_find_limits.words) with ordinality as w (word, place)
    cross join lateral (
        select case _find_limits.what when 'budgets' then flowfabric._find_budget(_find_limits.namespace, w.word)
                                      else (flowfabric._find_quota(_find_limits.namespace, w.word)).id end as id) f;
    if missing is not null then
        fault := case _find_limits.what
            when 'budgets' then flowfabric._fault('budget_not_found', format(
                'budget %s does not exist in namespace %s; check the name, or use create_budget to create it',
                flowfabric._shown(missing), flowfabric._shown(_find_limits.namespace)))
            else flowfabric._missing_quota(_find_limits.namespace, missing) end;
    end if;
end $$;

-- Check the fields of a route, and look it up.
--
--   refuses  invalid_lane, invalid_namespace, as a value
--   returns  the route, without an id if it does not exist; or the fault
create or replace function flowfabric._read_route(
    lane text, namespace text, needs jsonb, budgets jsonb, quotas jsonb, out route flowfabric.routes, out fault jsonb)
language plpgsql stable as $$
declare
    lane_state flowfabric.lane_state;
begin
    route.lane := _read_route.lane;
    route.namespace := _read_route.namespace;
    fault := coalesce(flowfabric._label_fault('invalid_lane', 'lane name', _read_route.lane),
                      flowfabric._label_fault('invalid_namespace', 'namespace', _read_route.namespace));
    if fault is null and _read_route.needs <> '[]' then
        fault := flowfabric._capabilities_fault('needs', _read_route.needs);
    end if;
    if fault is null then
        route.needs := flowfabric._sorted_set(_read_route.needs);
        route.digest := md5(array_to_string(route.needs, ','));
        select f.ids, f.fault into route.budgets, fault
        from flowfabric._find_limits('budgets', _read_route.namespace, _read_route.budgets) f;
    end if;
    if fault is null then
        select f.ids, f.fault into route.quotas, fault
        from flowfabric._find_limits('quotas', _read_route.namespace, _read_route.quotas) f;
    end if;
    if fault is null then
        -- A route is created after its lane: without the lane there is no route.
        select l.state, r.id into lane_state, route.id from flowfabric.lanes l
        left join flowfabric.routes r on r.lane = l.name and r.namespace = route.namespace
            and r.digest = route.digest and r.budgets = route.budgets and r.quotas = route.quotas
        where l.name = route.lane;
        if lane_state = 'draining' then
            route.id := null;
            fault := flowfabric._draining_fault(route.lane);
        end if;
    end if;
end $$;

-- Build the error for a submission to a draining lane.
--
--   refuses  lane_draining, as a value
create or replace function flowfabric._draining_fault(lane text)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('lane_draining',
        format('lane %s is draining and accepts no new work; use resume_lane to open it',
               flowfabric._shown(_draining_fault.lane)))
$$;

-- Create a route before its first submission, so that a submission inside a long transaction does not have to.
--
--   moves    lane – → active, if it is new
--   emits    lane_registered, if it is new
--   refuses  invalid_lane, invalid_namespace, invalid_capabilities, invalid_body, budget_not_found, quota_not_found,
--            lane_draining
--   returns  the route's id
create or replace function flowfabric.register_route(
    lane text, namespace text default 'default', needs text default '[]', budgets text default '[]',
    quotas text default '[]')
returns int
language plpgsql as $$
declare
    read record;
begin
    read := flowfabric._read_route(
        register_route.lane, register_route.namespace, register_route.needs::jsonb, register_route.budgets::jsonb,
        register_route.quotas::jsonb);
    perform flowfabric._raise(read.fault);
    return flowfabric._make_route(read.route);
end $$;

-- The word among the needs of a route that only workers with this version of the task have. It contains spaces, so it
-- is never a capability.
create or replace function flowfabric._version_word(task text, version int)
returns text
language sql immutable as $$
    select format('%s version %s', _version_word.task, _version_word.version)
$$;

-- The route of executions of another route that have started under a version of their task: admitted alike, but only
-- to workers that have that version. Created if it does not exist, which may wait for another transaction.
--
--   returns  the route's id
create or replace function flowfabric._version_route(route int, task text, version int)
returns int
language plpgsql as $$
declare
    pinned flowfabric.routes;
begin
    select r.* into pinned from flowfabric.routes r where r.id = _version_route.route;
    pinned.task := _version_route.task;
    pinned.version := _version_route.version;
    pinned.needs := pinned.needs || flowfabric._version_word(pinned.task, pinned.version);
    pinned.digest := md5(format('%s %s %s', pinned.digest, pinned.version, pinned.task));
    return flowfabric._add_route(pinned);
end $$;
