-- Conditions: what a suspended execution waits for, and whether its signals satisfy it.

-- Whether a leaf of a condition matches a signal: its waitpoint, and its name and source type if the leaf has them.
--
--   returns  true or false
create or replace function flowfabric._matches(leaf jsonb, key text, name text, source_type text)
returns boolean
language sql immutable as $$
    select coalesce(_matches.leaf -> 'waitpoints', _matches.leaf -> 'waitpoint') ? _matches.key
       and coalesce(_matches.leaf ->> 'name' = _matches.name, true)
       and coalesce(_matches.leaf ->> 'source_type' = _matches.source_type, true)
$$;

-- The value of a matching signal that a leaf of a condition counts once: its waitpoint or its source.
--
--   returns  the value; null if each signal counts
create or replace function flowfabric._value(leaf jsonb, key text, source_type text, source_identity text)
returns text
language sql immutable as $$
    select case _value.leaf ->> 'of'
        when 'distinct_waitpoints' then _value.key
        when 'distinct_sources' then jsonb_build_array(_value.source_type, _value.source_identity)::text end
$$;

-- The signals that a leaf of a condition counts: for `single` the first match, for `count` the first signal of each of
-- the first n distinct values.
--
--   returns  their positions in `signals`, from 1, in order of arrival
create or replace function flowfabric._counted_signals(leaf jsonb, signals jsonb)
returns bigint[]
language plpgsql immutable as $$
declare
    signal jsonb;
begin
    if _counted_signals.leaf ->> 'kind' = 'single' then
        for place in 1 .. jsonb_array_length(_counted_signals.signals) loop
            signal := _counted_signals.signals -> place - 1;
            if flowfabric._matches(_counted_signals.leaf, signal ->> 'waitpoint', signal ->> 'name',
                                   signal ->> 'source_type') then
                return array[place];
            end if;
        end loop;
        return '{}';
    end if;
    return array(
        select f.place from (
            select distinct on (m.value) m.place from (
                select s.place, coalesce(flowfabric._value(
                           _counted_signals.leaf, s.signal ->> 'waitpoint', s.signal ->> 'source_type',
                           s.signal ->> 'source_identity'), s.signal ->> 'id') as value
                from jsonb_array_elements(_counted_signals.signals) with ordinality as s (signal, place)
                where flowfabric._matches(_counted_signals.leaf, s.signal ->> 'waitpoint', s.signal ->> 'name',
                                          s.signal ->> 'source_type')) m
            order by m.value, m.place) f
        order by f.place limit (_counted_signals.leaf ->> 'n')::int);
end $$;

-- Evaluate a node of a condition, recursively. Each node is evaluated independently: nodes never share their counts.
--
--   returns  whether it holds; the positions of all signals that a leaf below it counts; the positions of the signals
--            that made it hold
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
    case _judge_node.node ->> 'kind'
        when 'single', 'count' then
            counted := flowfabric._counted_signals(_judge_node.node, _judge_node.signals);
            holds := cardinality(counted) >= coalesce((_judge_node.node ->> 'n')::int, 1);
            satisfiers := case when holds then counted else '{}' end;
        when 'all_of', 'any_of' then
            for member in select m from jsonb_array_elements(_judge_node.node -> 'members') m loop
                judged := flowfabric._judge_node(member, _judge_node.signals);
                counted := counted || judged.counted;
                satisfiers := satisfiers || judged.satisfiers;
                held := held + judged.holds::int;
            end loop;
            holds := held >= case when _judge_node.node ->> 'kind' = 'any_of' then 1
                                  else jsonb_array_length(_judge_node.node -> 'members') end;
            satisfiers := case when holds then satisfiers else '{}' end;
        else
            holds := false;
    end case;
end $$;

-- Evaluate a condition over signals, each {id, waitpoint, name, source_type, source_identity}, in order of arrival.
--
--   returns  whether it holds; the ids of all signals that a leaf counts; the ids of the signals that made it hold.
--            Each id once, in order of arrival
create or replace function flowfabric._judge(
    condition jsonb, signals jsonb, out holds boolean, out counted text[], out satisfiers text[])
language plpgsql immutable as $$
declare
    judged record;
begin
    judged := flowfabric._judge_node(_judge.condition, _judge.signals);
    holds := judged.holds;
    counted := array(select _judge.signals -> (p.place - 1)::int ->> 'id'
                     from (select distinct unnest(judged.counted)) p (place) order by p.place);
    satisfiers := case when judged.counted = judged.satisfiers then counted else array(
        select _judge.signals -> (p.place - 1)::int ->> 'id'
        from (select distinct unnest(judged.satisfiers)) p (place) order by p.place) end;
end $$;

-- Count a new signal in a tally (`_tally`).
--
--   returns  the tally with it; whether a leaf counts it
create or replace function flowfabric._count_signal(
    inout tally jsonb, key text, name text, source_type text, source_identity text, out is_counted boolean)
language plpgsql immutable as $$
declare
    leaf record;
    value text;
begin
    is_counted := false;
    for leaf in
        select l.node, l.node::jsonb as condition, l.seen from jsonb_each(_count_signal.tally) l (node, seen)
    loop
        value := flowfabric._value(
            leaf.condition, _count_signal.key, _count_signal.source_type, _count_signal.source_identity);
        if flowfabric._matches(leaf.condition, _count_signal.key, _count_signal.name, _count_signal.source_type)
           and (leaf.seen -> 'count')::int < coalesce((leaf.condition -> 'n')::int, 1)
           and coalesce(not leaf.seen -> 'values' ? value, true) then
            is_counted := true;
            tally := jsonb_set(tally, array[leaf.node], jsonb_build_object(
                'count', (leaf.seen -> 'count')::int + 1,
                'values', (leaf.seen -> 'values') || case when value is null then '[]' else to_jsonb(value) end));
        end if;
    end loop;
end $$;

-- Whether a node of a condition holds for a tally (`_tally`), recursively: as `_judge_node`, but without the signals.
--
--   returns  true or false
create or replace function flowfabric._is_satisfied(node jsonb, tally jsonb)
returns boolean
language plpgsql immutable as $$
begin
    return case _is_satisfied.node ->> 'kind'
        when 'all_of' then not exists (
            select from jsonb_array_elements(_is_satisfied.node -> 'members') m (node)
            where not flowfabric._is_satisfied(m.node, _is_satisfied.tally))
        when 'any_of' then exists (
            select from jsonb_array_elements(_is_satisfied.node -> 'members') m (node)
            where flowfabric._is_satisfied(m.node, _is_satisfied.tally))
        else coalesce((_is_satisfied.tally -> (_is_satisfied.node::text) -> 'count')::int
                      >= coalesce((_is_satisfied.node -> 'n')::int, 1), false) end;
end $$;

-- List the nodes of a condition with their depth; the root has depth 1.
--
--   returns  one row per node
create or replace function flowfabric._nodes(condition jsonb)
returns table (node jsonb, depth int)
language sql immutable as $$
    with recursive tree as (
        select _nodes.condition as node, 1 as depth
        union all
        select m.member, t.depth + 1 from tree t
        cross join lateral jsonb_array_elements(
            case when jsonb_typeof(t.node -> 'members') = 'array' then t.node -> 'members' else '[]' end) m (member)
        where t.depth < 6
    )
    select t.node, t.depth from tree t
$$;

-- List the waitpoint keys that a condition names.
--
--   returns  each key once, sorted
create or replace function flowfabric._named_keys(condition jsonb)
returns text[]
language sql immutable as $$
    select coalesce(array_agg(distinct k.key), '{}') from flowfabric._nodes(_named_keys.condition) n
    cross join lateral (
        select n.node ->> 'waitpoint' as key where n.node ? 'waitpoint'
        union all
        select jsonb_array_elements_text(n.node -> 'waitpoints') where jsonb_typeof(n.node -> 'waitpoints') = 'array') k
$$;

-- The effect of a signal on the condition of the wait that it reached.
--
--   returns  the name of the effect
create or replace function flowfabric._signal_effect(
    condition jsonb, key text, name text, source_type text, holds boolean, is_counted boolean)
returns text
language plpgsql immutable as $$
begin
    if _signal_effect.condition ->> 'kind' in ('operator_only', 'timeout_only') then
        return 'no_op';
    end if;
    if _signal_effect.holds or _signal_effect.is_counted then
        return case when _signal_effect.holds then 'resume_condition_satisfied' else 'appended_to_waitpoint' end;
    end if;
    return case
        when not _signal_effect.key = any (flowfabric._named_keys(_signal_effect.condition))
            then 'signal_ignored_not_in_condition'
        when exists (
            select from flowfabric._nodes(_signal_effect.condition) n
            where flowfabric._matches(n.node, _signal_effect.key, _signal_effect.name, _signal_effect.source_type))
            then 'appended_to_waitpoint_duplicate'
        else 'signal_ignored_matcher_failed'
    end;
end $$;

-- Check the waitpoint keys of a condition or of a suspension.
--
--   returns  the cause, or null if they are valid
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

-- Check one node of a condition, without its members. An unknown field is refused, never ignored.
--
--   returns  the cause, or null if it is valid
create or replace function flowfabric._node_cause(node jsonb, depth int)
returns text
language plpgsql immutable as $$
declare
    fields text[] := case _node_cause.node ->> 'kind'
        when 'single' then '{kind,waitpoint,name,source_type}'
        when 'count' then '{kind,n,of,name,source_type,waitpoints}'
        when 'all_of' then '{kind,members}' when 'any_of' then '{kind,members}'
        when 'operator_only' then '{kind}' when 'timeout_only' then '{kind}' end;
begin
    return case
        when _node_cause.depth > 4 then 'condition_too_deep'
        when fields is null then 'unknown_condition'
        when _node_cause.depth > 1 and _node_cause.node ->> 'kind' in ('operator_only', 'timeout_only')
            then 'nested_standalone'
        when exists (select from jsonb_object_keys(_node_cause.node) f (name) where f.name <> all (fields))
            then 'malformed_condition'
        when _node_cause.node -> 'name' = '""' then 'signal_name_empty'
        when jsonb_typeof(_node_cause.node -> 'name') <> 'string' or octet_length(_node_cause.node ->> 'name') > 128
            then 'malformed_condition'
        when jsonb_typeof(_node_cause.node -> 'source_type') <> 'string'
          or octet_length(_node_cause.node ->> 'source_type') not between 1 and 64 then 'malformed_condition'
        when _node_cause.node ->> 'kind' = 'single'
            then flowfabric._keys_cause(jsonb_build_array(coalesce(_node_cause.node -> 'waitpoint', '""')))
        when _node_cause.node ->> 'kind' = 'count' then case
            when coalesce(jsonb_typeof(_node_cause.node -> 'n'), 'number') <> 'number' then 'malformed_condition'
            when coalesce((_node_cause.node -> 'n')::numeric, 0) < 1 then 'count_n_zero'
            when not flowfabric._is_whole(_node_cause.node -> 'n', 1, 1e30) then 'malformed_condition'
            when (_node_cause.node -> 'n')::numeric > 10000 then 'count_n_too_large'
            when coalesce(_node_cause.node ->> 'of', '') not in (
                'distinct_waitpoints', 'distinct_signals', 'distinct_sources') then 'malformed_condition'
            when coalesce(_node_cause.node -> 'waitpoints', '[]') = '[]' then 'count_waitpoints_empty'
            when jsonb_typeof(_node_cause.node -> 'waitpoints') <> 'array' then 'malformed_condition'
            when flowfabric._keys_cause(_node_cause.node -> 'waitpoints') is not null
                then flowfabric._keys_cause(_node_cause.node -> 'waitpoints')
            when _node_cause.node ->> 'of' = 'distinct_waitpoints'
             and (_node_cause.node ->> 'n')::int > jsonb_array_length(_node_cause.node -> 'waitpoints')
                then 'count_exceeds_waitpoint_set' end
        when coalesce(_node_cause.node -> 'members', '[]') = '[]' and 'members' = any (fields)
            then replace(_node_cause.node ->> 'kind', '_', '') || '_empty_members'
        when jsonb_typeof(_node_cause.node -> 'members') <> 'array' then 'malformed_condition'
    end;
end $$;

-- Check a condition together with the keys of its waitpoints.
--
--   returns  the cause, or null if they are valid
create or replace function flowfabric._condition_cause(condition jsonb, keys text[])
returns text
language plpgsql immutable as $$
declare
    cause text;
    named text[];
begin
    if cardinality(_condition_cause.keys) = 1 and octet_length(_condition_cause.keys[1]) between 1 and 128
       and flowfabric._is_simple_condition(_condition_cause.condition, _condition_cause.keys[1]) then
        return null;
    end if;
    if _condition_cause.keys = '{}'
       and _condition_cause.condition ->> 'kind' in ('single', 'all_of', 'any_of', 'count') then
        return 'waitpoints_empty';
    end if;
    cause := flowfabric._keys_cause(to_jsonb(_condition_cause.keys));
    if cause is null and (cardinality(_condition_cause.keys) > 64
                          or (select count(*) from flowfabric._nodes(_condition_cause.condition)) > 64) then
        cause := 'condition_too_large';
    end if;
    if cause is null then
        select flowfabric._node_cause(n.node, n.depth) into cause
        from flowfabric._nodes(_condition_cause.condition) with ordinality as n (node, depth, place)
        where flowfabric._node_cause(n.node, n.depth) is not null order by n.depth desc, n.place limit 1;
    end if;
    if cause is not null then
        return cause;
    end if;
    named := flowfabric._named_keys(_condition_cause.condition);
    return case
        when not named <@ _condition_cause.keys then 'referenced_waitpoint_key_missing_binding'
        when not _condition_cause.keys <@ named
         and _condition_cause.condition ->> 'kind' not in ('operator_only', 'timeout_only')
            then 'extra_binding_not_referenced_by_condition'
    end;
end $$;
