-- Routes: the class of executions that are admitted alike. Whether one is open is computed, never stored.

-- Why a set of capabilities cannot be accepted.
--
--   returns  the cause, or null when it can
create or replace function flowfabric._capabilities_cause(capabilities jsonb)
returns text
language sql immutable as $$
    select case
        when jsonb_typeof(_capabilities_cause.capabilities) <> 'array' then 'not_array'
        else (
            select case
                when bool_or(jsonb_typeof(c.token) <> 'string') then 'non_string_token'
                when bool_or(c.token #>> '{}' = '') then 'empty_token'
                when bool_or(strpos(c.token #>> '{}', ',') > 0) then 'comma_in_token'
                when bool_or(c.token #>> '{}' ~ '[\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000]')
                    then 'control_or_whitespace'
                when count(distinct c.token) > 256 then 'too_many_tokens'
                when octet_length(string_agg(distinct c.token #>> '{}', ',')) > 4096 then 'too_many_bytes'
            end
            from jsonb_array_elements(_capabilities_cause.capabilities) c (token))
    end
$$;

-- A set of words as it is stored and compared: each once, in byte order.
--
--   returns  the sorted set
create or replace function flowfabric._sorted_set(words jsonb)
returns text[]
language plpgsql immutable as $$
begin
    if words = '[]' then
        return '{}';
    end if;
    return array(select distinct w.word collate "C" from jsonb_array_elements_text(_sorted_set.words) w (word) order by 1);
end $$;

-- The route of these words, if it is known.
--
--   returns  the route's number, or null
create or replace function flowfabric._known_route(lane text, namespace text, needs text[], budgets uuid[], quotas uuid[])
returns int
language plpgsql stable as $$
#variable_conflict use_column
begin
    return (
        select r.id from flowfabric.routes r
        where r.lane = _known_route.lane and r.namespace = _known_route.namespace
          and r.digest = md5(array_to_string(_known_route.needs, ',')) and r.budgets = _known_route.budgets and r.quotas = _known_route.quotas);
end $$;

-- Find the route of these words, or make it and its lane. Only a route's very first use can wait for another transaction.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   returns  the route's number
create or replace function flowfabric._make_route(lane text, namespace text, needs text[], budgets uuid[], quotas uuid[])
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    found_id int;
begin
    perform flowfabric._register_lane(_make_route.lane);
    loop
        found_id := flowfabric._known_route(_make_route.lane, _make_route.namespace, _make_route.needs, _make_route.budgets, _make_route.quotas);
        exit when found_id is not null;

        insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
        values (_make_route.lane, _make_route.namespace, _make_route.needs, md5(array_to_string(_make_route.needs, ',')),
                _make_route.budgets, _make_route.quotas)
        on conflict do nothing
        returning id into found_id;
        exit when found_id is not null;
    end loop;
    return found_id;
end $$;

-- The budgets that are named by a list of words.
--
--   returns  their ids, each once, in order; those that are not there are left out
create or replace function flowfabric._budget_ids(namespace text, words jsonb)
returns uuid[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    if words = '[]' then
        return '{}';
    end if;
    return array(
        select distinct b.id from jsonb_array_elements_text(_budget_ids.words) w (word)
        cross join lateral flowfabric._find_budget(_budget_ids.namespace, w.word) b (id)
        where b.id is not null order by b.id);
end $$;

-- What is wrong with the budgets that an execution names. One that is not there is refused, never ignored.
--
--   refuses  invalid_body, budget_not_found, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._budgets_fault(namespace text, words jsonb)
returns jsonb
language sql stable as $$
    select case
        when _budgets_fault.words = '[]' then null
        when jsonb_typeof(_budgets_fault.words) <> 'array' or jsonb_path_exists(_budgets_fault.words, '$[*] ? (@.type() != "string")')
             or jsonb_array_length(_budgets_fault.words) > 16 then
            flowfabric._fault('invalid_body', format('budgets %s: give a list of up to 16 names', flowfabric._shown(_budgets_fault.words::text)),
                              '{"field": "budgets"}')
        else (
            select flowfabric._fault('budget_not_found', format(
                'no budget %s in namespace %s; make it first, or leave it out', flowfabric._shown(w.word), _budgets_fault.namespace))
            from jsonb_array_elements_text(_budgets_fault.words) with ordinality as w (word, place)
            where flowfabric._find_budget(_budgets_fault.namespace, w.word) is null order by w.place limit 1)
    end
$$;

-- The quotas that are named by a list of words.
--
--   returns  their ids, each once, in order; those that are not there are left out
create or replace function flowfabric._quota_ids(namespace text, words jsonb)
returns uuid[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    if words = '[]' then
        return '{}';
    end if;
    return array(
        select distinct q.id from jsonb_array_elements_text(_quota_ids.words) w (word)
        cross join lateral flowfabric._find_quota(_quota_ids.namespace, w.word) q
        where q.id is not null order by q.id);
end $$;

-- What is wrong with the quotas that an execution names.
--
--   refuses  invalid_body, quota_not_found, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._quotas_fault(namespace text, words jsonb)
returns jsonb
language sql stable as $$
    select case
        when _quotas_fault.words = '[]' then null
        when jsonb_typeof(_quotas_fault.words) <> 'array' or jsonb_path_exists(_quotas_fault.words, '$[*] ? (@.type() != "string")')
             or jsonb_array_length(_quotas_fault.words) > 16 then
            flowfabric._fault('invalid_body', format('quotas %s: give a list of up to 16 names', flowfabric._shown(_quotas_fault.words::text)),
                              '{"field": "quotas"}')
        else (
            select flowfabric._missing_quota(_quotas_fault.namespace, w.word)
            from jsonb_array_elements_text(_quotas_fault.words) w (word)
            where (flowfabric._find_quota(_quotas_fault.namespace, w.word)).id is null limit 1)
    end
$$;

-- Make those routes of a call that are new and wanted, in the order of their words, so that two calls that make the same
-- routes cannot wait for each other.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   returns  the routes, with the numbers of the new ones filled in
create or replace function flowfabric._make_routes(
    routes int[], lanes text[], namespaces text[], needs jsonb[], budgets text[], quotas text[], wanted int[])
returns int[]
language plpgsql as $$
#variable_conflict use_column
declare
    fresh record;
begin
    for fresh in
        select x.number, x.lane, x.namespace, flowfabric._sorted_set(x.needs) as needs, x.budgets::uuid[] as budgets, x.quotas::uuid[] as quotas
        from unnest(_make_routes.routes, _make_routes.lanes, _make_routes.namespaces, _make_routes.needs, _make_routes.budgets, _make_routes.quotas)
             with ordinality as x (route, lane, namespace, needs, budgets, quotas, number)
        where x.route is null and x.number = any (_make_routes.wanted)
        order by x.lane collate "C", x.namespace collate "C", 4, 5, 6
    loop
        routes[fresh.number] := flowfabric._make_route(fresh.lane, fresh.namespace, fresh.needs, fresh.budgets, fresh.quotas);
    end loop;
    return routes;
end $$;

-- Why these words cannot be a route. A character out of place is looked for, and the length counted beside it: a pattern
-- that counts is ten times as dear.
--
--   refuses  invalid_lane, invalid_namespace, invalid_capabilities, invalid_body, budget_not_found, quota_not_found, as a
--            value
--   returns  the fault, or null when they can
create or replace function flowfabric._words_fault(lane text, namespace text, needs jsonb, budgets jsonb, quotas jsonb)
returns jsonb
language plpgsql stable as $$
declare
    cause text;
    fault jsonb;
begin
    if octet_length(lane) not between 1 and 64 or lane ~ '[^\x20-\x7e]' then
        return flowfabric._fault('invalid_lane', format('lane %s: a lane is 1 to 64 printable ASCII characters', flowfabric._shown(lane)));
    elsif octet_length(namespace) not between 1 and 64 or namespace ~ '[^\x20-\x7e]' then
        return flowfabric._fault('invalid_namespace',
            format('namespace %s: a namespace is 1 to 64 printable ASCII characters', flowfabric._shown(namespace)));
    end if;
    if needs <> '[]' then
        cause := flowfabric._capabilities_cause(needs);
        if cause is not null then
            return flowfabric._fault('invalid_capabilities',
                format('needs %s: give a list of up to 256 words without comma, space or control character, 4 096 bytes in all',
                       flowfabric._shown(needs::text)), jsonb_build_object('cause', cause));
        end if;
    end if;
    if budgets <> '[]' then
        fault := flowfabric._budgets_fault(namespace, budgets);
    end if;
    if fault is null and quotas <> '[]' then
        fault := flowfabric._quotas_fault(namespace, quotas);
    end if;
    return fault;
end $$;

-- The refusal of a lane that is emptied.
--
--   refuses  lane_draining, as a value
--   returns  the fault
create or replace function flowfabric._draining_fault(lane text)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('lane_draining',
        format('lane %s is draining and takes no new work; resume_lane opens it', flowfabric._shown(_draining_fault.lane)))
$$;

-- Make a route known before its first submission, so that a submission inside a long transaction need not.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   refuses  invalid_lane, invalid_namespace, invalid_capabilities, invalid_body, budget_not_found, quota_not_found,
--            lane_draining
--   returns  the route's number
create or replace function flowfabric.register_route(
    lane text, namespace text default 'default', needs text default '[]', budgets text default '[]', quotas text default '[]')
returns int
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._raise(flowfabric._words_fault(
        register_route.lane, register_route.namespace, register_route.needs::jsonb, register_route.budgets::jsonb, register_route.quotas::jsonb));
    if exists (select from flowfabric.lanes l where l.name = register_route.lane and l.state = 'draining') then
        perform flowfabric._raise(flowfabric._draining_fault(register_route.lane));
    end if;
    return flowfabric._make_route(
        register_route.lane, register_route.namespace, flowfabric._sorted_set(register_route.needs::jsonb),
        flowfabric._budget_ids(register_route.namespace, register_route.budgets::jsonb),
        flowfabric._quota_ids(register_route.namespace, register_route.quotas::jsonb));
end $$;
