-- Follow ends: find the lanes and executions to notify after members of flows have ended.

-- Find the members that the end of these executions changed in the same transaction: members that became claimable, and
-- members that were skipped or cancelled. Walks the edges recursively, so an end without downstream members costs one
-- index lookup. Executions that ended before the given ones are not followed.
--
--   returns  the lanes with claimable work, and at most 10,000 executions that ended
create or replace function flowfabric.follow_ends(partitions int[], ids uuid[], out lanes text[], out ended text[])
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    earliest constant timestamptz := (
        select min(e.ended_at) from unnest(follow_ends.partitions, follow_ends.ids) as x (partition, id)
        cross join lateral (
            select e.ended_at, e.flow from flowfabric.executions e
            where e.partition = x.partition and e.id = x.id offset 0) e
        where e.flow is not null);
begin
    if earliest is null then
        return;
    end if;
    lanes := array(
        select distinct t.lane from unnest(follow_ends.partitions, follow_ends.ids) as x (partition, id)
        cross join lateral (
            select e.downstream from flowfabric.flow_edges e
            where e.upstream = x.id and e.partition + 0 = x.partition and e.state = 'succeeded' offset 0) e
        cross join lateral (
            select t.lane, t.phase, t.eligibility from flowfabric.tickets t
            where t.partition = x.partition and t.id = e.downstream offset 0) t
        where t.phase = 'runnable' and t.eligibility = 'eligible_now');
    ended := array(
        with recursive gone as (
            select x.partition, x.id, true as is_given
            from unnest(follow_ends.partitions, follow_ends.ids) as x (partition, id)
            union
            select g.partition, o.id, false from gone g
            cross join lateral (
                select e.flow, e.downstream, e.state from flowfabric.flow_edges e
                where e.upstream = g.id and e.partition + 0 = g.partition offset 0) e
            cross join lateral (
                select e.downstream as id where e.state <> 'succeeded'
                union all
                select s.upstream from (
                    select from flowfabric.edge_groups w
                    where w.partition = g.partition and w.downstream = e.downstream and w.cancels
                      and w.state <> 'pending' offset 0) w
                cross join lateral (
                    select s.upstream from flowfabric.flow_edges s
                    where s.flow = e.flow and s.downstream = e.downstream and s.partition + 0 = g.partition
                      and s.state = 'failed' offset 0) s) c
            cross join lateral (
                select o.id, o.outcome, o.ended_at from flowfabric.executions o
                where o.partition = g.partition and o.id = c.id offset 0) o
            where o.outcome in ('skipped', 'cancelled') and o.ended_at >= earliest
        )
        select flowfabric._id(g.partition, g.id) from gone g
        group by g.partition, g.id having not bool_or(g.is_given) limit 10000);
end $$;
