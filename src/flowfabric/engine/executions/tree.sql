-- Trees: an execution with its children, their children, and so on.

-- The state of a child for a count: its public state, except that limits of budgets and quotas are not looked up.
--
--   returns  a public state
create or replace function flowfabric._counted_state(
    outcome flowfabric.outcome, ticket flowfabric.tickets, now timestamptz)
returns text
language sql immutable as $$
    select case
        when _counted_state.outcome is not null then flowfabric._ended_state(_counted_state.outcome)
        when (_counted_state.ticket).eligibility = 'not_eligible_until_time'
             and (_counted_state.ticket).due_at <= _counted_state.now
            then flowfabric._public_state(_counted_state.ticket, 'eligible_now')
        else flowfabric._public_state(_counted_state.ticket, (_counted_state.ticket).eligibility::text) end
$$;

-- Count the children of executions by state, and choose which of them a tree shows: at most `per_parent`, the failed
-- ones first, then the unfinished ones, each the oldest first. Of one execution, at most 10,000 children are read.
--
--   returns  per execution with children its number, how many it has, {state: how many}, and those chosen, in order
create or replace function flowfabric._children_of(
    partitions smallint[], ids uuid[], per_parent int, now timestamptz)
returns table (number bigint, amount int, states jsonb, child_partitions smallint[], child_ids uuid[])
language sql stable as $$
    with children as materialized (
        select n.number, c.partition, c.id, c.created_at, c.state,
               row_number() over (partition by n.number order by
                   case when c.state in ('failed', 'expired') then 1
                        when c.state in ('completed', 'cancelled', 'skipped') then 3 else 2 end,
                   c.created_at, c.id) as place
        from unnest(_children_of.partitions, _children_of.ids) with ordinality as n (partition, id, number)
        cross join lateral (
            select e.partition, e.id, e.created_at,
                   flowfabric._counted_state(e.outcome, t, _children_of.now) as state
            from (select e.partition, e.id, e.created_at, e.outcome from flowfabric.executions e
                  where e.parent_partition = n.partition and e.parent = n.id limit 10000) e
            left join lateral (
                select t.* from flowfabric.tickets t
                where e.outcome is null and t.partition = e.partition and t.id = e.id offset 0) t on true offset 0) c
    )
    select c.number, sum(c.amount)::int, jsonb_object_agg(c.state, c.amount), x.partitions, x.ids
    from (select c.number, c.state, count(*) as amount from children c group by c.number, c.state) c
    cross join lateral (
        select array_agg(x.partition order by x.place) as partitions, array_agg(x.id order by x.place) as ids
        from children x where x.number = c.number and x.place <= _children_of.per_parent offset 0) x
    group by c.number, x.partitions, x.ids
    order by c.number
$$;

-- Read an execution with its children, their children, and so on, level by level: at most `per_parent` children of
-- each, 20 levels and `take` executions.
--
--   refuses  execution_not_found, invalid_limit
--   returns  a row per execution: its number, that of its parent in the tree (0 for the first), its summary, how many
--            children it has (at most 10,000), and {state: how many} for them
create or replace function flowfabric.read_tree(
    partition int, id uuid, per_parent int default 20, take int default 200)
returns table (number int, above int, summary text, child_count int, child_states text)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
declare
    now timestamptz := flowfabric.clock();
    most constant int := flowfabric._page(read_tree.per_parent) - 1;
    room constant int := flowfabric._page(read_tree.take) - 1;
    partitions smallint[] := array[read_tree.partition::smallint];
    ids uuid[] := array[read_tree.id];
    parents int[] := array[0];
    counts int[] := '{}';
    states jsonb[] := '{}';
    first int := 1;
    last int;
    level int := 0;
    found record;
begin
    if not exists (select from flowfabric.executions e
                   where e.partition = read_tree.partition and e.id = read_tree.id) then
        perform flowfabric._refuse_missing(read_tree.partition, read_tree.id);
    end if;
    loop
        last := cardinality(ids);
        level := level + 1;
        for found in
            select c.* from flowfabric._children_of(partitions[first:last], ids[first:last], most, now) c
        loop
            counts[first + found.number - 1] := found.amount;
            states[first + found.number - 1] := found.states;
            if level < 20 and cardinality(ids) < room and found.child_ids is not null then
                partitions := partitions || found.child_partitions[:room - cardinality(ids)];
                ids := ids || found.child_ids[:room - cardinality(ids)];
                parents := parents || array_fill((first + found.number - 1)::int, array[cardinality(ids)
                                                                                        - cardinality(parents)]);
            end if;
        end loop;
        exit when cardinality(ids) = last;
        first := last + 1;
    end loop;

    return query
    select n.number::int, parents[n.number], flowfabric._summary(n.partition, n.id, now)::text,
           coalesce(counts[n.number], 0), states[n.number]::text
    from unnest(partitions, ids) with ordinality as n (partition, id, number)
    order by n.number;
end $$;
