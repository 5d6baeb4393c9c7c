-- Cancel flows: end a flow and all its members, only those without a lease, or none.

-- Cancel a flow and the unfinished members that the policy selects. The members end cancelled, never skipped: the edges
-- between them are settled but trigger nothing. Members that still run afterwards end normally.
--
--   moves    flow → cancelled; members of any phase → ended: cancelled
--   locks    the flow; the tickets of its members, in key order; the budgets of their reservations, in key order
--   emits    flow_cancelled, execution_cancelled, edge_group_impossible, edge_group_satisfied, execution_skipped,
--            reservation_released, waitpoint_closed
--   refuses  flow_not_found, invalid_body
--   returns  'cancelled', or 'already_cancelled' with the policy, reason and caller of the first call; how many members
--            it cancelled, and the first 1,000 of them
create or replace function flowfabric.cancel_flow(
    partition int, id uuid, reason text default null, by text default null, policy text default 'cancel_all',
    out outcome text, out kept_policy text, out kept_reason text, out kept_by text, out amount int, out members text[])
language plpgsql as $$
declare
    flow flowfabric.flows;
    going record;
begin
    perform flowfabric._check_by(cancel_flow.by);
    if coalesce(cancel_flow.policy not in ('cancel_all', 'cancel_pending', 'flow_only'), true) then
        perform flowfabric._refuse('invalid_body',
            format('policy %s is invalid; use cancel_all, cancel_pending or flow_only',
                   flowfabric._shown(cancel_flow.policy)),
            '{"field": "policy"}');
    end if;
    flow := flowfabric._lock_flow(cancel_flow.partition, cancel_flow.id);
    outcome := 'already_cancelled';
    if flow.cancelled_at is null then
        select array_agg(x.partition) as partitions, array_agg(x.id) as ids, count(*)::int as amount into going from (
            select t.partition, t.id, t.phase from flowfabric.tickets t
            where t.flow = flow.id and cancel_flow.policy <> 'flow_only'
            order by t.partition, t.id for update) x
        where cancel_flow.policy = 'cancel_all' or x.phase <> 'active';
        update flowfabric.flows f
        set cancelled_at = flowfabric.clock(), changed_at = flowfabric.clock(), revision = f.revision + 1,
            cancel_policy = cancel_flow.policy, cancel_reason = flowfabric._kept_text(cancel_flow.reason),
            cancel_by = cancel_flow.by, cancel_count = going.amount,
            cancel_members = coalesce(going.ids[1:1000], '{}')
        where f.partition = flow.partition and f.id = flow.id
        returning f.* into flow;
        perform flowfabric._append_flow('flow_cancelled', flow.partition, flow.id, cancel_flow.by, jsonb_build_object(
            'policy', flow.cancel_policy, 'reason', flow.cancel_reason, 'count', flow.cancel_count));
        if going.ids is not null then
            perform flowfabric._settle_edges(
                going.partitions, going.ids, array_fill('failed'::flowfabric.edge_state, array[going.amount]));
            perform flowfabric._end(
                going.partitions, going.ids, 'cancelled', by => cancel_flow.by, detail => '{"source": "flow_cascade"}',
                failures => array_fill(
                    jsonb_strip_nulls(jsonb_build_object('class', 'cancelled', 'reason', flow.cancel_reason)),
                    array[going.amount]));
        end if;
        outcome := 'cancelled';
    end if;
    kept_policy := flow.cancel_policy;
    kept_reason := flow.cancel_reason;
    kept_by := flow.cancel_by;
    amount := flow.cancel_count;
    members := array(select flowfabric._id(flow.partition, m) from unnest(flow.cancel_members) m);
end $$;
