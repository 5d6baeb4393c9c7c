-- Suspending: an execution waits without a lease, a slot or a connection until its condition holds.

-- Map a reason code to a blocking reason.
--
--   returns  the blocking reason, or null if the code is unknown
create or replace function flowfabric._suspension_reason(reason_code text)
returns flowfabric.reason
language sql stable as $$
    select case
        when _suspension_reason.reason_code in (
            'waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback', 'waiting_for_tool_result',
            'paused_by_policy') then _suspension_reason.reason_code
        when _suspension_reason.reason_code in ('waiting_for_operator_review', 'manual_pause') then 'paused_by_operator'
        when _suspension_reason.reason_code = 'paused_by_budget' then 'waiting_for_budget'
        when _suspension_reason.reason_code = 'step_boundary' then 'waiting_for_signal'
    end::flowfabric.reason
$$;

-- Check the fields of a requested suspension; `_suspension_fault` validates its condition.
--
--   refuses  invalid_body, invalid_time, payload_too_large, as a value
--   returns  the fault, or null if the fields are valid
create or replace function flowfabric._wait_request_fault(
    made flowfabric.suspensions, timeout_ms bigint, resume_delay_ms bigint, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    field text := case
        when (made.requested_by in ('worker', 'operator', 'policy', 'system_timeout_policy')) is not true
            then 'requested_by'
        when octet_length(made.idempotency_key) > 256 then 'idempotency_key'
        when octet_length(made.name) not between 1 and 128 then 'name'
        when made.occurrence < 1 then 'occurrence'
        when made.bind and made.about is null then 'bind' end;
begin
    if field is null and coalesce(_wait_request_fault.timeout_ms, 0) <= 315360000000 and made.timeout_at is null
       and _wait_request_fault.resume_delay_ms is null and made.about is null then
        return null;
    end if;
    return case
        when field is not null then flowfabric._fault('invalid_body', case field
            when 'requested_by' then format(
                'requested_by %s is invalid; use worker, operator, policy or system_timeout_policy',
                flowfabric._shown(made.requested_by))
            when 'idempotency_key' then format(
                'idempotency_key %s is invalid; use at most 256 bytes', flowfabric._shown(made.idempotency_key))
            when 'name' then format('name %s is invalid; use 1 to 128 bytes', flowfabric._shown(made.name))
            when 'occurrence' then format('occurrence %s is invalid; use a whole number from 1', made.occurrence)
            else 'bind is invalid without about; pass about, the data that the decision is bound to' end,
            jsonb_build_object('field', field))
        when _wait_request_fault.timeout_ms > 315360000000
             or made.timeout_at > _wait_request_fault.now + interval '10 years' then
            flowfabric._fault('invalid_time', format(
                'timeout %s is invalid; use a duration or a time, at most ten years ahead',
                coalesce('of ' || _wait_request_fault.timeout_ms || ' ms', flowfabric._moment(made.timeout_at))))
        when _wait_request_fault.resume_delay_ms not between 0 and 315360000000 then
            flowfabric._fault('invalid_time', format(
                'resume_delay of %s ms is invalid; use 0 to 315,360,000,000 ms (ten years)',
                _wait_request_fault.resume_delay_ms))
        when octet_length(made.about) > 65536 then
            flowfabric._oversize_fault('about of a suspension', octet_length(made.about), 65536)
    end;
end $$;

-- Check the condition, reason code and timeout of a requested suspension.
--
--   refuses  invalid_suspension, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._suspension_fault(made flowfabric.suspensions, keys text[], now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    cause text := coalesce(flowfabric._condition_cause(made.condition, _suspension_fault.keys), case
        when flowfabric._suspension_reason(made.reason_code) is null then 'unknown_reason_code'
        when made.timeout_behavior not in ('fail', 'cancel', 'expire', 'auto_resume', 'escalate')
            then 'unknown_timeout_behavior'
        when made.timeout_at <= _suspension_fault.now then 'timeout_at_in_past'
        when made.condition ->> 'kind' = 'timeout_only' and made.timeout_at is null
            then 'timeout_only_without_deadline' end);
begin
    if cause is null then
        return null;
    end if;
    return flowfabric._fault(
        'invalid_suspension', format('the suspension is invalid: %s', replace(cause, '_', ' ')),
        jsonb_build_object('cause', cause));
end $$;

-- Find the waitpoint that a suspension requests by id, created earlier by `create_waitpoint`. The caller has locked the
-- ticket.
--
--   refuses  invalid_suspension, waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired,
--            waitpoint_of_other_execution
--   returns  the waitpoint and its token
create or replace function flowfabric._wanted_waitpoint(
    partition int, execution uuid, key text, wanted uuid, now timestamptz, out waitpoint flowfabric.waitpoints,
    out token text)
language plpgsql as $$
#variable_conflict use_column
begin
    select w.* into waitpoint from flowfabric.waitpoints w where w.id = _wanted_waitpoint.wanted;
    token := flowfabric._waitpoint_token(waitpoint.partition, waitpoint.execution, waitpoint.id, waitpoint.kid);
    perform flowfabric._raise(case
        when waitpoint.id is null then
            flowfabric._fault('waitpoint_not_found',
                format('waitpoint %s does not exist; use create_waitpoint to create one', _wanted_waitpoint.wanted))
        when (waitpoint.partition, waitpoint.execution)
          <> (_wanted_waitpoint.partition, _wanted_waitpoint.execution) then
            flowfabric._fault('waitpoint_of_other_execution',
                format('waitpoint %s belongs to another execution; use create_waitpoint to create one',
                       _wanted_waitpoint.wanted))
        when waitpoint.close_reason = 'never_committed'
          or waitpoint.state = 'pending' and (waitpoint.expires_at <= _wanted_waitpoint.now or token is null) then
            flowfabric._fault('pending_waitpoint_expired',
                format('waitpoint %s has expired; use create_waitpoint to create another', _wanted_waitpoint.wanted))
        when waitpoint.state <> 'pending' then
            flowfabric._fault('waitpoint_not_pending',
                format('waitpoint %s is %s, not pending; use create_waitpoint to create another',
                       _wanted_waitpoint.wanted, waitpoint.state))
        when waitpoint.key <> _wanted_waitpoint.key then
            flowfabric._fault('invalid_suspension', format(
                'key %s is not the key of waitpoint %s; use %s', flowfabric._shown(_wanted_waitpoint.key),
                _wanted_waitpoint.wanted, flowfabric._shown(waitpoint.key)), '{"cause": "waitpoint_key_mismatch"}')
        end);
end $$;

-- Bind the waitpoint that a suspension requests by key, or by id and key: adopt the pending one with the token it
-- already has, or mint a new one. The caller has locked the ticket.
--
--   moves    waitpoint pending → active, or – → active; a pending one that expired or lost its signing key → closed
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired,
--            waitpoint_of_other_execution, no_active_key
--   returns  {id, key, token}
create or replace function flowfabric._bind_waitpoint(
    partition int, execution uuid, suspension uuid, key text, wanted uuid, now timestamptz)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    known record;
    minted record;
begin
    if _bind_waitpoint.wanted is null then
        known := flowfabric._pending_waitpoint(
            _bind_waitpoint.partition, _bind_waitpoint.execution, _bind_waitpoint.key, _bind_waitpoint.now);
    else
        known := flowfabric._wanted_waitpoint(
            _bind_waitpoint.partition, _bind_waitpoint.execution, _bind_waitpoint.key, _bind_waitpoint.wanted,
            _bind_waitpoint.now);
    end if;
    if known.token is null then
        minted := flowfabric._mint_waitpoint(
            _bind_waitpoint.partition, _bind_waitpoint.execution, _bind_waitpoint.key, 'active',
            _bind_waitpoint.suspension, null);
        return jsonb_build_object('id', minted.id, 'key', _bind_waitpoint.key, 'token', minted.token);
    end if;
    update flowfabric.waitpoints w
    set suspension = _bind_waitpoint.suspension, state = 'active', activated_at = _bind_waitpoint.now, expires_at = null
    where w.partition = _bind_waitpoint.partition and w.execution = _bind_waitpoint.execution
      and w.id = (known.waitpoint).id;
    return jsonb_build_object('id', (known.waitpoint).id, 'key', _bind_waitpoint.key, 'token', known.token);
end $$;

-- Rebuild the answer of an earlier suspend call, for a repeated call with the same idempotency key.
--
--   returns  outcome, waitpoints with their tokens, and the buffered signals that satisfied the condition immediately
create or replace function flowfabric._suspension_answer(
    suspension flowfabric.suspensions, out outcome text, out waitpoints text, out signals text)
language plpgsql stable as $$
#variable_conflict use_column
begin
    outcome := case when suspension.ended_by = 'buffered' then 'already_satisfied' else 'suspended' end;
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', w.id, 'key', w.key, 'token', flowfabric._waitpoint_token(w.partition, w.execution, w.id, w.kid))
        order by w.key), '[]')
    into waitpoints from flowfabric.waitpoints w
    where w.suspension = suspension.id;
    signals := flowfabric._signals_text(suspension.partition, suspension.execution,
                                        case when suspension.ended_by = 'buffered' then suspension.satisfiers end);
end $$;

-- Suspend an execution until its condition holds. Signals that are buffered on waitpoints created earlier count: if
-- they already satisfy the condition, the execution stays active and keeps its lease.
--
--   moves    active → suspended: attempt_interrupted; or stays active if the condition already holds
--   locks    the ticket
--   emits    execution_suspended, waitpoint_created, waitpoint_closed
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_suspension,
--            invalid_body, invalid_time, payload_too_large, waitpoint_not_found, waitpoint_not_pending,
--            pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
--   returns  'suspended' or 'already_satisfied', the suspension id, its waitpoints with their tokens, and the signals
--            that satisfied it
create or replace function flowfabric.suspend(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, waitpoints text, condition text, reason_code text,
    timeout_ms bigint default null, timeout_at timestamptz default null, timeout_behavior text default null,
    resume_delay_ms bigint default null, requested_by text default 'worker', idempotency_key text default null,
    name text default null, occurrence int default null, about bytea default null, bind boolean default false,
    out outcome text, out suspension_id uuid, out waitpoints_bound text, out signals text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    held record := flowfabric._lock_fenced(
        suspend.partition, suspend.id, suspend.lease_id, suspend.epoch, suspend.attempt);
    now timestamptz := flowfabric.clock();
    made flowfabric.suspensions;
    begun record;
begin
    if suspend.idempotency_key <> '' then
        select s.* into made from flowfabric.suspensions s
        where s.partition = suspend.partition and s.execution = suspend.id
          and s.idempotency_key = suspend.idempotency_key;
        if found then
            suspension_id := made.id;
            select a.outcome, a.waitpoints, a.signals into outcome, waitpoints_bound, signals
            from flowfabric._suspension_answer(made) a;
            return;
        end if;
    end if;
    if held.fault is not null then
        perform flowfabric._raise(held.fault);
    end if;
    made := row(suspend.partition, suspend.occurrence, now, suspend.timeout_at, null, null, suspend.id,
                gen_random_uuid(), suspend.reason_code, suspend.timeout_behavior, suspend.requested_by, null,
                nullif(suspend.idempotency_key, ''), suspend.name, jsonb_strip_nulls(suspend.condition::jsonb), null,
                suspend.about, sha256(suspend.about), suspend.bind, null, null, false, null,
                null)::flowfabric.suspensions;
    begun := flowfabric._suspend(
        made, held.ticket, suspend.waitpoints::jsonb, suspend.timeout_ms, suspend.resume_delay_ms);
    suspension_id := made.id;
    outcome := begun.outcome;
    signals := begun.signals;
    waitpoints_bound := begun.bound;
end $$;

-- Suspend an execution for one wait, with the requested waitpoints. The caller has locked the ticket and checked the
-- fence.
--
--   moves    active → suspended: attempt_interrupted; or stays active if the condition already holds
--   emits    execution_suspended, waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found,
--            waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
--   returns  'suspended', or 'already_satisfied' with the signals that satisfied it; and the waitpoints with their
--            tokens
create or replace function flowfabric._suspend(
    made flowfabric.suspensions, ticket flowfabric.tickets, wanted jsonb, timeout_ms bigint, resume_delay_ms bigint,
    out outcome text, out signals text, out bound text)
language plpgsql as $$
#variable_conflict use_column
declare
    is_one boolean := jsonb_array_length(_suspend.wanted) = 1;
    fault jsonb := flowfabric._wait_request_fault(
        _suspend.made, _suspend.timeout_ms, _suspend.resume_delay_ms, made.suspended_at);
    begun record;
begin
    if fault is null then
        _suspend.made := flowfabric._with_policy(_suspend.made, _suspend.timeout_ms, _suspend.resume_delay_ms);
        fault := flowfabric._suspension_fault(
            _suspend.made,
            case when is_one then array[_suspend.wanted -> 0 ->> 'key']
                 else array(select w.point ->> 'key' from jsonb_array_elements(_suspend.wanted) w (point)) end,
            made.suspended_at);
    end if;
    if fault is not null then
        perform flowfabric._raise(fault);
    end if;
    if is_one then
        bound := jsonb_build_array(
            flowfabric._bind_waitpoint(made.partition, made.execution, made.id, _suspend.wanted -> 0 ->> 'key',
                                       (_suspend.wanted -> 0 ->> 'waitpoint_id')::uuid, made.suspended_at));
    else
        select coalesce(jsonb_agg(b.point order by b.point ->> 'key' collate "C"), '[]') into bound from (
            select flowfabric._bind_waitpoint(
                made.partition, made.execution, made.id, w.point ->> 'key', (w.point ->> 'waitpoint_id')::uuid,
                made.suspended_at) as point
            from jsonb_array_elements(_suspend.wanted) w (point)) b;
    end if;
    begun := flowfabric._start_suspension(_suspend.made, _suspend.ticket);
    outcome := begun.outcome;
    signals := begun.signals;
end $$;

-- Fill in the timeout and the timeout behavior that a requested suspension omits, from the policy of the execution.
--
--   returns  the suspension, not yet stored
create or replace function flowfabric._with_policy(
    made flowfabric.suspensions, timeout_ms bigint, resume_delay_ms bigint)
returns flowfabric.suspensions
language plpgsql stable as $$
#variable_conflict use_column
declare
    policy jsonb := (select e.policy -> 'suspension' from flowfabric.executions e
                     where e.partition = made.partition and e.id = made.execution);
begin
    made.timeout_behavior := coalesce(made.timeout_behavior, policy ->> 'timeout_behavior', 'fail');
    made.timeout_behavior := case when made.timeout_behavior = 'auto_resume_with_timeout_signal' then 'auto_resume'
                                  else made.timeout_behavior end;
    -- A negative timeout counts as 0: the largest negative value would overflow an interval.
    made.timeout_at := coalesce(made.timeout_at, made.suspended_at + coalesce(
        case when _with_policy.timeout_ms > 0 then _with_policy.timeout_ms when _with_policy.timeout_ms <= 0 then 0 end,
        (policy ->> 'default_timeout_ms')::bigint) * interval '1 ms');
    made.resume_delay := _with_policy.resume_delay_ms * interval '1 ms';
    return _with_policy.made;
end $$;

-- Store a suspension whose waitpoints are bound, and suspend the ticket unless buffered signals already satisfy the
-- condition. The caller has locked the ticket.
--
--   moves    active → suspended: attempt_interrupted; or stays active
--   emits    execution_suspended, waitpoint_closed
--   returns  'suspended', or 'already_satisfied' with the signals that satisfied it
create or replace function flowfabric._start_suspension(
    made flowfabric.suspensions, ticket flowfabric.tickets, out outcome text, out signals text)
language plpgsql as $$
#variable_conflict use_column
declare
    arrived jsonb := flowfabric._arrived_signals(_start_suspension.made);
    judged record;
begin
    if arrived <> '[]' then
        judged := flowfabric._judge(made.condition, arrived);
        if judged.holds then
            made.ended_at := made.suspended_at;
            made.timeout_at := null;
            made.ended_by := 'buffered';
            made.satisfiers := judged.satisfiers::uuid[];
        end if;
    end if;
    insert into flowfabric.suspensions select _start_suspension.made.*;
    signals := flowfabric._signals_text(made.partition, made.execution, made.satisfiers);
    if made.ended_by is not null then
        outcome := 'already_satisfied';
        perform flowfabric._close_suspended(array[made.id], 'resumed');
        return;
    end if;
    outcome := 'suspended';
    perform flowfabric._suspend_ticket(_start_suspension.made, _start_suspension.ticket);
end $$;

-- Suspend a ticket for a suspension that is stored. The caller has locked the ticket.
--
--   moves    active → suspended: attempt_interrupted
--   emits    execution_suspended
create or replace function flowfabric._suspend_ticket(made flowfabric.suspensions, ticket flowfabric.tickets)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    about record;
begin
    update flowfabric.tickets t
    set phase = 'suspended', reason = flowfabric._suspension_reason(made.reason_code),
        attempt_state = 'attempt_interrupted', attempt_left = t.attempt_deadline - made.suspended_at,
        attempt_deadline = null, suspension = made.id, ties = true
    from flowfabric.executions e
    where t.partition = ticket.partition and t.id = ticket.id and e.partition = t.partition and e.id = t.id
    returning e.route, e.tags, e.flow into about;
    perform flowfabric._append_each(
        'execution_suspended', array[ticket.partition], array[ticket.id], array[about.route], array[about.tags],
        array[jsonb_strip_nulls(jsonb_build_object(
            'suspension_id', made.id, 'reason_code', made.reason_code, 'timeout_at', made.timeout_at,
            'timeout_behavior', made.timeout_behavior, 'about_digest', encode(made.about_digest, 'hex'),
            'attempt', ticket.attempt, 'epoch', ticket.epoch))],
        flows => array[about.flow]);
end $$;
