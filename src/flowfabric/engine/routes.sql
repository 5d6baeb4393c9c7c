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
language sql immutable as $$
    select coalesce(array_agg(distinct w.word collate "C" order by w.word collate "C"), '{}')
    from jsonb_array_elements_text(_sorted_set.words) w (word)
$$;

-- Find the route of these terms, or make it. Only a route's very first use can wait for another transaction.
--
--   returns  the route's number
create or replace function flowfabric._route(lane text, namespace text, needs text[], budgets uuid[], quotas uuid[])
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    wanted text := md5(array_to_string(needs, ','));
    found_id int;
begin
    loop
        select r.id into found_id from flowfabric.routes r
        where r.lane = _route.lane and r.namespace = _route.namespace
          and r.digest = wanted and r.budgets = _route.budgets and r.quotas = _route.quotas;
        exit when found_id is not null;

        insert into flowfabric.routes (lane, namespace, needs, digest, budgets, quotas)
        values (_route.lane, _route.namespace, _route.needs, wanted, _route.budgets, _route.quotas)
        on conflict do nothing
        returning id into found_id;
        exit when found_id is not null;
    end loop;
    return found_id;
end $$;

-- Whether these words can name a route, and the route itself when they can. Lane and route appear with their first use.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   refuses  invalid_lane, invalid_namespace, invalid_capabilities, budget_not_found, quota_not_found, lane_draining,
--            as a value: a batch goes on without the item
--   returns  the route, or the fault
create or replace function flowfabric._accept_route(
    lane text, namespace text, needs jsonb, budgets jsonb, quotas jsonb, out route int, out fault jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    cause text := flowfabric._capabilities_cause(needs);
    lane_state flowfabric.lane_state;
begin
    fault := case
        when lane !~ '^[\x20-\x7e]{1,64}$' then
            flowfabric._fault('invalid_lane', format('lane %s: a lane is 1 to 64 printable ASCII characters', flowfabric._shown(lane)))
        when namespace !~ '^[\x20-\x7e]{1,64}$' then
            flowfabric._fault('invalid_namespace',
                format('namespace %s: a namespace is 1 to 64 printable ASCII characters', flowfabric._shown(namespace)))
        when cause is not null then
            flowfabric._fault('invalid_capabilities',
                format('needs %s: give a list of up to 256 words without comma, space or control character, 4 096 bytes in all',
                       flowfabric._shown(needs::text)), jsonb_build_object('cause', cause))
        when budgets <> '[]' then
            flowfabric._fault('budget_not_found', format('no budget %s in namespace %s', budgets ->> 0, namespace))
        when quotas <> '[]' then
            flowfabric._fault('quota_not_found', format('no quota %s in namespace %s', quotas ->> 0, namespace))
    end;
    if fault is not null then
        return;
    end if;

    lane_state := flowfabric._register_lane(lane);
    if lane_state = 'draining' then
        fault := flowfabric._fault('lane_draining', format('lane %s is draining and takes no new work; resume_lane opens it', lane));
        return;
    end if;
    route := flowfabric._route(lane, namespace, flowfabric._sorted_set(needs), '{}', '{}');
end $$;

-- Make a route known before its first submission, so that a submission inside a long transaction need not.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   refuses  invalid_lane, invalid_namespace, invalid_capabilities, budget_not_found, quota_not_found, lane_draining
--   returns  the route's number
create or replace function flowfabric.register_route(
    lane text, namespace text default 'default', needs text default '[]', budgets text default '[]', quotas text default '[]')
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    accepted record;
begin
    accepted := flowfabric._accept_route(register_route.lane, register_route.namespace, register_route.needs::jsonb,
                                         register_route.budgets::jsonb, register_route.quotas::jsonb);
    perform flowfabric._raise(accepted.fault);
    return accepted.route;
end $$;
