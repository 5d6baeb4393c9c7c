-- State: the state vector of an execution, derived from its ticket and its record.

-- Check whether a live worker can claim from a route: it serves the lane and the namespace, and has every capability
-- the route needs, and the version of its task.
create or replace function flowfabric._is_covered(route flowfabric.routes, now timestamptz)
returns boolean
language sql stable as $$
    select exists (
        select from flowfabric.workers w
        where w.expires_at > _is_covered.now and (_is_covered.route).lane = any (w.lanes)
          and coalesce(w.namespace, (_is_covered.route).namespace) = (_is_covered.route).namespace
          and (_is_covered.route).needs <@ (w.capabilities || w.versions))
$$;

-- Compute whether a route is open now. The answer is never stored on executions.
--
--   returns  'eligible_now', or the blocking state
create or replace function flowfabric._admission(route int, now timestamptz)
returns text
language sql stable as $$
    select case
        when l.state = 'paused' then 'blocked_by_lane_state'
        when r.needs <> '{}' and not flowfabric._is_covered(r, _admission.now) then 'blocked_by_route'
        when r.budgets <> '{}' and coalesce(flowfabric._budgets_closed(r.budgets, _admission.now), true)
            then 'blocked_by_budget'
        when r.quotas <> '{}' and (flowfabric._full_quota(r.quotas, _admission.now)).is_full then 'blocked_by_quota'
        else 'eligible_now'
    end
    from flowfabric.routes r join flowfabric.lanes l on l.name = r.lane
    where r.id = _admission.route
$$;

-- Compute a ticket's eligibility_state.
--
--   returns  a value of that dimension of the state vector
create or replace function flowfabric._eligibility_state(ticket flowfabric.tickets, now timestamptz)
returns text
language sql stable as $$
    select case
        when (_eligibility_state.ticket).phase <> 'runnable' then 'not_applicable'
        when (_eligibility_state.ticket).eligibility = 'eligible_now'
          or (_eligibility_state.ticket).eligibility = 'not_eligible_until_time'
             and (_eligibility_state.ticket).due_at <= _eligibility_state.now
          or (_eligibility_state.ticket).eligibility = 'granted'
             and (_eligibility_state.ticket).expires_at <= _eligibility_state.now
            then flowfabric._admission((_eligibility_state.ticket).route, _eligibility_state.now)
        when (_eligibility_state.ticket).eligibility = 'granted' then 'eligible_now'
        else (_eligibility_state.ticket).eligibility::text
    end
$$;

-- Compute the public state of an unfinished execution from its ticket and its eligibility_state.
--
--   returns  a public state
create or replace function flowfabric._public_state(ticket flowfabric.tickets, eligibility_state text)
returns text
language sql immutable as $$
    select case
        when (_public_state.ticket).phase <> 'runnable' then (_public_state.ticket).phase::text
        when _public_state.eligibility_state = 'not_eligible_until_time' then 'delayed'
        when _public_state.eligibility_state = 'blocked_by_dependencies' then 'waiting_dependencies'
        when _public_state.eligibility_state in ('blocked_by_budget', 'blocked_by_quota') then 'rate_limited'
        else 'waiting'
    end
$$;

-- Compute the public state of an ended execution.
--
--   returns  a public state
create or replace function flowfabric._ended_state(outcome flowfabric.outcome)
returns text
language sql immutable as $$
    select case when _ended_state.outcome = 'success' then 'completed' else _ended_state.outcome::text end
$$;

-- Compute the whole state vector of an execution. A null ticket means that the execution has ended.
--
--   returns  {lifecycle_phase, ownership_state, eligibility_state, blocking_reason, terminal_outcome, attempt_state,
--            public_state}
create or replace function flowfabric._state(
    ticket flowfabric.tickets, outcome flowfabric.outcome, attempts int, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    eligibility_state text;
begin
    if ticket.id is null then
        return jsonb_build_object(
            'lifecycle_phase', 'terminal', 'ownership_state', 'unowned', 'eligibility_state', 'not_applicable',
            'blocking_reason', 'none', 'terminal_outcome', _state.outcome,
            'attempt_state', case when _state.attempts > 0 then 'attempt_terminal' else 'none' end,
            'public_state', flowfabric._ended_state(_state.outcome));
    end if;
    eligibility_state := flowfabric._eligibility_state(_state.ticket, _state.now);
    return jsonb_build_object(
        'lifecycle_phase', ticket.phase,
        'ownership_state', case
            when ticket.phase = 'active' and ticket.expires_at > _state.now then 'leased'
            when ticket.phase = 'active' then 'lease_expired_reclaimable'
            when ticket.attempt_state <> 'pending_reclaim_attempt' then 'unowned'
            when ticket.lease_end = 'revoked' then 'lease_revoked'
            else 'lease_expired_reclaimable' end,
        'eligibility_state', eligibility_state,
        'blocking_reason', case
            when eligibility_state = 'blocked_by_lane_state' then 'paused_by_policy'
            when eligibility_state = 'blocked_by_dependencies' then 'waiting_for_dependencies'
            when eligibility_state = 'blocked_by_route' then 'waiting_for_capable_worker'
            when eligibility_state = 'blocked_by_budget' then 'waiting_for_budget'
            when eligibility_state = 'blocked_by_quota' then 'waiting_for_quota'
            when eligibility_state = 'eligible_now' then 'waiting_for_worker'
            else ticket.reason::text end,
        'terminal_outcome', 'none',
        'attempt_state', ticket.attempt_state,
        'public_state', flowfabric._public_state(_state.ticket, eligibility_state));
end $$;
