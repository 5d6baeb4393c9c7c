-- Locks: the lock order of flows. A flow is locked before the tickets of its members.

-- The members that an end in these flows may cancel: the pending upstreams of pending groups that cancel their
-- remaining upstreams (cancel_remaining).
--
--   returns  one row per member
create or replace function flowfabric._cancellable(partitions smallint[], flows uuid[])
returns table (partition smallint, id uuid)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    select distinct e.partition, e.upstream
    from unnest(_cancellable.partitions, _cancellable.flows) as x (partition, flow)
    cross join lateral (
        select g.downstream from flowfabric.edge_groups g
        where g.flow = x.flow and g.cancels and g.state = 'pending' offset 0) g
    cross join lateral (
        select e.partition, e.upstream from flowfabric.flow_edges e
        where e.flow = x.flow and e.downstream = g.downstream and e.partition + 0 = x.partition
          and e.state = 'pending' offset 0) e;
end $$;

-- Lock flows.
--
--   locks    the flows, in key order
create or replace function flowfabric._lock_flows(partitions smallint[], flows uuid[])
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform from (
        select distinct x.partition, x.flow
        from unnest(_lock_flows.partitions, _lock_flows.flows) as x (partition, flow)
        order by x.partition, x.flow) x
    cross join lateral (select from flowfabric.flows f where f.partition = x.partition and f.id = x.flow for update) f;
end $$;

-- Lock the flows of executions, whether or not the executions have ended.
--
--   locks    the flows, in key order
create or replace function flowfabric._lock_flows_of(partitions smallint[], ids uuid[])
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    held record;
begin
    select array_agg(e.partition) as partitions, array_agg(e.flow) as flows into held
    from unnest(_lock_flows_of.partitions, _lock_flows_of.ids) as x (partition, id)
    cross join lateral (
        select e.partition, e.flow from flowfabric.executions e
        where e.partition = x.partition and e.id = x.id offset 0) e
    where e.flow is not null;
    perform flowfabric._lock_flows(held.partitions, held.flows);
end $$;

-- Lock the flows of executions that a call may end, before the call locks their tickets. A caller that knows the flows
-- (one per item) passes them, and pays nothing when there are none. If an end may cancel other members, their tickets
-- are locked here together with the tickets of the call, then the budgets in which any of them has reservations,
-- together with the `budgets` that the call names.
--
--   locks    the flows, in key order; the tickets, in key order; the budgets of their reservations, in key order
create or replace function flowfabric._lock_for_end(
    partitions int[], ids uuid[], flows uuid[] default null, budgets uuid[] default '{}')
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    held record;
    stake record;
begin
    if _lock_for_end.flows is null then
        select array_agg(t.partition) as partitions, array_agg(t.flow) as flows into held
        from unnest(_lock_for_end.partitions, _lock_for_end.ids) as x (partition, id)
        cross join lateral (
            select t.partition, t.flow from flowfabric.tickets t
            where t.partition = x.partition and t.id = x.id offset 0) t
        where t.flow is not null;
    else
        select array_agg(x.partition::smallint) as partitions, array_agg(x.flow) as flows into held
        from unnest(_lock_for_end.partitions, _lock_for_end.flows) as x (partition, flow) where x.flow is not null;
    end if;
    if held.flows is null then
        return;
    end if;
    perform flowfabric._lock_flows(held.partitions, held.flows);
    select array_agg(c.partition::int) as partitions, array_agg(c.id) as ids into stake
    from flowfabric._cancellable(held.partitions, held.flows) c;
    if stake.ids is not null then
        perform from (
            select distinct x.partition, x.id
            from unnest(stake.partitions || _lock_for_end.partitions, stake.ids || _lock_for_end.ids)
                 as x (partition, id)
            order by x.partition, x.id) x
        cross join lateral (
            select from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;
        perform flowfabric._lock_at_stake(
            stake.partitions || _lock_for_end.partitions, stake.ids || _lock_for_end.ids, _lock_for_end.budgets);
    end if;
end $$;

-- Lock the flows of executions that a breach of one of these budgets would end. Budgets that neither fail nor cancel
-- executions are skipped, and most are of that kind.
--
--   locks    the flows, in key order; the tickets that an end in them may cancel, in key order; the budgets of their
--            reservations, in key order
create or replace function flowfabric._lock_flows_at_stake(budgets uuid[], partitions int[], ids uuid[])
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    if exists (
        select from flowfabric.budgets b
        where b.id = any (_lock_flows_at_stake.budgets) and b.on_hard_limit in ('fail', 'cancel')) then
        perform flowfabric._lock_for_end(_lock_flows_at_stake.partitions, _lock_flows_at_stake.ids,
                                         budgets => _lock_flows_at_stake.budgets);
    end if;
end $$;

-- Lock flows without waiting (skip locked), for a sweep that has already locked tickets and therefore must not wait.
-- The sweep ends only members of the flows it got; the next pass handles the others.
--
--   locks    the flows, and the tickets that an end in them may cancel; skips locked rows
--   returns  the locked flows
create or replace function flowfabric._try_flows(partitions smallint[], flows uuid[])
returns uuid[]
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    got uuid[] := '{}';
    it record;
begin
    for it in
        select x.partition, x.flow from (
            select distinct x.partition, x.flow
            from unnest(_try_flows.partitions, _try_flows.flows) as x (partition, flow)
            order by x.partition, x.flow) x
        cross join lateral (
            select from flowfabric.flows f where f.partition = x.partition and f.id = x.flow for update skip locked) f
    loop
        if (select count(*) from flowfabric._cancellable(array[it.partition], array[it.flow])) = (
            select count(*) from (
                select from flowfabric._cancellable(array[it.partition], array[it.flow]) c
                cross join lateral (
                    select from flowfabric.tickets t where t.partition = c.partition and t.id = c.id
                    for update skip locked) t) x) then
            got := got || it.flow;
        end if;
    end loop;
    return got;
end $$;

-- Lock the budgets with reservations of executions that a sweep is about to end, and of members that those ends may
-- cancel in the flows it has locked. Without flows nothing is locked here, because the end locks the budgets itself, in
-- order.
--
--   locks    the budgets, in key order
--   returns  whether any budget is affected, with or without flows
create or replace function flowfabric._lock_budgets_at_stake(partitions int[], ids uuid[], flows uuid[])
returns boolean
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    homes record;
    stake record;
begin
    if _lock_budgets_at_stake.flows <> '{}' then
        select array_agg(f.partition) as partitions, array_agg(f.id) as flows into homes
        from flowfabric.flows f where f.id = any (_lock_budgets_at_stake.flows);
        select array_agg(c.partition::int) as partitions, array_agg(c.id) as ids into stake
        from flowfabric._cancellable(homes.partitions, homes.flows) c;
        _lock_budgets_at_stake.partitions := _lock_budgets_at_stake.partitions || stake.partitions;
        _lock_budgets_at_stake.ids := _lock_budgets_at_stake.ids || stake.ids;
        perform flowfabric._lock_at_stake(_lock_budgets_at_stake.partitions, _lock_budgets_at_stake.ids);
    end if;
    return flowfabric._budgets_at_stake('{}', _lock_budgets_at_stake.partitions, _lock_budgets_at_stake.ids) <> '{}';
end $$;

-- Lock a flow that must exist and must not be cancelled.
--
--   locks    the flow
--   refuses  flow_not_found, flow_already_terminal
--   returns  the flow
create or replace function flowfabric._lock_open_flow(partition int, id uuid)
returns flowfabric.flows
language plpgsql as $$
#variable_conflict use_column
declare
    flow flowfabric.flows;
begin
    select f.* into flow from flowfabric.flows f
    where f.partition = _lock_open_flow.partition and f.id = _lock_open_flow.id for update;
    if not found then
        perform flowfabric._raise(flowfabric._no_flow_fault(_lock_open_flow.partition, _lock_open_flow.id));
    elsif flow.cancelled_at is not null then
        perform flowfabric._raise(flowfabric._cancelled_flow_fault(flow));
    end if;
    return flow;
end $$;

-- The error for a flow that does not exist.
--
--   refuses  flow_not_found, as a value
--   returns  the error
create or replace function flowfabric._no_flow_fault(partition int, id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_not_found',
        format('flow %s does not exist; check the id, or retention has removed it',
               flowfabric._id(_no_flow_fault.partition, _no_flow_fault.id)))
$$;

-- The error for a change to a cancelled flow.
--
--   refuses  flow_already_terminal, as a value
--   returns  the error
create or replace function flowfabric._cancelled_flow_fault(flow flowfabric.flows)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_already_terminal',
        format('flow %s was cancelled at %s and cannot be changed; create another flow',
               flowfabric._id((_cancelled_flow_fault.flow).partition, (_cancelled_flow_fault.flow).id),
               flowfabric._moment((_cancelled_flow_fault.flow).cancelled_at)))
$$;

-- Validate that a flow is not cancelled, before one of its members is replayed.
--
--   refuses  flow_already_terminal, as a value
--   returns  the error, or null when the flow is open
create or replace function flowfabric._closed_flow_fault(partition int, id uuid)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
begin
    return (select flowfabric._cancelled_flow_fault(f) from flowfabric.flows f
            where f.partition = _closed_flow_fault.partition and f.id = _closed_flow_fault.id
              and f.cancelled_at is not null);
end $$;
