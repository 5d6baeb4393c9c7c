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
create or replace function flowfabric._make_route(
    lane text, namespace text, needs text[], budgets uuid[], quotas uuid[])
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    found_id int;
begin
    perform flowfabric._register_lane(_make_route.lane);
    loop
        select r.id into found_id from flowfabric.routes r
        where r.lane = _make_route.lane and r.namespace = _make_route.namespace
          and r.digest = md5(array_to_string(_make_route.needs, ',')) and r.budgets = _make_route.budgets
          and r.quotas = _make_route.quotas;
        exit when found;

        insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
        values (_make_route.lane, _make_route.namespace, _make_route.needs,
                md5(array_to_string(_make_route.needs, ',')), _make_route.budgets, _make_route.quotas)
        on conflict do nothing
        returning id into found_id;
        exit when found_id is not null;
    end loop;
    return found_id;
end $$;

-- Look up budgets by name or id.
--
--   returns  their distinct ids, in order; budgets that do not exist are omitted
create or replace function flowfabric._budget_ids(namespace text, words jsonb)
returns uuid[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    if _budget_ids.words = '[]' then
        return '{}';
    end if;
    return array(
        select distinct b.id from jsonb_array_elements_text(_budget_ids.words) w (word)
        cross join lateral flowfabric._find_budget(_budget_ids.namespace, w.word) b (id)
        where b.id is not null order by b.id);
end $$;

-- Check the names of the budgets or the quotas of a submission.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if they are a list of names
create or replace function flowfabric._names_fault(what text, words jsonb)
returns jsonb
language sql immutable as $$
    select case when jsonb_typeof(_names_fault.words) <> 'array'
                     or jsonb_path_exists(_names_fault.words, '$[*] ? (@.type() != "string")')
                     or jsonb_array_length(_names_fault.words) > 16 then
        flowfabric._fault('invalid_body',
            format('%s %s are invalid; use a list of up to 16 names', _names_fault.what,
                   flowfabric._shown(_names_fault.words::text)), jsonb_build_object('field', _names_fault.what))
    end
$$;

-- Check the budgets of a submission. A budget that does not exist is refused, never ignored.
--
--   refuses  budget_not_found, as a value
--   returns  the fault, or null if the budgets are valid
create or replace function flowfabric._budgets_fault(namespace text, words jsonb)
returns jsonb
language sql stable as $$
    select coalesce(flowfabric._names_fault('budgets', _budgets_fault.words), (
        select flowfabric._fault('budget_not_found', format(
            'budget %s does not exist in namespace %s; check the name, or use create_budget to create it',
            flowfabric._shown(w.word), flowfabric._shown(_budgets_fault.namespace)))
        from jsonb_array_elements_text(_budgets_fault.words) with ordinality as w (word, place)
        where flowfabric._find_budget(_budgets_fault.namespace, w.word) is null order by w.place limit 1))
$$;

-- Look up quotas by name or id.
--
--   returns  their distinct ids, in order; quotas that do not exist are omitted
create or replace function flowfabric._quota_ids(namespace text, words jsonb)
returns uuid[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    if _quota_ids.words = '[]' then
        return '{}';
    end if;
    return array(
        select distinct q.id from jsonb_array_elements_text(_quota_ids.words) w (word)
        cross join lateral flowfabric._find_quota(_quota_ids.namespace, w.word) q
        where q.id is not null order by q.id);
end $$;

-- Check the quotas of a submission.
--
--   returns  the fault, or null if the quotas are valid
create or replace function flowfabric._quotas_fault(namespace text, words jsonb)
returns jsonb
language sql stable as $$
    select coalesce(flowfabric._names_fault('quotas', _quotas_fault.words), (
        select flowfabric._missing_quota(_quotas_fault.namespace, w.word)
        from jsonb_array_elements_text(_quotas_fault.words) w (word)
        where (flowfabric._find_quota(_quotas_fault.namespace, w.word)).id is null limit 1))
$$;

-- Create the new routes that a call needs, in the order of their fields, so that two calls that create the same routes
-- cannot deadlock.
--
--   moves    lane – → active, if it is new
--   returns  the routes, with the ids of the new ones filled in
create or replace function flowfabric._make_routes(
    routes int[], lanes text[], namespaces text[], needs jsonb[], budgets text[], quotas text[], wanted int[])
returns int[]
language plpgsql as $$
#variable_conflict use_column
declare
    fresh record;
begin
    for fresh in
        select x.number, x.lane, x.namespace, flowfabric._sorted_set(x.needs) as needs, x.budgets::uuid[] as budgets,
               x.quotas::uuid[] as quotas
        from unnest(_make_routes.routes, _make_routes.lanes, _make_routes.namespaces, _make_routes.needs,
                    _make_routes.budgets, _make_routes.quotas)
             with ordinality as x (route, lane, namespace, needs, budgets, quotas, number)
        where x.route is null and x.number = any (_make_routes.wanted)
        order by x.lane collate "C", x.namespace collate "C", 4, 5, 6
    loop
        _make_routes.routes[fresh.number] := flowfabric._make_route(
            fresh.lane, fresh.namespace, fresh.needs, fresh.budgets, fresh.quotas);
    end loop;
    return _make_routes.routes;
end $$;

-- Check the fields of a route.
--
--   refuses  invalid_lane, invalid_namespace, as a value
--   returns  the fault, or null if the fields are valid
create or replace function flowfabric._words_fault(lane text, namespace text, needs jsonb, budgets jsonb, quotas jsonb)
returns jsonb
language plpgsql stable as $$
declare
    fault jsonb;
begin
    fault := coalesce(flowfabric._label_fault('invalid_lane', 'lane name', _words_fault.lane),
                      flowfabric._label_fault('invalid_namespace', 'namespace', _words_fault.namespace));
    if fault is null and _words_fault.needs <> '[]' then
        fault := flowfabric._capabilities_fault('needs', _words_fault.needs);
    end if;
    if fault is null and _words_fault.budgets <> '[]' then
        fault := flowfabric._budgets_fault(_words_fault.namespace, _words_fault.budgets);
    end if;
    if fault is null and _words_fault.quotas <> '[]' then
        fault := flowfabric._quotas_fault(_words_fault.namespace, _words_fault.quotas);
    end if;
    return fault;
end $$;

-- Build the error for a submission to a draining lane.
--
--   refuses  lane_draining, as a value
--   returns  the fault
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
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._raise(flowfabric._words_fault(
        register_route.lane, register_route.namespace, register_route.needs::jsonb, register_route.budgets::jsonb,
        register_route.quotas::jsonb));
    if exists (select from flowfabric.lanes l where l.name = register_route.lane and l.state = 'draining') then
        perform flowfabric._raise(flowfabric._draining_fault(register_route.lane));
    end if;
    return flowfabric._make_route(
        register_route.lane, register_route.namespace, flowfabric._sorted_set(register_route.needs::jsonb),
        flowfabric._budget_ids(register_route.namespace, register_route.budgets::jsonb),
        flowfabric._quota_ids(register_route.namespace, register_route.quotas::jsonb));
end $$;
