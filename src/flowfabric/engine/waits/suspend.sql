-- Suspending: an execution steps aside and holds nothing until what it waits for has come.

-- The blocking reason that a reason code stands for.
--
--   returns  the reason, or null for a code there is not
create or replace function flowfabric._suspension_reason(reason_code text)
returns flowfabric.reason
language sql immutable as $$
    select case
        when reason_code in ('waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback', 'waiting_for_tool_result', 'paused_by_policy') then reason_code
        when reason_code in ('waiting_for_operator_review', 'manual_pause') then 'paused_by_operator'
        when reason_code = 'paused_by_budget' then 'waiting_for_budget'
        when reason_code = 'step_boundary' then 'waiting_for_signal'
    end::flowfabric.reason
$$;

-- What is wrong with a wish to suspend, beyond its condition.
--
--   returns  the cause, or null when it is good
create or replace function flowfabric._suspension_cause(
    condition jsonb, keys text[], reason_code text, timeout_at timestamptz, timeout_behavior text, now timestamptz)
returns text
language sql stable as $$
    select coalesce(
        flowfabric._condition_cause(condition, keys),
        case
            when flowfabric._suspension_reason(reason_code) is null then 'unknown_reason_code'
            when timeout_behavior not in ('fail', 'cancel', 'expire', 'auto_resume', 'escalate') then 'unknown_timeout_behavior'
            when timeout_at <= now then 'timeout_at_in_past'
            when condition ->> 'kind' = 'timeout_only' and timeout_at is null then 'timeout_only_without_deadline'
        end)
$$;

-- The waitpoint a suspension asks for by key, or by id and key: the pending one adopted with the token it has, or a new one.
-- The caller holds the ticket.
--
--   moves    waitpoint pending → active, or – → active; a pending one past its expiry → closed
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution,
--            no_active_key
--   returns  {id, key, token}
create or replace function flowfabric._bind_waitpoint(partition int, execution uuid, suspension uuid, key text, wanted uuid)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    found_one flowfabric.waitpoints;
    minted record;
begin
    if wanted is not null then
        select w.* into found_one from flowfabric.waitpoints w where w.id = wanted;
        perform flowfabric._raise(case
            when found_one.id is null then flowfabric._fault('waitpoint_not_found', format('no waitpoint %s', wanted))
            when (found_one.partition, found_one.execution) <> (_bind_waitpoint.partition, _bind_waitpoint.execution) then
                flowfabric._fault('waitpoint_of_other_execution', format('waitpoint %s belongs to another execution', wanted))
            when found_one.state = 'closed' and found_one.close_reason = 'never_committed' or found_one.state = 'pending' and found_one.expires_at <= now then
                flowfabric._fault('pending_waitpoint_expired', format('waitpoint %s was not used in time; create another', wanted))
            when found_one.state <> 'pending' then flowfabric._fault('waitpoint_not_pending', format('waitpoint %s is %s', wanted, found_one.state))
            when found_one.key <> _bind_waitpoint.key then flowfabric._fault('invalid_suspension',
                format('waitpoint %s has key %s, not %s', wanted, found_one.key, _bind_waitpoint.key), '{"cause": "waitpoint_key_mismatch"}') end);
    else
        select w.* into found_one from flowfabric.waitpoints w
        where w.partition = _bind_waitpoint.partition and w.execution = _bind_waitpoint.execution and w.key = _bind_waitpoint.key and w.state = 'pending';
        if found_one.expires_at <= now then
            perform flowfabric._close_one(found_one);
            found_one := null;
        end if;
    end if;
    if found_one.id is null then
        minted := flowfabric._mint_waitpoint(_bind_waitpoint.partition, _bind_waitpoint.execution, _bind_waitpoint.key, 'active', _bind_waitpoint.suspension, null);
        return jsonb_build_object('id', minted.id, 'key', _bind_waitpoint.key, 'token', minted.token);
    end if;
    update flowfabric.waitpoints w set state = 'active', activated_at = now, expires_at = null, suspension = _bind_waitpoint.suspension
    where w.partition = found_one.partition and w.execution = found_one.execution and w.id = found_one.id;
    return jsonb_build_object('id', found_one.id, 'key', found_one.key, 'token',
        flowfabric._waitpoint_token(found_one.partition, found_one.execution, found_one.id, found_one.kid));
end $$;

-- The answer that a suspension gave, word for word, for a call that is repeated.
--
--   returns  outcome, suspension, waitpoints with their tokens, and the signals that satisfied it at once
create or replace function flowfabric._suspension_answer(
    suspension flowfabric.suspensions, out outcome text, out suspension_id uuid, out waitpoints text, out signals text)
language sql stable as $$
    select case when (_suspension_answer.suspension).ended_by = 'buffered' then 'already_satisfied' else 'suspended' end, (_suspension_answer.suspension).id,
           (select coalesce(jsonb_agg(jsonb_build_object('id', w.id, 'key', w.key, 'token',
                       flowfabric._waitpoint_token(w.partition, w.execution, w.id, w.kid)) order by w.key), '[]')::text
            from flowfabric.waitpoints w
            where w.partition = (_suspension_answer.suspension).partition and w.execution = (_suspension_answer.suspension).execution and w.suspension = (_suspension_answer.suspension).id),
           flowfabric._signals_text((_suspension_answer.suspension).partition, (_suspension_answer.suspension).execution,
                                    case when (_suspension_answer.suspension).ended_by = 'buffered' then (_suspension_answer.suspension).satisfiers end)
$$;

-- Let an execution step aside until its condition holds. Signals that came before, to waitpoints made ahead, count: when
-- they satisfy it already, the execution goes on with its lease.
--
--   moves    active → suspended: attempt_interrupted; or stays active when it is satisfied already
--   locks    the ticket
--   emits    execution_suspended, waitpoint_created, waitpoint_closed
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_suspension, invalid_body,
--            waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
--   returns  'suspended' or 'already_satisfied', the suspension, its waitpoints with their tokens, and what satisfied it
create or replace function flowfabric.suspend(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, waitpoints text, condition text, reason_code text,
    timeout_ms bigint default null, timeout_at timestamptz default null, timeout_behavior text default null, resume_delay_ms bigint default null,
    requested_by text default 'worker', idempotency_key text default null, name text default null, occurrence int default null,
    about bytea default null, bind boolean default false,
    out outcome text, out suspension_id uuid, out waitpoints_bound text, out signals text)
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    held record;
    made flowfabric.suspensions;
    wanted jsonb := suspend.waitpoints::jsonb;
begin
    held := flowfabric._lock_fenced(suspend.partition, suspend.id, suspend.lease_id, suspend.epoch, suspend.attempt, now);
    select s.* into made from flowfabric.suspensions s
    where s.partition = suspend.partition and s.execution = suspend.id and s.idempotency_key = nullif(suspend.idempotency_key, '');
    if not found then
        perform flowfabric._raise(held.fault);
        made := flowfabric._read_suspension(suspend.partition, suspend.id, wanted, suspend.condition::jsonb, suspend.reason_code, suspend.timeout_ms,
            suspend.timeout_at, suspend.timeout_behavior, suspend.resume_delay_ms, suspend.requested_by, now);
        made.idempotency_key := nullif(suspend.idempotency_key, '');
        made.name := suspend.name;
        made.occurrence := suspend.occurrence;
        made.about := suspend.about;
        made.about_digest := sha256(suspend.about);
        made.bind := suspend.bind and suspend.about is not null;
        perform flowfabric._bind_waitpoint(made.partition, made.execution, made.id, w.point ->> 'key', (w.point ->> 'waitpoint_id')::uuid)
        from jsonb_array_elements(wanted) w (point);
        made := flowfabric._start_suspension(made, held.ticket, now);
    end if;
    select a.outcome, a.suspension_id, a.waitpoints, a.signals into outcome, suspension_id, waitpoints_bound, signals
    from flowfabric._suspension_answer(made) a;
end $$;

-- Read a wish to suspend, with what the policy says for what it leaves out.
--
--   refuses  invalid_suspension, invalid_body
--   returns  the suspension, not yet stored
create or replace function flowfabric._read_suspension(
    partition int, id uuid, wanted jsonb, condition jsonb, reason_code text, timeout_ms bigint, timeout_at timestamptz, timeout_behavior text,
    resume_delay_ms bigint, requested_by text, now timestamptz)
returns flowfabric.suspensions
language plpgsql stable as $$
#variable_conflict use_column
declare
    policy jsonb := (select e.policy -> 'suspension' from flowfabric.executions e where e.partition = _read_suspension.partition and e.id = _read_suspension.id);
    made flowfabric.suspensions;
    keys text[] := array(select coalesce(w.point ->> 'key', '') from jsonb_array_elements(wanted) w (point));
    cause text;
begin
    made.partition := _read_suspension.partition;
    made.execution := _read_suspension.id;
    made.id := gen_random_uuid();
    made.suspended_at := now;
    made.condition := _read_suspension.condition;
    made.reason_code := _read_suspension.reason_code;
    made.requested_by := _read_suspension.requested_by;
    made.timeout_behavior := replace(coalesce(_read_suspension.timeout_behavior, policy ->> 'timeout_behavior', 'fail'), 'auto_resume_with_timeout_signal', 'auto_resume');
    made.timeout_at := coalesce(_read_suspension.timeout_at,
        now + coalesce(_read_suspension.timeout_ms, (policy ->> 'default_timeout_ms')::bigint) * interval '1 ms');
    made.resume_delay := _read_suspension.resume_delay_ms * interval '1 ms';
    if requested_by not in ('worker', 'operator', 'policy', 'system_timeout_policy') or resume_delay_ms not between 0 and 315360000000 then
        perform flowfabric._refuse('invalid_body', 'requested_by is worker, operator, policy or system_timeout_policy; resume_delay is from 0 to ten years',
                                   '{"field": "requested_by"}');
    end if;
    cause := flowfabric._suspension_cause(made.condition, keys, made.reason_code, made.timeout_at, made.timeout_behavior, now);
    if cause is not null then
        perform flowfabric._refuse('invalid_suspension', format('the wait cannot be: %s', replace(cause, '_', ' ')), jsonb_build_object('cause', cause));
    end if;
    return made;
end $$;

-- Store a suspension whose waitpoints are bound, and let the ticket step aside unless buffered signals satisfy it already.
-- The caller holds the ticket.
--
--   moves    active → suspended: attempt_interrupted; or stays active
--   emits    execution_suspended, waitpoint_closed
--   returns  the suspension as stored
create or replace function flowfabric._start_suspension(made flowfabric.suspensions, ticket flowfabric.tickets, now timestamptz)
returns flowfabric.suspensions
language plpgsql as $$
#variable_conflict use_column
declare
    judged record;
begin
    insert into flowfabric.suspensions select made.*;
    judged := flowfabric._judge_suspension(made.partition, made.execution, made.id);
    if judged.holds then
        update flowfabric.suspensions s set ended_at = now, ended_by = 'buffered', satisfiers = judged.satisfiers
        where s.partition = made.partition and s.execution = made.execution and s.id = made.id returning s.* into made;
        perform flowfabric._close_waitpoints(array[made.partition], array[made.execution], 'resumed');
        return made;
    end if;
    update flowfabric.tickets t
    set phase = 'suspended', reason = flowfabric._suspension_reason(made.reason_code), attempt_state = 'attempt_interrupted',
        attempt_left = t.attempt_deadline - now, attempt_deadline = null, suspension = made.id
    where t.partition = ticket.partition and t.id = ticket.id;
    perform flowfabric._append_about('execution_suspended', made.partition, made.execution, detail => jsonb_build_object(
        'suspension_id', made.id, 'reason_code', made.reason_code, 'timeout_at', made.timeout_at, 'timeout_behavior', made.timeout_behavior,
        'about_digest', encode(made.about_digest, 'hex'), 'attempt', ticket.attempt, 'epoch', ticket.epoch));
    return made;
end $$;
