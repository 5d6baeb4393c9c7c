-- Conditions: what a suspended execution waits for, and whether its signals satisfy it.

-- Whether a leaf of a condition matches a signal: its waitpoint, and its name and source type if the leaf has them.
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
--   returns  the positions of the signals that make it hold; null if it does not hold
create or replace function flowfabric._judge_node(node jsonb, signals jsonb)
returns bigint[]
language plpgsql immutable as $$
declare
    kind constant text := _judge_node.node ->> 'kind';
    counted bigint[];
    satisfiers bigint[] := '{}';
    held int := 0;
begin
    if kind in ('single', 'count') then
        counted := flowfabric._counted_signals(_judge_node.node, _judge_node.signals);
        return case when cardinality(counted) >= coalesce((_judge_node.node ->> 'n')::int, 1) then counted end;
    elsif kind not in ('all_of', 'any_of') then
        return null;
    end if;
    for place in 0 .. jsonb_array_length(_judge_node.node -> 'members') - 1 loop
        counted := flowfabric._judge_node(_judge_node.node -> 'members' -> place, _judge_node.signals);
        held := held + (counted is not null)::int;
        satisfiers := satisfiers || counted;
    end loop;
    return case when held >= case kind when 'any_of' then 1 else jsonb_array_length(_judge_node.node -> 'members') end
        then satisfiers end;
end $$;

-- Evaluate a condition over signals, each {id, waitpoint, name, source_type, source_identity}, in order of arrival.
--
--   returns  the ids of the signals that make it hold, each once, in order of arrival; null if it does not hold
create or replace function flowfabric._judge(condition jsonb, signals jsonb)
returns text[]
language plpgsql immutable as $$
declare
    satisfiers constant bigint[] := flowfabric._judge_node(_judge.condition, _judge.signals);
begin
    return case when satisfiers is not null then array(
        select _judge.signals -> (p.place - 1)::int ->> 'id'
        from (select distinct unnest(satisfiers)) p (place) order by p.place) end;
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
language plpgsql immutable as $$
declare
    key text;
    seen text[] := '{}';
begin
    for place in 0 .. jsonb_array_length(_keys_cause.keys) - 1 loop
        key := _keys_cause.keys ->> place;
        if jsonb_typeof(_keys_cause.keys -> place) <> 'string' then
            return 'malformed_condition';
        elsif octet_length(key) not between 1 and 128 then
            return case key when '' then 'waitpoint_key_empty' else 'waitpoint_key_too_long' end;
        elsif key = any (seen) then
            return 'waitpoint_key_duplicate';
        end if;
        seen := seen || key;
    end loop;
    return null;
end $$;

-- Check a leaf of a condition: how many signals of which waitpoints it counts.
--
--   returns  the cause, or null if it is valid
create or replace function flowfabric._leaf_cause(leaf jsonb)
returns text
language plpgsql immutable as $$
begin
    return case
        when _leaf_cause.leaf ->> 'kind' = 'single'
            then flowfabric._keys_cause(jsonb_build_array(coalesce(_leaf_cause.leaf -> 'waitpoint', '""')))
        when coalesce(jsonb_typeof(_leaf_cause.leaf -> 'n'), 'number') <> 'number' then 'malformed_condition'
        when coalesce((_leaf_cause.leaf -> 'n')::numeric, 0) < 1 then 'count_n_zero'
        when not flowfabric._is_whole(_leaf_cause.leaf -> 'n', 1, 1e30) then 'malformed_condition'
        when (_leaf_cause.leaf -> 'n')::numeric > 10000 then 'count_n_too_large'
        when coalesce(_leaf_cause.leaf ->> 'of', '') not in (
            'distinct_waitpoints', 'distinct_signals', 'distinct_sources') then 'malformed_condition'
        when coalesce(_leaf_cause.leaf -> 'waitpoints', '[]') = '[]' then 'count_waitpoints_empty'
        when jsonb_typeof(_leaf_cause.leaf -> 'waitpoints') <> 'array' then 'malformed_condition'
        else coalesce(flowfabric._keys_cause(_leaf_cause.leaf -> 'waitpoints'), case
            when _leaf_cause.leaf ->> 'of' = 'distinct_waitpoints'
             and (_leaf_cause.leaf ->> 'n')::int > jsonb_array_length(_leaf_cause.leaf -> 'waitpoints')
                then 'count_exceeds_waitpoint_set' end) end;
end $$;

-- Check a node of a condition and its members, recursively. An unknown field is refused, never ignored. Loops and plain
-- expressions, because every suspension calls this, and a query would be ten times slower.
--
--   returns  the cause, of a member first, or null if all are valid; and with this node, how many there are and the
--            waitpoint keys that they name
create or replace function flowfabric._node_cause(
    node jsonb, depth int, inout amount int, inout named text[], out cause text)
language plpgsql immutable as $$
declare
    kind constant text := _node_cause.node ->> 'kind';
    fields constant text[] := case kind
        when 'single' then '{kind,waitpoint,name,source_type}'
        when 'count' then '{kind,n,of,name,source_type,waitpoints}'
        when 'all_of' then '{kind,members}' when 'any_of' then '{kind,members}'
        when 'operator_only' then '{kind}' when 'timeout_only' then '{kind}' end;
    below record;
begin
    amount := amount + 1;
    if _node_cause.depth > 4 or amount > 64 then
        cause := case when amount > 64 then 'condition_too_large' else 'condition_too_deep' end;
        return;
    end if;
    if jsonb_typeof(_node_cause.node -> 'members') = 'array' then
        for place in 0 .. jsonb_array_length(_node_cause.node -> 'members') - 1 loop
            below := flowfabric._node_cause(
                _node_cause.node -> 'members' -> place, _node_cause.depth + 1, amount, named);
            amount := below.amount;
            named := below.named;
            cause := case below.cause when 'condition_too_large' then below.cause else coalesce(cause, below.cause) end;
            exit when cause = 'condition_too_large';
        end loop;
    end if;
    cause := coalesce(cause, case
        when fields is null then 'unknown_condition'
        when _node_cause.depth > 1 and kind in ('operator_only', 'timeout_only') then 'nested_standalone'
        when _node_cause.node - fields <> '{}' then 'malformed_condition'
        when _node_cause.node -> 'name' = '""' then 'signal_name_empty'
        when jsonb_typeof(_node_cause.node -> 'name') <> 'string' or octet_length(_node_cause.node ->> 'name') > 128
          or jsonb_typeof(_node_cause.node -> 'source_type') <> 'string'
          or octet_length(_node_cause.node ->> 'source_type') not between 1 and 64 then 'malformed_condition'
        when kind in ('single', 'count') then flowfabric._leaf_cause(_node_cause.node)
        when coalesce(_node_cause.node -> 'members', '[]') = '[]' and 'members' = any (fields)
            then replace(kind, '_', '') || '_empty_members'
        when jsonb_typeof(_node_cause.node -> 'members') <> 'array' then 'malformed_condition' end);
    if cause is null and kind = 'single' then
        named := named || (_node_cause.node ->> 'waitpoint');
    elsif cause is null and kind = 'count' then
        for place in 0 .. jsonb_array_length(_node_cause.node -> 'waitpoints') - 1 loop
            named := named || (_node_cause.node -> 'waitpoints' ->> place);
        end loop;
    end if;
end $$;

-- Check a condition together with the keys of its waitpoints.
--
--   returns  the cause, or null if they are valid
create or replace function flowfabric._condition_cause(condition jsonb, keys text[])
returns text
language plpgsql immutable as $$
declare
    kind constant text := _condition_cause.condition ->> 'kind';
    checked constant record := flowfabric._node_cause(_condition_cause.condition, 1, 0, '{}');
begin
    return case
        when _condition_cause.keys = '{}' and kind in ('single', 'all_of', 'any_of', 'count') then 'waitpoints_empty'
        else coalesce(
            flowfabric._keys_cause(to_jsonb(_condition_cause.keys)),
            case when cardinality(_condition_cause.keys) > 64 then 'condition_too_large' end,
            checked.cause,
            case when not checked.named <@ _condition_cause.keys then 'referenced_waitpoint_key_missing_binding'
                 when not _condition_cause.keys <@ checked.named and kind not in ('operator_only', 'timeout_only')
                     then 'extra_binding_not_referenced_by_condition' end) end;
end $$;
