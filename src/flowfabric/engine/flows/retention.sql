-- Retention: flows are removed whole, so that no edge refers to a removed execution.

-- Remove the flows of these executions, and the flows among the given ids, if all members have ended and the longest
-- retention of a member is over. An empty flow counts from its creation. The removal entry of the member that expires
-- last removes the flow; earlier entries find nothing to do. The caller removes the members.
--
--   locks    the flows, skipping locked ones
--   returns  the members of the removed flows, and the given executions whose flow is locked
create or replace function flowfabric._remove_flows(
    partitions smallint[], ids uuid[], retention interval, now timestamptz,
    out member_partitions smallint[], out members uuid[], out busy uuid[])
language plpgsql as $$
declare
    asked record;
    ready uuid[];
begin
    busy := '{}';
    select array_agg(x.id) as ids, array_agg(f.partition) as partitions, array_agg(f.id) as flows into asked
    from unnest(_remove_flows.partitions, _remove_flows.ids) as x (partition, id)
    left join lateral (
        select e.flow from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e on true
    cross join lateral (
        select f.partition, f.id from flowfabric.flows f
        where f.partition = x.partition and f.id = coalesce(e.flow, x.id) offset 0) f;
    if asked.flows is null then
        return;
    end if;
    ready := array(
        select f.id from (
            select distinct a.partition, a.flow from unnest(asked.partitions, asked.flows) as a (partition, flow)
            order by 1, 2) a
        cross join lateral (
            select f.id from flowfabric.flows f
            where f.partition = a.partition and f.id = a.flow for update skip locked) f);
    busy := array(select a.id from unnest(asked.ids, asked.flows) as a (id, flow) where not a.flow = any (ready));
    -- A statement after the locks, so that it sees the current members.
    ready := array(
        select f.id from unnest(ready) f (id)
        where not exists (select from flowfabric.tickets t where t.flow = f.id) and not exists (
            select from unnest(asked.partitions, asked.flows) as a (partition, flow)
            cross join lateral (
                select from flowfabric.executions e
                where e.partition = a.partition and e.flow = a.flow
                  and e.ended_at + coalesce((e.policy ->> 'retention_ms')::bigint * interval '1 ms',
                                            _remove_flows.retention) > _remove_flows.now
                limit 1) e
            where a.flow = f.id));
    select array_agg(e.partition), array_agg(e.id) into member_partitions, members
    from (
        select distinct a.partition, a.flow from unnest(asked.partitions, asked.flows) as a (partition, flow)
        where a.flow = any (ready)) a
    cross join lateral (
        select e.partition, e.id from flowfabric.executions e
        where e.partition = a.partition and e.flow = a.flow offset 0) e;
    delete from flowfabric.flow_edges e where e.flow = any (ready);
    delete from flowfabric.edge_groups g where g.flow = any (ready);
    delete from flowfabric.flow_keys k where k.flow = any (ready);
    delete from flowfabric.flows f where f.id = any (ready);
end $$;
