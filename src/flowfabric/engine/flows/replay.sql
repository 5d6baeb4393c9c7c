-- Replay in a flow: reset edges and groups to pending when a member runs again.

-- Reset the edges that the end of a member settled, if their group is still pending. If the member's own group was
-- impossible (as for every skipped member), it waits again for all upstreams whose latest end is not a success, also
-- for one that had succeeded before and was replayed. The caller has locked the flow, and the member has its new
-- ticket.
--
--   moves    edge succeeded, failed, skipped → pending; group impossible → pending, satisfied; the member →
--            blocked_by_dependencies, while its group is pending
create or replace function flowfabric._reopen(partition int, id uuid, flow uuid)
returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    children uuid[];
begin
    with reopened as (
        update flowfabric.flow_edges e set state = 'pending'
        from (
            select e.place from (
                select e.ctid as place, e.downstream from flowfabric.flow_edges e
                where e.upstream = _reopen.id and e.partition + 0 = _reopen.partition
                  and e.state <> 'pending' offset 0) e
            cross join lateral (
                select from flowfabric.edge_groups g
                where g.partition = _reopen.partition and g.downstream = e.downstream
                  and g.state = 'pending' offset 0) g) x
        where e.ctid = x.place
        returning e.downstream
    )
    select array_agg(r.downstream) into children from reopened r;
    perform flowfabric._recount(_reopen.partition, c, _reopen.flow) from unnest(children) c;

    if exists (select from flowfabric.edge_groups g
               where g.partition = _reopen.partition and g.downstream = _reopen.id and g.state = 'impossible') then
        update flowfabric.flow_edges e
        set state = case when u.outcome = 'success' then 'succeeded' else 'pending' end::flowfabric.edge_state
        from (
            select e.ctid as place, e.upstream from flowfabric.flow_edges e
            where e.flow = _reopen.flow and e.downstream = _reopen.id and e.partition + 0 = _reopen.partition
              and e.state <> 'pending' offset 0) x
        cross join lateral (
            select u.outcome from flowfabric.executions u
            where u.partition = _reopen.partition and u.id = x.upstream offset 0) u
        where e.ctid = x.place;
        perform flowfabric._recount(_reopen.partition, _reopen.id, _reopen.flow);
    end if;
    update flowfabric.tickets t set eligibility = 'blocked_by_dependencies', reason = 'waiting_for_children'
    where t.partition = _reopen.partition and t.id = _reopen.id and flowfabric._awaits(t);
end $$;

-- Recount the edges of a group and derive its state from them.
--
--   moves    group → pending, satisfied
create or replace function flowfabric._recount(partition int, downstream uuid, flow uuid)
returns void
language plpgsql as $$
begin
    update flowfabric.edge_groups g
    set succeeded = c.succeeded, failed = c.failed, skipped = c.skipped,
        state = flowfabric._judge_group(g.needed, g.total, c.succeeded::int, (c.failed + c.skipped)::int)
    from (
        select count(*) filter (where e.state = 'succeeded') as succeeded,
               count(*) filter (where e.state = 'failed') as failed,
               count(*) filter (where e.state = 'skipped') as skipped
        from flowfabric.flow_edges e
        where e.flow = _recount.flow and e.downstream = _recount.downstream
          and e.partition + 0 = _recount.partition) c
    where g.partition = _recount.partition and g.downstream = _recount.downstream;
end $$;
