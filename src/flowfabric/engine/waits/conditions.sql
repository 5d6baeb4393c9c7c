-- Conditions: what a suspended execution waits for, and whether it has arrived.

-- The signals a leaf of a condition counts, in order of arrival: the first match of `single`, the first signal of each of
-- the first n different things of `count`.
--
--   returns  their ids
create or replace function flowfabric._counted(leaf jsonb, signals jsonb)
returns text[]
language sql immutable as $$
    with matching as (
        select s.signal, s.place from jsonb_array_elements(_counted.signals) with ordinality as s (signal, place)
        where (leaf ->> 'waitpoint' = s.signal ->> 'waitpoint' or leaf -> 'waitpoints' ? (s.signal ->> 'waitpoint'))
          and coalesce(leaf ->> 'name', s.signal ->> 'name') = s.signal ->> 'name'
          and coalesce(leaf ->> 'source_type', s.signal ->> 'source_type') = s.signal ->> 'source_type'
    ), firsts as (
        select distinct on (1) case
                   when leaf ->> 'kind' = 'single' then 'one'
                   when leaf ->> 'of' = 'distinct_waitpoints' then m.signal ->> 'waitpoint'
                   when leaf ->> 'of' = 'distinct_sources' then jsonb_build_array(m.signal -> 'source_type', m.signal -> 'source_identity')::text
                   else m.signal ->> 'id' end as thing,
               m.signal ->> 'id' as id, m.place
        from matching m order by 1, m.place
    )
    select coalesce(array_agg(f.id order by f.place), '{}')
    from (select f.* from firsts f order by f.place limit coalesce((leaf ->> 'n')::int, 1)) f
$$;

-- Whether a condition holds over these signals ({id, waitpoint, name, source_type, source_identity} in order of arrival).
-- Each node is judged by itself: none shares or takes another's counts.
--
--   returns  whether it holds; all signals that some leaf counts; and those that made it hold
create or replace function flowfabric._judge(condition jsonb, signals jsonb, out holds boolean, out counted text[], out satisfiers text[])
language plpgsql immutable as $$
declare
    member jsonb;
    judged record;
    held int := 0;
begin
    counted := '{}';
    satisfiers := '{}';
    case condition ->> 'kind'
        when 'single', 'count' then
            counted := flowfabric._counted(condition, signals);
            holds := cardinality(counted) >= coalesce((condition ->> 'n')::int, 1);
            satisfiers := case when holds then counted else '{}' end;
        when 'all_of', 'any_of' then
            for member in select m from jsonb_array_elements(condition -> 'members') m loop
                judged := flowfabric._judge(member, signals);
                counted := counted || judged.counted;
                satisfiers := satisfiers || judged.satisfiers;
                held := held + judged.holds::int;
            end loop;
            holds := held >= case condition ->> 'kind' when 'any_of' then 1 else jsonb_array_length(condition -> 'members') end;
            satisfiers := case when holds then satisfiers else '{}' end;
        else
            holds := false;
    end case;
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
--   returns  each once
create or replace function flowfabric._named_keys(condition jsonb)
returns text[]
language sql immutable as $$
    select coalesce(array_agg(distinct k.key), '{}') from flowfabric._nodes(_named_keys.condition) n
    cross join lateral (
        select n.node ->> 'waitpoint' as key where n.node ? 'waitpoint'
        union all
        select jsonb_array_elements_text(n.node -> 'waitpoints') where jsonb_typeof(n.node -> 'waitpoints') = 'array') k
$$;

-- What is wrong with a node of a condition by itself.
--
--   returns  the cause, or null when it is good
create or replace function flowfabric._node_cause(node jsonb, depth int)
returns text
language sql immutable as $$
    select case
        when depth > 4 then 'condition_too_deep'
        when jsonb_typeof(node) <> 'object' or coalesce(node ->> 'kind', '') not in ('single', 'all_of', 'any_of', 'count', 'operator_only', 'timeout_only')
            then 'unknown_condition'
        when depth > 1 and node ->> 'kind' in ('operator_only', 'timeout_only') then 'nested_standalone'
        when node ->> 'name' = '' then 'signal_name_empty'
        when node ->> 'kind' = 'single' and coalesce(node ->> 'waitpoint', '') = '' then 'waitpoint_key_empty'
        when node ->> 'kind' = 'all_of' and coalesce(node -> 'members', '[]') = '[]' then 'allof_empty_members'
        when node ->> 'kind' = 'any_of' and coalesce(node -> 'members', '[]') = '[]' then 'anyof_empty_members'
        when node ->> 'kind' = 'count' then case
            when not flowfabric._is_whole(coalesce(node -> 'n', '0'), 1, 10000) then 'count_n_zero'
            when coalesce(node -> 'waitpoints', '[]') = '[]' then 'count_waitpoints_empty'
            when coalesce(node ->> 'of', '') not in ('distinct_waitpoints', 'distinct_signals', 'distinct_sources') then 'unknown_condition'
            when node ->> 'of' = 'distinct_waitpoints' and (node ->> 'n')::int > jsonb_array_length(node -> 'waitpoints') then 'count_exceeds_waitpoint_set' end
    end
$$;

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
    if keys = '{}' and condition ->> 'kind' in ('single', 'all_of', 'any_of', 'count') then
        return 'waitpoints_empty';
    end if;
    if '' = any (keys) then
        return 'waitpoint_key_empty';
    end if;
    if cardinality(keys) > (select count(distinct k) from unnest(keys) k) then
        return 'waitpoint_key_duplicate';
    end if;
    if cardinality(keys) > 64 or (select count(*) from flowfabric._nodes(condition)) > 64 then
        return 'condition_too_large';
    end if;
    select flowfabric._node_cause(n.node, n.depth) into cause from flowfabric._nodes(condition) n
    where flowfabric._node_cause(n.node, n.depth) is not null order by n.depth desc limit 1;
    if cause is not null then
        return cause;
    end if;
    named := flowfabric._named_keys(condition);
    return case
        when not named <@ keys then 'referenced_waitpoint_key_missing_binding'
        when not keys <@ named and condition ->> 'kind' not in ('operator_only', 'timeout_only') then 'extra_binding_not_referenced_by_condition'
    end;
end $$;
