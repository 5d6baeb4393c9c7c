-- Explain flow members: which upstream executions a member waits for.

-- Explain which upstreams a blocked member waits for. Names the first five upstreams, and one upstream that ended
-- without success and must be replayed.
create or replace function flowfabric._explain_dependencies(ticket flowfabric.tickets)
returns jsonb
language plpgsql stable as $$
declare
    rule flowfabric.edge_groups;
    awaited record;
begin
    select g.* into rule from flowfabric.edge_groups g
    where g.partition = ticket.partition and g.downstream = ticket.id;
    if rule.total < rule.needed then
        return flowfabric._explanation(
            format('waits for more upstream executions: its quorum needs %s and has %s; use add_edge to add them',
                   rule.needed, rule.total),
            'upstreams', ticket.created_at, 'add_edge');
    end if;
    select count(*) as amount, min(case when u.outcome is not null then format('%s %s and must be replayed',
               flowfabric._id(ticket.partition, e.upstream), flowfabric._ended_state(u.outcome)) end) as bad,
           array_to_string((array_agg(flowfabric._id(ticket.partition, e.upstream) order by e.upstream))[1:5], ', ')
           || case when count(*) > 5 then ', …' else '' end as names
    into awaited from flowfabric.flow_edges e
    left join flowfabric.executions u on u.partition = e.partition and u.id = e.upstream
    where e.partition = ticket.partition and e.downstream = ticket.id and e.state = 'pending';
    return flowfabric._explanation(
        case when rule.needed is null
             then format('waits for %s of %s upstream executions: %s', awaited.amount, rule.total, awaited.names)
             else format('waits for %s more of %s upstream executions to succeed: %s',
                         rule.needed - rule.succeeded, rule.total, awaited.names) end
        || coalesce('; ' || awaited.bad, ''),
        'upstreams', ticket.created_at, case when awaited.bad is null then 'complete' else 'replay' end);
end $$;
