-- Building: making a flow, and giving it members.

-- What is wrong with the words of a flow.
--
--   refuses  invalid_namespace, invalid_name, invalid_body, invalid_tag_key, invalid_tag, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._flow_fault(namespace text, kind text, key text, tags jsonb)
returns jsonb
language sql immutable as $$
    select case
        when namespace is null or octet_length(namespace) not between 1 and 64 or namespace ~ '[^\x20-\x7e]' then
            flowfabric._fault('invalid_namespace', format('namespace %s: a namespace is 1 to 64 printable ASCII characters', flowfabric._shown(namespace)))
        when coalesce(octet_length(kind), 0) not between 1 and 256 then
            flowfabric._fault('invalid_name', format('kind %s: a kind is 1 to 256 bytes', flowfabric._shown(kind)))
        when octet_length(key) > 256 then
            flowfabric._fault('invalid_body', format('key %s: a key is at most 256 bytes', flowfabric._shown(key)), '{"field": "key"}')
        when tags is not null then flowfabric._tags_fault(tags)
    end
$$;

-- Make an empty flow. Its key is scoped by namespace and stands for it as long as it is there.
--
--   moves    flow – → open
--   locks    the key
--   emits    flow_created
--   refuses  invalid_namespace, invalid_name, invalid_body, invalid_tag_key, invalid_tag
--   returns  'created', or 'duplicate' with the flow that has the id or the key
create or replace function flowfabric.create_flow(
    partition int, id uuid, namespace text, kind text, key text default null, key_partition int default null, tags text default null,
    out outcome text, out flow_id text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    owner record;
begin
    perform flowfabric._raise(flowfabric._flow_fault(create_flow.namespace, create_flow.kind, create_flow.key, create_flow.tags::jsonb));
    key := nullif(create_flow.key, '');
    outcome := 'duplicate';
    flow_id := flowfabric._id(create_flow.partition, create_flow.id);
    if exists (select from flowfabric.flows f where f.partition = create_flow.partition and f.id = create_flow.id) then
        return;
    end if;
    while key is not null loop
        insert into flowfabric.flow_keys (partition, namespace, key, flow_partition, flow)
        values (create_flow.key_partition, create_flow.namespace, create_flow.key, create_flow.partition, create_flow.id)
        on conflict do nothing;
        exit when found;
        select k.flow_partition, k.flow into owner from flowfabric.flow_keys k
        where k.partition = create_flow.key_partition and k.namespace = create_flow.namespace and k.key = create_flow.key for update;
        if found then
            flow_id := flowfabric._id(owner.flow_partition, owner.flow);
            return;
        end if; -- else it was removed with its flow just now
    end loop;
    insert into flowfabric.flows (partition, id, namespace, kind, key, tags, created_at, changed_at)
    values (create_flow.partition, create_flow.id, create_flow.namespace, create_flow.kind, create_flow.key,
            nullif(create_flow.tags::jsonb, '{}'), now, now)
    on conflict do nothing;
    if not found then
        delete from flowfabric.flow_keys k
        where k.partition = create_flow.key_partition and k.namespace = create_flow.namespace and k.key = create_flow.key;
        return;
    end if;
    -- One that stays empty goes by this.
    insert into flowfabric.removals (partition, execution, ended_at) values (create_flow.partition, create_flow.id, now);
    perform flowfabric._append_flow('flow_created', create_flow.partition, create_flow.id,
                                    detail => jsonb_build_object('kind', create_flow.kind));
    outcome := 'created';
end $$;

-- Add a line to the log about a flow.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_flow(kind text, partition int, flow uuid, by text default null, detail jsonb default null)
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, partition, flow, subject, tags, by, detail)
    select flowfabric.clock(), _append_flow.kind, f.partition, f.id, f.kind, f.tags, _append_flow.by,
           jsonb_build_object('namespace', f.namespace) || coalesce(jsonb_strip_nulls(_append_flow.detail), '{}')
    from flowfabric.flows f where f.partition = _append_flow.partition and f.id = _append_flow.flow;
end $$;

-- Note that a flow has changed. The caller holds it.
--
--   returns  the flow as it is now
create or replace function flowfabric._touch_flow(partition int, id uuid, members int default 0, edges int default 0)
returns flowfabric.flows
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    flow flowfabric.flows;
begin
    update flowfabric.flows f
    set revision = f.revision + greatest(_touch_flow.members + _touch_flow.edges, 1), node_count = f.node_count + _touch_flow.members,
        edge_count = f.edge_count + _touch_flow.edges, changed_at = flowfabric.clock()
    where f.partition = _touch_flow.partition and f.id = _touch_flow.id
    returning f.* into flow;
    return flow;
end $$;

-- Make an execution of the flow's partition its member, whatever state it is in.
--
--   locks    the flow; the ticket
--   emits    flow_member_added
--   refuses  flow_not_found, flow_already_terminal, wrong_partition, execution_not_found, execution_already_in_flow, flow_too_large
--   returns  'added' or 'already_member', with how many members and which revision the flow has
create or replace function flowfabric.add_execution(
    partition int, flow uuid, execution_partition int, execution uuid, out outcome text, out node_count int, out revision int)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    home flowfabric.flows;
    asked record;
begin
    home := flowfabric._lock_open_flow(add_execution.partition, add_execution.flow);
    if add_execution.execution_partition <> home.partition then
        perform flowfabric._raise(flowfabric._elsewhere_fault(add_execution.execution_partition, add_execution.execution, home.partition));
    end if;
    perform from flowfabric.tickets t where t.partition = home.partition and t.id = add_execution.execution for update;
    select e.flow into asked from flowfabric.executions e
    where e.partition = home.partition and e.id = add_execution.execution for update;
    if not found then
        perform flowfabric._refuse_missing(home.partition, add_execution.execution);
    end if;
    outcome := 'already_member';
    if asked.flow is distinct from home.id then
        perform flowfabric._raise(case
            when asked.flow is not null then flowfabric._fault('execution_already_in_flow', format(
                'execution %s is a member of flow %s already', flowfabric._id(home.partition, add_execution.execution), flowfabric._id(home.partition, asked.flow)),
                jsonb_build_object('flow_id', flowfabric._id(home.partition, asked.flow)))
            when home.node_count >= 10000 then flowfabric._large_flow_fault('members', 10000) end);
        home := flowfabric._join_flow(home.partition, home.id, array[add_execution.execution]);
        outcome := 'added';
    end if;
    node_count := home.node_count;
    revision := home.revision;
end $$;

-- Make executions members of a flow that the caller holds, with their tickets and their records.
--
--   emits    flow_member_added
--   returns  the flow as it is now
create or replace function flowfabric._join_flow(partition int, flow uuid, executions uuid[])
returns flowfabric.flows
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    home flowfabric.flows := flowfabric._touch_flow(partition, flow, cardinality(executions));
    joined record;
begin
    update flowfabric.tickets t set flow = _join_flow.flow
    from (
        select t.place from (select x.id from unnest(_join_flow.executions) as x (id) limit cardinality(_join_flow.executions)) x
        cross join lateral (
            select t.ctid as place from flowfabric.tickets t where t.partition = _join_flow.partition and t.id = x.id offset 0) t) x
    where t.ctid = x.place;
    with changed as (
        update flowfabric.executions e set flow = _join_flow.flow
        from (
            select e.place from (select x.id from unnest(_join_flow.executions) as x (id) limit cardinality(_join_flow.executions)) x
            cross join lateral (
                select e.ctid as place from flowfabric.executions e where e.partition = _join_flow.partition and e.id = x.id offset 0) e) x
        where e.ctid = x.place
        returning e.partition, e.id, e.route, e.tags, e.flow
    )
    select array_agg(c.partition) as partitions, array_agg(c.id) as ids, array_agg(c.route) as routes, array_agg(c.tags) as tags,
           array_agg(c.flow) as flows, array_agg(jsonb_build_object('node_count', home.node_count, 'revision', home.revision)) as details
    into joined from changed c;
    perform flowfabric._append_each('flow_member_added', joined.partitions, joined.ids, joined.routes, joined.tags, joined.details,
                                    flows => joined.flows);
    return home;
end $$;

-- The refusal of an execution in another partition than its flow.
--
--   refuses  wrong_partition, as a value
--   returns  the fault
create or replace function flowfabric._elsewhere_fault(partition int, id uuid, wanted int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('wrong_partition', format('execution %s is not in partition %s, where its flow is; submit it with that flow',
                                                       flowfabric._id(_elsewhere_fault.partition, _elsewhere_fault.id), _elsewhere_fault.wanted))
$$;

-- The refusal of more than a flow may have.
--
--   refuses  flow_too_large, as a value
--   returns  the fault
create or replace function flowfabric._large_flow_fault(what text, most int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_too_large', format('there would be more than %s %s; split it into several flows', most, what),
                             jsonb_build_object('limit', most))
$$;

-- What is wrong with items of a submission that are to join flows, which are locked here: a flow may take none or no more of
-- them. An item that is refused anyway counts for nothing.
--
--   locks    the flows, in key order
--   refuses  flow_not_found, flow_already_terminal, wrong_partition, flow_too_large, as a value
--   returns  the faults with those added; null when there is none
create or replace function flowfabric._joining_faults(faults jsonb[], partitions int[], ids uuid[], flows uuid[])
returns jsonb[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    homes record;
    judged jsonb[];
begin
    -- A flow is found by its id alone: an item may say another partition.
    select array_agg(f.partition) as partitions, array_agg(f.id) as flows into homes
    from (select distinct x.flow from unnest(_joining_faults.flows) as x (flow) where x.flow is not null) x
    cross join lateral (select f.partition, f.id from flowfabric.flows f where f.id = x.flow offset 0) f;
    perform flowfabric._lock_flows(homes.partitions, homes.flows);
    judged := array(
        select coalesce(x.fault, case
            when x.flow is null then null
            when (f.home).id is null then flowfabric._no_flow_fault(x.partition, x.flow)
            when (f.home).cancelled_at is not null then flowfabric._cancelled_flow_fault(f.home)
            when (f.home).partition <> x.partition then flowfabric._elsewhere_fault(x.partition, x.id, (f.home).partition)
            when (f.home).node_count + x.turn > 10000 then flowfabric._large_flow_fault('members', 10000) end)
        from (
            select x.*, count(*) filter (where x.fault is null) over (partition by x.flow order by x.item) as turn
            from unnest(_joining_faults.partitions, _joining_faults.ids, _joining_faults.flows, _joining_faults.faults)
                 with ordinality as x (partition, id, flow, fault, item)) x
        left join lateral (select f as home from flowfabric.flows f where f.id = x.flow offset 0) f on true
        order by x.item);
    return case when array_remove(judged, null) <> '{}' then judged end;
end $$;

-- Make what was submitted with a flow its members. The caller holds the flows.
--
--   emits    flow_member_added
create or replace function flowfabric._join_flows(partitions int[], ids uuid[], flows uuid[], made boolean[])
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    it record;
begin
    for it in
        select x.partition, x.flow, array_agg(x.id order by x.item) as ids
        from unnest(_join_flows.partitions, _join_flows.ids, _join_flows.flows) with ordinality as x (partition, id, flow, item)
        where x.flow is not null and (made is null or made[x.item])
        group by 1, 2 order by 1, 2
    loop
        perform flowfabric._join_flow(it.partition, it.flow, it.ids);
    end loop;
end $$;
