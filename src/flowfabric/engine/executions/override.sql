-- Override: an operator completes or fails an execution without its lease.

-- Complete or fail an execution without its lease. A failure by override is final, whatever the retry policy says. If a
-- worker has a lease, it loses the lease, and its later calls are refused.
--
--   moves    any unfinished phase → ended: success or failed
--   locks    its flow; the ticket
--   emits    execution_overridden; execution_completed or execution_failed, edge_group_impossible,
--            edge_group_satisfied, execution_cancelled, execution_skipped, reservation_released, waitpoint_closed
--   refuses  execution_not_found, execution_ended, invalid_body, payload_too_large
--   returns  the public state, 'completed' or 'failed', also if it was overridden before with the same outcome and
--            result; the lanes where members of its flow became claimable, and the members that ended with it
create or replace function flowfabric.override(
    partition int, id uuid, outcome text, reason text, by text, result bytea default null, encoding text default null,
    result_limit int default 1048576, out public_state text, out lanes text[], out ended text[])
language plpgsql as $$
declare
    ticket flowfabric.tickets;
    wanted flowfabric.outcome;
begin
    perform flowfabric._check_by(coalesce(override.by, ''));
    perform flowfabric._raise(case
        when coalesce(override.outcome, '') not in ('success', 'failed') then
            flowfabric._fault('invalid_body',
                format('outcome %s is invalid; use success or failed', flowfabric._shown(override.outcome)),
                '{"field": "outcome"}')
        when coalesce(override.reason, '') !~ '\S' or octet_length(override.reason) > 4096 then
            flowfabric._fault('invalid_body',
                format('reason %s is invalid; say in 1 to 4,096 bytes why you override the execution',
                       flowfabric._shown(override.reason)), '{"field": "reason"}')
        when override.outcome = 'failed' and override.result is not null then
            flowfabric._fault('invalid_body',
                'a failed execution has no result; use the outcome success, or remove the result',
                '{"field": "result"}')
        else flowfabric._result_fault(octet_length(override.result), override.encoding, override.result_limit) end);
    wanted := override.outcome;
    public_state := flowfabric._ended_state(wanted);
    perform flowfabric._lock_for_end(array[override.partition], array[override.id], wins => wanted = 'success');
    select t.* into ticket from flowfabric.tickets t
    where t.partition = override.partition and t.id = override.id for update;
    if not found then
        if not exists (
            select from flowfabric.executions e
            where e.partition = override.partition and e.id = override.id and e.overridden is not null
              and e.outcome = wanted and e.result is not distinct from override.result) then
            perform flowfabric._refuse_ended(override.partition, override.id);
        end if;
        return;
    end if;

    update flowfabric.executions e
    set overridden = jsonb_build_object('by', override.by, 'reason', override.reason)
    where e.partition = ticket.partition and e.id = ticket.id;
    perform flowfabric._append_about(
        'execution_overridden', ticket.partition, ticket.id, override.by, jsonb_build_object(
            'outcome', wanted, 'reason', override.reason, 'phase', ticket.phase, 'attempt', ticket.attempt,
            'epoch', ticket.epoch, 'lease_id', case when ticket.phase = 'active' then ticket.lease_id end));
    select s.lanes, s.ended into lanes, ended from flowfabric._end(
        array[ticket.partition], array[ticket.id], wanted, array[override.result], array[override.encoding],
        case when wanted = 'failed' then array[jsonb_build_object(
            'class', 'permanent', 'category', 'overridden', 'reason', override.reason)] end,
        by => override.by) s;
end $$;
