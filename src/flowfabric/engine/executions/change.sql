-- Changing executions: cancel, and change the priority.

-- Refuse a change to an execution that has no ticket: it has ended, or it does not exist.
--
--   refuses  execution_ended
create or replace function flowfabric._refuse_ended(partition int, id uuid)
returns void
language plpgsql as $$
declare
    outcome flowfabric.outcome;
begin
    select e.outcome into outcome from flowfabric.executions e
    where e.partition = _refuse_ended.partition and e.id = _refuse_ended.id;
    if not found then
        perform flowfabric._refuse_missing(_refuse_ended.partition, _refuse_ended.id);
    end if;
    perform flowfabric._refuse('execution_ended',
        format('execution %s has ended: %s; use replay to run it again',
               flowfabric._id(_refuse_ended.partition, _refuse_ended.id), flowfabric._ended_state(outcome)),
        jsonb_build_object('outcome', outcome));
end $$;

-- Lock the ticket of an execution that has not ended.
--
--   locks    the ticket
create or replace function flowfabric._lock_ticket(partition int, id uuid)
returns flowfabric.tickets
language plpgsql as $$
declare
    ticket flowfabric.tickets;
begin
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _lock_ticket.partition and t.id = _lock_ticket.id for update;
    if not found then
        perform flowfabric._refuse_ended(_lock_ticket.partition, _lock_ticket.id);
    end if;
    return ticket;
end $$;

-- Cancel an execution. An operator needs no fence. Any other source must pass the fence while the execution is leased,
-- and a fence that is passed must be valid.
--
--   moves    any unfinished phase → ended: cancelled
--   locks    its flow; the ticket
--   emits    execution_cancelled, edge_group_impossible, edge_group_satisfied, execution_skipped, reservation_released,
--            waitpoint_closed
--   refuses  execution_not_found, execution_ended, fence_required, partial_fence, lease_lost, execution_not_active,
--            invalid_body
--   returns  'cancelled', also if it was cancelled before; and the members of its flow that ended with it
create or replace function flowfabric.cancel(
    partition int, id uuid, reason text default null, source text default 'operator_override', by text default null,
    lease_id uuid default null, epoch bigint default null, attempt int default null, out public_state text,
    out ended text[])
language plpgsql as $$
declare
    ticket flowfabric.tickets;
    outcome flowfabric.outcome;
begin
    perform flowfabric._check_by(cancel.by);
    public_state := 'cancelled';
    perform flowfabric._lock_for_end(array[cancel.partition], array[cancel.id]);
    select t.* into ticket from flowfabric.tickets t
    where t.partition = cancel.partition and t.id = cancel.id for update;
    if not found then
        select e.outcome into outcome from flowfabric.executions e
        where e.partition = cancel.partition and e.id = cancel.id;
        if outcome = 'cancelled' then
            return;
        end if;
        perform flowfabric._refuse_ended(cancel.partition, cancel.id);
    end if;

    if cancel.source <> 'operator_override'
       and (ticket.phase = 'active' or num_nonnulls(cancel.lease_id, cancel.epoch, cancel.attempt) > 0) then
        perform flowfabric._raise(flowfabric._fence_fault(ticket, cancel.lease_id, cancel.epoch, cancel.attempt,
                                                          flowfabric.clock()));
    end if;
    ended := (flowfabric._end(
        array[ticket.partition], array[ticket.id], 'cancelled', by => cancel.by,
        failures => array[jsonb_build_object('class', 'cancelled', 'reason', flowfabric._kept_text(cancel.reason))],
        detail => jsonb_build_object('source', cancel.source))).ended;
end $$;

-- Lock an execution whether or not it has ended, so that nothing else can change it or append an event about it: first
-- its ticket, then its record. If it was replayed between the two, the new ticket is locked last.
--
--   locks    the ticket, if there is one; the record
create or replace function flowfabric._lock_whole(partition int, id uuid)
returns flowfabric.executions
language plpgsql as $$
declare
    asked flowfabric.executions;
    has_ticket boolean;
begin
    perform from flowfabric.tickets t where t.partition = _lock_whole.partition and t.id = _lock_whole.id for update;
    has_ticket := found;
    select e.* into asked from flowfabric.executions e
    where e.partition = _lock_whole.partition and e.id = _lock_whole.id for update;
    if not found then
        perform flowfabric._refuse_missing(_lock_whole.partition, _lock_whole.id);
    elsif asked.outcome is null and not has_ticket then
        perform from flowfabric.tickets t where t.partition = asked.partition and t.id = asked.id for update;
    end if;
    return asked;
end $$;

-- Change an execution's priority within its lane. Takes effect at the next claim.
--
--   locks    the ticket
--   emits    priority_changed
--   refuses  execution_not_found, execution_ended, invalid_body
--   returns  the new priority, and the previous one
create or replace function flowfabric.change_priority(
    partition int, id uuid, wanted int, by text, out priority int, out previous int)
language plpgsql as $$
declare
    ticket flowfabric.tickets;
begin
    perform flowfabric._check_by(change_priority.by);
    perform flowfabric._raise(flowfabric._priority_fault(change_priority.wanted));
    ticket := flowfabric._lock_ticket(change_priority.partition, change_priority.id);
    priority := change_priority.wanted;
    previous := ticket.priority;
    if priority <> previous then
        update flowfabric.tickets t set priority = change_priority.priority
        where t.partition = ticket.partition and t.id = ticket.id;
        perform flowfabric._append_about('priority_changed', ticket.partition, ticket.id, change_priority.by,
                                         jsonb_build_object('priority', priority, 'previous', previous));
    end if;
end $$;
