-- Holds: an operator keeps a single execution from being claimed, and releases it.

-- Hold an execution: keep it from being claimed. Invalidates an unused grant for it.
--
--   moves    runnable → runnable: blocked_by_operator / paused_by_operator
--   locks    the ticket
--   emits    execution_held
--   refuses  execution_not_found, execution_ended, execution_not_runnable, invalid_body
--   returns  'held', or 'noop' if it was already held
create or replace function flowfabric.hold(partition int, id uuid, by text, reason text default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    ticket flowfabric.tickets;
    given text := flowfabric._kept_text(hold.reason);
begin
    perform flowfabric._check_by(hold.by);
    ticket := flowfabric._lock_runnable(hold.partition, hold.id);
    if ticket.eligibility = 'blocked_by_operator' then
        return 'noop';
    end if;
    update flowfabric.tickets t
    set eligibility = 'blocked_by_operator', reason = 'paused_by_operator',
        hold = jsonb_strip_nulls(jsonb_build_object('by', hold.by, 'reason', given, 'since', flowfabric.clock(),
                                                    'reason_before', ticket.reason))
    where t.partition = ticket.partition and t.id = ticket.id;
    perform flowfabric._append_about('execution_held', ticket.partition, ticket.id, hold.by,
                                     jsonb_build_object('reason', given));
    return 'held';
end $$;

-- Release a held execution to the state it would have without the hold.
--
--   moves    blocked_by_operator → blocked_by_dependencies while it waits for upstream members, not_eligible_until_time
--            while its due time is ahead, else eligible_now
--   locks    the ticket
--   emits    execution_unheld
--   refuses  execution_not_found, execution_ended, execution_not_runnable, invalid_body
--   returns  'unheld', or 'noop' if it was not held; and its public state
create or replace function flowfabric.unhold(
    partition int, id uuid, by text, reason text default null, out outcome text, out public_state text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    ticket flowfabric.tickets;
begin
    perform flowfabric._check_by(unhold.by);
    ticket := flowfabric._lock_runnable(unhold.partition, unhold.id);
    outcome := 'noop';
    if ticket.eligibility = 'blocked_by_operator' then
        update flowfabric.tickets t
        set eligibility = case when w.awaits then 'blocked_by_dependencies'
                               when t.due_at > now then 'not_eligible_until_time'
                               else 'eligible_now' end::flowfabric.eligibility,
            reason = case when w.awaits then 'waiting_for_children'
                          when t.due_at > now then
                              coalesce(nullif(t.hold ->> 'reason_before', 'waiting_for_children'), 'waiting_for_delay')
                          else 'waiting_for_worker' end::flowfabric.reason,
            hold = null
        from (select flowfabric._awaits(ticket) as awaits) w
        where t.partition = ticket.partition and t.id = ticket.id
        returning t.* into ticket;
        perform flowfabric._append_about('execution_unheld', ticket.partition, ticket.id, unhold.by,
                                         jsonb_build_object('reason', flowfabric._kept_text(unhold.reason)));
        outcome := 'unheld';
    end if;
    public_state := flowfabric._public_state(ticket, flowfabric._eligibility_state(ticket, now));
end $$;

-- Lock the ticket of a runnable execution.
--
--   refuses  execution_not_runnable
--   returns  the ticket
create or replace function flowfabric._lock_runnable(partition int, id uuid)
returns flowfabric.tickets
language plpgsql as $$
declare
    ticket flowfabric.tickets := flowfabric._lock_ticket(_lock_runnable.partition, _lock_runnable.id);
begin
    if ticket.phase <> 'runnable' then
        perform flowfabric._refuse('execution_not_runnable',
            format('execution %s is %s, not runnable; wait until it is, or use cancel to end it',
                   flowfabric._id(ticket.partition, ticket.id), ticket.phase),
            jsonb_build_object('phase', ticket.phase));
    end if;
    return ticket;
end $$;
