-- Conditions: what a suspended execution waits for, and whether it has arrived.

-- The signals that a leaf of a condition counts: the first match of `single`, the first signal of each of the first n
-- different things of `count`.
--
--   returns  their places among the signals, from 1, in order of arrival
create or replace function flowfabric._counted(leaf jsonb, signals jsonb)
returns bigint[]
language plpgsql immutable as $$
declare
    keys jsonb := coalesce(leaf -> 'waitpoints', leaf -> 'waitpoint');
    signal jsonb;
begin
    if leaf ->> 'kind' = 'single' then
        for place in 1 .. jsonb_array_length(signals) loop
            signal := signals -> place - 1;
            if keys ? (signal ->> 'waitpoint') and coalesce(leaf ->> 'name' = signal ->> 'name', true)
               and coalesce(leaf ->> 'source_type' = signal ->> 'source_type', true) then
                return array[place];
            end if;
        end loop;
        return '{}';
    end if;
    return array(
        select f.place from (
            select distinct on (m.thing) m.place from (
                select s.place, case leaf ->> 'of'
                    when 'distinct_waitpoints' then s.signal ->> 'waitpoint'
                    when 'distinct_sources' then jsonb_build_array(s.signal -> 'source_type', s.signal -> 'source_identity')::text
                    else s.signal ->> 'id' end as thing
                from jsonb_array_elements(_counted.signals) with ordinality as s (signal, place)
                where keys ? (s.signal ->> 'waitpoint')
                  and coalesce(leaf ->> 'name' = s.signal ->> 'name', true)
                  and coalesce(leaf ->> 'source_type' = s.signal ->> 'source_type', true)) m
            order by m.thing, m.place) f
        order by f.place limit (leaf ->> 'n')::int);
end $$;

-- Whether a node of a condition holds. Each is judged by itself: none shares or takes another's counts.
--
--   returns  whether it holds; the places of all signals that some leaf below counts, and of those that made it hold
create or replace function flowfabric._judge_node(
    node jsonb, signals jsonb, out holds boolean, out counted bigint[], out satisfiers bigint[])
language plpgsql immutable as $$
declare
    member jsonb;
    judged record;
    held int := 0;
begin
    counted := '{}';
    satisfiers := '{}';
    case node ->> 'kind'
        when 'single', 'count' then
            counted := flowfabric._counted(node, signals);
            holds := cardinality(counted) >= coalesce((node ->> 'n')::int, 1);
            satisfiers := case when holds then counted else '{}' end;
        when 'all_of', 'any_of' then
            for member in select m from jsonb_array_elements(node -> 'members') m loop
                judged := flowfabric._judge_node(member, signals);
                counted := counted || judged.counted;
                satisfiers := satisfiers || judged.satisfiers;
                held := held + judged.holds::int;
            end loop;
            holds := held >= case node ->> 'kind' when 'any_of' then 1 else jsonb_array_length(node -> 'members') end;
            satisfiers := case when holds then satisfiers else '{}' end;
        else
            holds := false;
    end case;
end $$;


-- Whether a signal by itself satisfies a condition that is not satisfied yet: one that waits for a single signal of some kind.
--
--   returns  true or false; null when it depends on what else has arrived
create or replace function flowfabric._is_met(condition jsonb, key text, name text, source_type text)
returns boolean
language plpgsql immutable as $$
declare
    met boolean := false;
    alone boolean;
begin
    if condition ->> 'kind' = 'single' or condition ->> 'kind' = 'count' and condition -> 'n' = '1' then
        return coalesce(condition -> 'waitpoints', condition -> 'waitpoint') ? _is_met.key
           and coalesce(condition ->> 'name' = _is_met.name, true) and coalesce(condition ->> 'source_type' = _is_met.source_type, true);
    end if;
    if condition ->> 'kind' is distinct from 'any_of' then
        return null;
    end if;
    for place in 0 .. jsonb_array_length(condition -> 'members') - 1 loop
        alone := flowfabric._is_met(condition -> 'members' -> place, _is_met.key, _is_met.name, _is_met.source_type);
        if alone is null then
            return null;
        end if;
        met := met or alone;
    end loop;
    return met;
end $$;

-- Whether a condition holds over these signals: {id, waitpoint, name, source_type, source_identity} in order of arrival.
--
--   returns  whether it holds; the ids of all signals that some leaf counts, and of those that made it hold: each once, in
--            order of arrival
create or replace function flowfabric._judge(condition jsonb, signals jsonb, out holds boolean, out counted text[], out satisfiers text[])
language plpgsql immutable as $$
declare
    judged record;
begin
    judged := flowfabric._judge_node(condition, signals);
    holds := judged.holds;
    counted := flowfabric._ids_at(judged.counted, signals);
    satisfiers := case when judged.counted = judged.satisfiers then counted else flowfabric._ids_at(judged.satisfiers, signals) end;
end $$;

-- The ids of the signals at these places.
--
--   returns  each once, in order of arrival
create or replace function flowfabric._ids_at(places bigint[], signals jsonb)
returns text[]
language plpgsql immutable as $$
begin
    if cardinality(places) <= 1 then
        return case cardinality(places) when 0 then '{}' else array[signals -> (places[1] - 1)::int ->> 'id'] end;
    end if;
    return array(select signals -> (p.place - 1)::int ->> 'id' from (select distinct unnest(places)) p (place) order by p.place);
end $$;

-- The nodes of a condition, with how deep they lie; the root is 1.
--
--   returns  a row each
create or replace function flowfabric._nodes(condition jsonb)
returns table (node jsonb, depth int)
language sql immutable as $$
    with recursive tree as (
        select _nodes.condition as node, 1 as depth
        union all
        select m.member, t.depth + 1 from tree t
        cross join lateral jsonb_array_elements(case when jsonb_typeof(t.node -> 'members') = 'array' then t.node -> 'members' else '[]' end) m (member)
        where t.depth < 6
    )
    select t.node, t.depth from tree t
$$;

-- The waitpoint keys that a condition names.
--
--   returns  each once, sorted
create or replace function flowfabric._named_keys(condition jsonb)
returns text[]
language sql immutable as $$
    select coalesce(array_agg(distinct k.key), '{}') from flowfabric._nodes(_named_keys.condition) n
    cross join lateral (
        select n.node ->> 'waitpoint' as key where n.node ? 'waitpoint'
        union all
        select jsonb_array_elements_text(n.node -> 'waitpoints') where jsonb_typeof(n.node -> 'waitpoints') = 'array') k
$$;

-- What a signal did to a condition that it reached on one of its waitpoints.
--
--   returns  the word for it
create or replace function flowfabric._effect(condition jsonb, key text, name text, source_type text, holds boolean, is_counted boolean)
returns text
language plpgsql immutable as $$
begin
    if condition ->> 'kind' in ('operator_only', 'timeout_only') then
        return 'no_op';
    end if;
    if _effect.holds or _effect.is_counted then
        return case when _effect.holds then 'resume_condition_satisfied' else 'appended_to_waitpoint' end;
    end if;
    return case
        when not _effect.key = any (flowfabric._named_keys(condition)) then 'signal_ignored_not_in_condition'
        when exists (
            select from flowfabric._nodes(condition) n
            where coalesce(n.node -> 'waitpoints', n.node -> 'waitpoint') ? _effect.key
              and coalesce(n.node ->> 'name', _effect.name) = _effect.name
              and coalesce(n.node ->> 'source_type', _effect.source_type) = _effect.source_type) then 'appended_to_waitpoint_duplicate'
        else 'signal_ignored_matcher_failed'
    end;
end $$;

-- What is wrong with the keys of a condition or of its waitpoints, one by one.
--
--   returns  the cause, or null when they are good
create or replace function flowfabric._keys_cause(keys jsonb)
returns text
language sql immutable as $$
    select case
        when bool_or(jsonb_typeof(k.key) <> 'string') then 'malformed_condition'
        when bool_or(k.key = '""') then 'waitpoint_key_empty'
        when bool_or(octet_length(k.key #>> '{}') > 128) then 'waitpoint_key_too_long'
        when count(distinct k.key) < count(*) then 'waitpoint_key_duplicate'
    end from jsonb_array_elements(_keys_cause.keys) k (key)
$$;

-- What is wrong with a node that counts.
--
--   returns  the cause, or null when it is good
create or replace function flowfabric._count_cause(node jsonb)
returns text
language sql immutable as $$
    select case
        when coalesce(jsonb_typeof(node -> 'n'), 'number') <> 'number' then 'malformed_condition'
        when coalesce((node -> 'n')::numeric, 0) < 1 then 'count_n_zero'
        when not flowfabric._is_whole(node -> 'n', 1, 1e30) then 'malformed_condition'
        when (node -> 'n')::numeric > 10000 then 'count_n_too_large'
        when coalesce(node ->> 'of', '') not in ('distinct_waitpoints', 'distinct_signals', 'distinct_sources') then 'malformed_condition'
        when coalesce(node -> 'waitpoints', '[]') = '[]' then 'count_waitpoints_empty'
        when jsonb_typeof(node -> 'waitpoints') <> 'array' then 'malformed_condition'
        when flowfabric._keys_cause(node -> 'waitpoints') is not null then flowfabric._keys_cause(node -> 'waitpoints')
        when node ->> 'of' = 'distinct_waitpoints' and (node ->> 'n')::int > jsonb_array_length(node -> 'waitpoints') then 'count_exceeds_waitpoint_set'
    end
$$;

-- What is wrong with a node of a condition by itself. Read closed: a field that is not known is refused, never ignored.
--
--   returns  the cause, or null when it is good
create or replace function flowfabric._node_cause(node jsonb, depth int)
returns text
language plpgsql immutable as $$
declare
    fields text[] := case node ->> 'kind'
        when 'single' then '{kind,waitpoint,name,source_type}' when 'count' then '{kind,n,of,name,source_type,waitpoints}'
        when 'all_of' then '{kind,members}' when 'any_of' then '{kind,members}'
        when 'operator_only' then '{kind}' when 'timeout_only' then '{kind}' end;
begin
    return case
        when depth > 4 then 'condition_too_deep'
        when fields is null then 'unknown_condition'
        when depth > 1 and node ->> 'kind' in ('operator_only', 'timeout_only') then 'nested_standalone'
        when exists (select from jsonb_object_keys(node) f (name) where f.name <> all (fields)) then 'malformed_condition'
        when node -> 'name' = '""' then 'signal_name_empty'
        when jsonb_typeof(node -> 'name') <> 'string' or octet_length(node ->> 'name') > 128 then 'malformed_condition'
        when jsonb_typeof(node -> 'source_type') <> 'string' or octet_length(node ->> 'source_type') not between 1 and 64 then 'malformed_condition'
        when node ->> 'kind' = 'single' then flowfabric._keys_cause(jsonb_build_array(coalesce(node -> 'waitpoint', '""')))
        when node ->> 'kind' = 'count' then flowfabric._count_cause(node)
        when coalesce(node -> 'members', '[]') = '[]' and 'members' = any (fields) then replace(node ->> 'kind', '_', '') || '_empty_members'
        when jsonb_typeof(node -> 'members') <> 'array' then 'malformed_condition'
    end;
end $$;

-- Whether a condition is certainly good, for the one waitpoint there is: a leaf, or a few of them. What it does not know it
-- leaves to those that name the cause.
--
--   returns  true when it is good
create or replace function flowfabric._is_sound(node jsonb, key text, may_nest boolean default true)
returns boolean
language plpgsql immutable as $$
begin
    if node ->> 'kind' is null then
        return false;
    end if;
    if node ->> 'kind' in ('all_of', 'any_of') then
        if not may_nest or jsonb_typeof(node -> 'members') is distinct from 'array' or node - '{kind,members}'::text[] <> '{}'
           or jsonb_array_length(node -> 'members') not between 1 and 8 then
            return false;
        end if;
        for place in 0 .. jsonb_array_length(node -> 'members') - 1 loop
            if not flowfabric._is_sound(node -> 'members' -> place, key, false) then
                return false;
            end if;
        end loop;
        return true;
    end if;
    if node ? 'name' and (jsonb_typeof(node -> 'name') <> 'string' or octet_length(node ->> 'name') not between 1 and 128)
       or node ? 'source_type' and (jsonb_typeof(node -> 'source_type') <> 'string' or octet_length(node ->> 'source_type') not between 1 and 64) then
        return false;
    end if;
    if node ->> 'kind' = 'single' then
        return coalesce(node -> 'waitpoint' = to_jsonb(key), false) and node - '{kind,waitpoint,name,source_type}'::text[] = '{}';
    end if;
    return node ->> 'kind' = 'count' and node - '{kind,n,of,name,source_type,waitpoints}'::text[] = '{}'
       and coalesce(node -> 'waitpoints' = jsonb_build_array(key) and jsonb_typeof(node -> 'n') = 'number'
                    and (node ->> 'of' in ('distinct_signals', 'distinct_sources') and node ->> 'n' ~ '^[1-9][0-9]{0,3}$'
                         or node ->> 'of' = 'distinct_waitpoints' and node ->> 'n' = '1'), false);
end $$;

-- What is wrong with a condition and the waitpoints it is to be asked of.
--
--   returns  the cause, or null when they are good
create or replace function flowfabric._condition_cause(condition jsonb, keys text[])
returns text
language plpgsql immutable as $$
#variable_conflict use_column
declare
    cause text;
    named text[];
begin
    if cardinality(keys) = 1 and octet_length(keys[1]) between 1 and 128 and flowfabric._is_sound(condition, keys[1]) then
        return null;
    end if;
    if keys = '{}' and condition ->> 'kind' in ('single', 'all_of', 'any_of', 'count') then
        return 'waitpoints_empty';
    end if;
    cause := flowfabric._keys_cause(to_jsonb(keys));
    if cause is null and (cardinality(keys) > 64 or (select count(*) from flowfabric._nodes(condition)) > 64) then
        cause := 'condition_too_large';
    end if;
    if cause is null then
        select flowfabric._node_cause(n.node, n.depth) into cause from flowfabric._nodes(condition) with ordinality as n (node, depth, place)
        where flowfabric._node_cause(n.node, n.depth) is not null order by n.depth desc, n.place limit 1;
    end if;
    if cause is not null then
        return cause;
    end if;
    named := flowfabric._named_keys(condition);
    return case
        when not named <@ keys then 'referenced_waitpoint_key_missing_binding'
        when not keys <@ named and condition ->> 'kind' not in ('operator_only', 'timeout_only') then 'extra_binding_not_referenced_by_condition'
    end;
end $$;
