-- State: everything about where an execution stands that follows from what is stored.

-- Whether some live worker could take work of this route: it serves the lane and namespace and alone has all that is needed.
--
--   returns  true or false
create or replace function flowfabric._is_covered(route flowfabric.routes, now timestamptz)
returns boolean
language sql stable as $$
    select exists (
        select from flowfabric.workers w
        where w.expires_at > _is_covered.now and (_is_covered.route).lane = any (w.lanes)
          and coalesce(w.namespace, (_is_covered.route).namespace) = (_is_covered.route).namespace
          and (_is_covered.route).needs <@ w.capabilities)
$$;

-- Whether work of a route is admitted now. Nothing of this is written on executions.
--
--   returns  'eligible_now', or what blocks it
create or replace function flowfabric._admission(route int, now timestamptz)
returns text
language sql stable as $$
    select case
        when l.state = 'paused' then 'blocked_by_lane_state'
        when r.needs <> '{}' and not flowfabric._is_covered(r, _admission.now) then 'blocked_by_route'
        when r.budgets <> '{}' and coalesce(flowfabric._budgets_closed(r.budgets, _admission.now), true) then 'blocked_by_budget'
        when r.quotas <> '{}' and flowfabric._are_full(r.quotas, _admission.now) then 'blocked_by_quota'
        else 'eligible_now'
    end
    from flowfabric.routes r join flowfabric.lanes l on l.name = r.lane
    where r.id = _admission.route
$$;

-- The dimension eligibility_state of a ticket.
--
--   returns  one of the words of the state vector
create or replace function flowfabric._eligibility_state(ticket flowfabric.tickets, now timestamptz)
returns text
language sql stable as $$
    select case
        when (ticket).phase <> 'runnable' then 'not_applicable'
        when (ticket).eligibility = 'eligible_now'
          or (ticket).eligibility = 'not_eligible_until_time' and (ticket).due_at <= _eligibility_state.now
          or (ticket).eligibility = 'granted' and (ticket).expires_at <= _eligibility_state.now
            then flowfabric._admission((ticket).route, _eligibility_state.now)
        when (ticket).eligibility = 'granted' then 'eligible_now'
        else (ticket).eligibility::text
    end
$$;

-- What an unfinished execution looks like to people, from its ticket and its eligibility_state.
--
--   returns  one of the words of the state vector
create or replace function flowfabric._public_state(ticket flowfabric.tickets, eligibility_state text)
returns text
language sql immutable as $$
    select case
        when (ticket).phase <> 'runnable' then (ticket).phase::text
        when eligibility_state = 'not_eligible_until_time' then 'delayed'
        when eligibility_state = 'blocked_by_dependencies' then 'waiting_children'
        when eligibility_state in ('blocked_by_budget', 'blocked_by_quota') then 'rate_limited'
        else 'waiting'
    end
$$;

-- What an ended execution looks like to people.
--
--   returns  one of the words of the state vector
create or replace function flowfabric._ended_state(outcome flowfabric.outcome)
returns text
language sql immutable as $$
    select case when _ended_state.outcome = 'success' then 'completed' else _ended_state.outcome::text end
$$;

-- The whole state vector of an execution; a ticket that is null means that it has ended.
--
--   returns  {lifecycle_phase, ownership_state, eligibility_state, blocking_reason, terminal_outcome, attempt_state, public_state}
create or replace function flowfabric._state(ticket flowfabric.tickets, outcome flowfabric.outcome, attempts int, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    eligibility_state text;
begin
    if ticket.id is null then
        return jsonb_build_object(
            'lifecycle_phase', 'terminal', 'ownership_state', 'unowned', 'eligibility_state', 'not_applicable',
            'blocking_reason', 'none', 'terminal_outcome', outcome,
            'attempt_state', case when attempts > 0 then 'attempt_terminal' else 'none' end,
            'public_state', flowfabric._ended_state(outcome));
    end if;
    eligibility_state := flowfabric._eligibility_state(ticket, now);
    return jsonb_build_object(
        'lifecycle_phase', ticket.phase,
        'ownership_state', case
            when ticket.phase = 'active' and ticket.expires_at > now then 'leased'
            when ticket.phase = 'active' then 'lease_expired_reclaimable'
            when ticket.attempt_state <> 'pending_reclaim_attempt' then 'unowned'
            when ticket.lease_end = 'revoked' then 'lease_revoked'
            else 'lease_expired_reclaimable' end,
        'eligibility_state', eligibility_state,
        'blocking_reason', case
            when eligibility_state = 'blocked_by_lane_state' then 'paused_by_policy'
            when eligibility_state = 'blocked_by_route' then 'waiting_for_capable_worker'
            when eligibility_state = 'blocked_by_budget' then 'waiting_for_budget'
            when eligibility_state = 'blocked_by_quota' then 'waiting_for_quota'
            when eligibility_state = 'eligible_now' then 'waiting_for_worker'
            else ticket.reason::text end,
        'terminal_outcome', 'none',
        'attempt_state', ticket.attempt_state,
        'public_state', flowfabric._public_state(ticket, eligibility_state));
end $$;
