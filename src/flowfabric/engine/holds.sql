-- Holds: an execution that is not claimed until an operator releases it, or one whose code has changed.

-- Hold an execution: keep it from being claimed. Invalidates an unused grant for it.
--
--   moves    runnable → runnable: blocked_by_operator / paused_by_operator
--   locks    the ticket
--   emits    execution_held
--   refuses  execution_not_found, execution_ended, execution_not_runnable, invalid_body
--   returns  'held', or 'noop' if it was already held
create or replace function flowfabric.hold(partition int, id uuid, by text, reason text default null)
returns text
language plpgsql as $$
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
--   moves    blocked_by_operator → blocked_by_dependencies while it waits for upstream members or its turn in a map,
--            not_eligible_until_time while its due time is ahead, else eligible_now
--   locks    the ticket
--   emits    execution_unheld
--   refuses  execution_not_found, execution_ended, execution_not_runnable, invalid_body
--   returns  'unheld', or 'noop' if it was not held; its public state; and the lane to wake if it was held
create or replace function flowfabric.unhold(
    partition int, id uuid, by text, reason text default null, out outcome text, out public_state text,
    out lane text)
language plpgsql as $$
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
        from (select flowfabric._awaits(ticket) or flowfabric._awaits_turn(ticket.partition, ticket.id) as awaits) w
        where t.partition = ticket.partition and t.id = ticket.id
        returning t.* into ticket;
        perform flowfabric._append_about('execution_unheld', ticket.partition, ticket.id, unhold.by,
                                         jsonb_build_object('reason', flowfabric._kept_text(unhold.reason)));
        outcome := 'unheld';
        lane := ticket.lane;
    end if;
    public_state := flowfabric._public_state(ticket, flowfabric._eligibility_state(ticket, now));
end $$;

-- Hold executions whose code has changed: a run does not fit what earlier runs have saved. The journal is kept, and the
-- attempt continues after `unhold`, so it is not used up. `steps` is a JSON list per item: the saved names that do not
-- fit, at most 100. `versions` are the versions of their tasks that the code has now; the hold also has the versions
-- under which they have started. `wait` is as for complete.
--
--   moves    active → runnable: attempt_interrupted, blocked_by_operator / code_changed
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   emits    execution_held
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            invalid_body, row_locked
--   returns  per item 'held', or its refusal
create or replace function flowfabric.hold_changed(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], reasons text[], steps text[],
    versions int[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz;
    rounds int[] := flowfabric._rounds(hold_changed.partitions, hold_changed.ids);
    judged record;
begin
    perform flowfabric._limit_waits(hold_changed.wait);
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(x.item) filter (where x.fault is null) as items,
               array_agg(x.place) filter (where x.fault is null) as places,
               array_agg(x.item) filter (where x.fault is not null) as refused,
               array_agg(x.fault) filter (where x.fault is not null) as faults
        into judged from (
            select f.item, f.place,
                   coalesce(f.fault, flowfabric._changed_fault(hold_changed.steps[f.item]::jsonb),
                            flowfabric._version_fault(hold_changed.versions[f.item])) as fault
            from flowfabric._fenced(hold_changed.partitions, hold_changed.ids, hold_changed.lease_ids,
                                    hold_changed.epochs, hold_changed.attempts, rounds, round, hold_changed.wait) f) x;
        now := flowfabric.clock();

        return query
        with held as (
            update flowfabric.tickets t
            set phase = 'runnable', attempt_state = 'attempt_interrupted', eligibility = 'blocked_by_operator',
                reason = 'code_changed',
                hold = jsonb_build_object('since', now) || c.change || flowfabric._version_change(t.version, c.version),
                attempt_left = t.attempt_deadline - now, attempt_deadline = null
            from (select x.* from unnest(judged.items, judged.places) as x (item, place)
                  limit cardinality(judged.items)) x
            cross join lateral (
                select jsonb_build_object('reason', flowfabric._kept_text(hold_changed.reasons[x.item]),
                                          'steps', hold_changed.steps[x.item]::jsonb),
                       hold_changed.versions[x.item]) c (change, version)
            where t.ctid = x.place
            returning x.item, t.partition, t.id, jsonb_build_object(
                'code_changed', true, 'attempt', t.attempt, 'epoch', t.epoch, 'worker', t.worker,
                'instance', t.instance) || c.change || flowfabric._version_change(t.version, c.version) as detail
        ), noted as (
            select flowfabric._append_all('execution_held', array_agg(h.partition), array_agg(h.id),
                                          array_agg(h.detail))
            from held h having count(*) > 0
        )
        select h.item, 'held', null, null from held h left join noted n on true
        union all
        select x.item, null, x.fault ->> 'code', (x.fault - 'code')::text
        from unnest(judged.refused, judged.faults) as x (item, fault);
    end loop;
end $$;

-- The version of a task under which an execution has started, which is 1 for code without versions, and the one that
-- the code has now.
--
--   returns  {version_then, version_now}, or {} if the second is unknown
create or replace function flowfabric._version_change(version_then int, version_now int)
returns jsonb
language sql immutable as $$
    select case when _version_change.version_now is null then '{}' else jsonb_build_object(
        'version_then', coalesce(_version_change.version_then, 1), 'version_now', _version_change.version_now) end
$$;

-- Check the names that a report of changed code lists.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._changed_fault(steps jsonb)
returns jsonb
language sql immutable as $$
    select case
        when jsonb_typeof(_changed_fault.steps) is distinct from 'array'
             or jsonb_path_exists(_changed_fault.steps, '$[*] ? (@.type() != "string")') then
            flowfabric._fault('invalid_body', 'steps is invalid; use a list of names', '{"field": "steps"}')
        when jsonb_array_length(_changed_fault.steps) > 100 then
            flowfabric._fault('invalid_body',
                format('%s steps are too many; use at most 100', jsonb_array_length(_changed_fault.steps)),
                '{"field": "steps"}')
    end
$$;

-- Lock the ticket of a runnable execution.
--
--   refuses  execution_not_runnable
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
