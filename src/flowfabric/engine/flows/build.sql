-- Build flows: create a flow and add members to it.

-- Create an empty flow. Its idempotency key is unique within the namespace and is reserved until the flow is removed.
--
--   moves    flow – → open
--   locks    the idempotency key
--   emits    flow_created
--   refuses  invalid_namespace, invalid_name, invalid_body, invalid_tag_key, invalid_tag
--   returns  'created', or 'duplicate' with the flow that already has this id or key
create or replace function flowfabric.create_flow(
    partition int, id uuid, namespace text, kind text, key text default null, key_partition int default null,
    tags text default null, out outcome text, out flow_id text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    owner record;
begin
    perform flowfabric._raise(coalesce(
        flowfabric._label_fault('invalid_namespace', 'namespace', coalesce(create_flow.namespace, '')),
        flowfabric._length_fault('invalid_name', 'kind', create_flow.kind, 1, 256, required => true),
        flowfabric._length_fault('invalid_body', 'key', create_flow.key, 1, 256, 'key'),
        case when create_flow.tags is not null then flowfabric._tags_fault(create_flow.tags::jsonb) end));
    outcome := 'duplicate';
    flow_id := flowfabric._id(create_flow.partition, create_flow.id);
    if exists (select from flowfabric.flows f where f.partition = create_flow.partition and f.id = create_flow.id) then
        return;
    end if;
    while create_flow.key is not null loop
        insert into flowfabric.flow_keys (partition, namespace, key, flow_partition, flow)
        values (create_flow.key_partition, create_flow.namespace, create_flow.key, create_flow.partition,
                create_flow.id)
        on conflict do nothing;
        exit when found;
        select k.flow_partition, k.flow into owner from flowfabric.flow_keys k
        where k.partition = create_flow.key_partition and k.namespace = create_flow.namespace
          and k.key = create_flow.key for update;
        if found then
            flow_id := flowfabric._id(owner.flow_partition, owner.flow);
            return;
        end if; -- otherwise retention has just removed the key with its flow: try again
    end loop;
    insert into flowfabric.flows (partition, id, namespace, kind, key, tags, created_at, changed_at)
    values (create_flow.partition, create_flow.id, create_flow.namespace, create_flow.kind, create_flow.key,
            nullif(create_flow.tags::jsonb, '{}'), now, now)
    on conflict do nothing;
    if not found then
        delete from flowfabric.flow_keys k
        where k.partition = create_flow.key_partition and k.namespace = create_flow.namespace
          and k.key = create_flow.key;
        return;
    end if;
    -- Retention finds a flow that stays empty through this row.
    insert into flowfabric.removals (ended_at, amount, partitions, executions)
    values (now, 1, array[create_flow.partition], array[create_flow.id]);
    perform flowfabric._append_flow('flow_created', create_flow.partition, create_flow.id,
                                    detail => jsonb_build_object('kind', create_flow.kind));
    outcome := 'created';
end $$;

-- Append an event about a flow.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_flow(
    kind text, partition int, flow uuid, by text default null, detail jsonb default null)
returns void
language plpgsql as $$
begin
    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, partition, flow, subject, tags, by, detail)
    select flowfabric.clock(), _append_flow.kind, f.partition, f.id, f.kind, f.tags, _append_flow.by,
           jsonb_build_object('namespace', f.namespace) || coalesce(jsonb_strip_nulls(_append_flow.detail), '{}')
    from flowfabric.flows f where f.partition = _append_flow.partition and f.id = _append_flow.flow;
end $$;

-- Record a change to a flow: raise its revision and update its counts. The caller has locked the flow.
--
--   returns  the updated flow
create or replace function flowfabric._touch_flow(partition int, id uuid, members int default 0, edges int default 0)
returns flowfabric.flows
language plpgsql as $$
declare
    flow flowfabric.flows;
begin
    update flowfabric.flows f
    set revision = f.revision + greatest(_touch_flow.members + _touch_flow.edges, 1),
        node_count = f.node_count + _touch_flow.members,
        edge_count = f.edge_count + _touch_flow.edges, changed_at = flowfabric.clock()
    where f.partition = _touch_flow.partition and f.id = _touch_flow.id
    returning f.* into flow;
    return flow;
end $$;

-- Make an execution a member of a flow in the same partition. The execution may be in any state.
--
--   locks    the flow; the ticket, if there is one; the record
--   emits    flow_member_added
--   refuses  flow_not_found, flow_already_terminal, wrong_partition, execution_not_found, execution_already_in_flow,
--            flow_too_large
--   returns  'added' or 'already_member', with the flow's member count and revision
create or replace function flowfabric.add_execution(
    partition int, flow uuid, execution_partition int, execution uuid,
    out outcome text, out node_count int, out revision int)
language plpgsql as $$
declare
    home flowfabric.flows;
    asked flowfabric.executions;
begin
    home := flowfabric._lock_open_flow(add_execution.partition, add_execution.flow);
    if add_execution.execution_partition <> home.partition then
        perform flowfabric._raise(flowfabric._partition_fault(
            add_execution.execution_partition, add_execution.execution, home.partition));
    end if;
    asked := flowfabric._lock_whole(home.partition, add_execution.execution);
    outcome := 'already_member';
    if asked.flow is distinct from home.id then
        perform flowfabric._raise(case
            when asked.flow is not null then flowfabric._fault('execution_already_in_flow', format(
                'execution %s is already a member of flow %s; submit another execution for this flow',
                flowfabric._id(home.partition, add_execution.execution), flowfabric._id(home.partition, asked.flow)),
                jsonb_build_object('flow_id', flowfabric._id(home.partition, asked.flow)))
            when home.node_count >= 10000 then flowfabric._large_flow_fault('members', 10000) end);
        perform flowfabric._join_flows(
            array[home.partition::int], array[add_execution.execution], array[home.id]);
        outcome := 'added';
    end if;
    select f.node_count, f.revision into node_count, revision from flowfabric.flows f
    where f.partition = home.partition and f.id = home.id;
end $$;

-- Build the error for an execution that is not in the partition of its flow.
--
--   refuses  wrong_partition, as a value
create or replace function flowfabric._partition_fault(partition int, id uuid, wanted int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('wrong_partition',
        format('execution %s is not in partition %s, the partition of its flow; submit it as a member of the flow',
               flowfabric._id(_partition_fault.partition, _partition_fault.id), _partition_fault.wanted))
$$;

-- Build the error for a flow that would exceed a size limit.
--
--   refuses  flow_too_large, as a value
create or replace function flowfabric._large_flow_fault(what text, most int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_too_large',
        format('the flow would exceed its limit of %s %s; split it into several flows',
               flowfabric._number(_large_flow_fault.most), _large_flow_fault.what),
        jsonb_build_object('limit', _large_flow_fault.most))
$$;

-- Check the items of a submission that join flows, after locking those flows: each flow must exist, be open, be in the
-- item's partition and have room. Items that are already refused do not count towards the size limit.
--
--   returns  one fault or null per item, including the faults passed in; null if there are none
create or replace function flowfabric._joining_faults(faults jsonb[], partitions int[], ids uuid[], flows uuid[])
returns jsonb[]
language plpgsql as $$
declare
    homes record;
    judged jsonb[];
begin
    -- Look the flow up by id alone, because an item may name another partition.
    select array_agg(f.partition) as partitions, array_agg(f.id) as flows into homes
    from (select distinct x.flow from unnest(_joining_faults.flows) as x (flow) where x.flow is not null) x
    cross join lateral (select f.partition, f.id from flowfabric.flows f where f.id = x.flow offset 0) f;
    perform flowfabric._lock_flows(homes.partitions, homes.flows);
    judged := array(
        select coalesce(x.fault, case
            when x.flow is null then null
            when (f.home).id is null then flowfabric._no_flow_fault(x.partition, x.flow)
            when (f.home).cancelled_at is not null then flowfabric._cancelled_flow_fault(f.home)
            when (f.home).partition <> x.partition
                then flowfabric._partition_fault(x.partition, x.id, (f.home).partition)
            when (f.home).node_count + x.turn > 10000 then flowfabric._large_flow_fault('members', 10000) end)
        from (
            select x.*, count(*) filter (where x.fault is null) over (partition by x.flow order by x.item) as turn
            from unnest(_joining_faults.partitions, _joining_faults.ids, _joining_faults.flows, _joining_faults.faults)
                 with ordinality as x (partition, id, flow, fault, item)) x
        left join lateral (select f as home from flowfabric.flows f where f.id = x.flow offset 0) f on true
        order by x.item);
    return case when array_remove(judged, null) <> '{}' then judged end;
end $$;

-- Make executions members of their flows; items without a flow are skipped, and with `made` those that it marks false.
-- The caller has locked the flows, and the tickets and the records of executions that are not new.
--
--   emits    flow_member_added
create or replace function flowfabric._join_flows(
    partitions int[], ids uuid[], flows uuid[], made boolean[] default null)
returns void
language plpgsql as $$
declare
    it record;
    home flowfabric.flows;
    joined record;
begin
    for it in
        select x.partition, x.flow, array_agg(x.id order by x.item) as ids
        from unnest(_join_flows.partitions, _join_flows.ids, _join_flows.flows)
             with ordinality as x (partition, id, flow, item)
        where x.flow is not null and (_join_flows.made is null or _join_flows.made[x.item])
        group by 1, 2 order by 1, 2
    loop
        home := flowfabric._touch_flow(it.partition, it.flow, cardinality(it.ids));
        update flowfabric.tickets t set flow = home.id
        from (
            select t.place from (select x.id from unnest(it.ids) as x (id) limit cardinality(it.ids)) x
            cross join lateral (
                select t.ctid as place from flowfabric.tickets t
                where t.partition = home.partition and t.id = x.id offset 0) t) x
        where t.ctid = x.place;
        with changed as (
            update flowfabric.executions e set flow = home.id
            from (
                select e.place from (select x.id from unnest(it.ids) as x (id) limit cardinality(it.ids)) x
                cross join lateral (
                    select e.ctid as place from flowfabric.executions e
                    where e.partition = home.partition and e.id = x.id offset 0) e) x
            where e.ctid = x.place
            returning e.partition, e.id
        )
        select array_agg(c.partition) as partitions, array_agg(c.id) as ids,
               array_agg(jsonb_build_object('node_count', home.node_count, 'revision', home.revision)) as details
        into joined from changed c;
        perform flowfabric._append_all('flow_member_added', joined.partitions, joined.ids, joined.details);
    end loop;
end $$;
