-- Requested waits: read from the arguments of a suspension and checked before anything is written.

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

-- Check the fields of a requested wait, then its condition, reason code and timeout.
--
--   refuses  invalid_body, invalid_time, invalid_suspension, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._wait_fault(
    wait flowfabric.waits, keys text[], timeout_ms bigint, resume_delay_ms bigint, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    field text := case
        when (wait.requested_by in ('worker', 'operator', 'policy', 'system_timeout_policy')) is not true
            then 'requested_by'
        when octet_length(wait.name) not between 1 and 128 then 'name'
        when wait.occurrence < 1 then 'occurrence'
        when wait.bind and wait.about is null then 'bind' end;
    cause text;
begin
    if field is not null then
        return flowfabric._fault('invalid_body', case field
            when 'requested_by' then format(
                'requested_by %s is invalid; use worker, operator, policy or system_timeout_policy',
                flowfabric._shown(wait.requested_by))
            when 'name' then format('name %s is invalid; use 1 to 128 bytes', flowfabric._shown(wait.name))
            when 'occurrence' then format('occurrence %s is invalid; use a whole number from 1', wait.occurrence)
            else 'bind is invalid without about; pass about, the data that the decision is bound to' end,
            jsonb_build_object('field', field));
    elsif _wait_fault.timeout_ms > 315360000000 or wait.timeout_at > _wait_fault.now + interval '10 years' then
        return flowfabric._fault('invalid_time', format(
            'timeout %s is invalid; use a duration or a time, at most ten years ahead',
            coalesce('of ' || _wait_fault.timeout_ms || ' ms', flowfabric._moment(wait.timeout_at))));
    elsif _wait_fault.resume_delay_ms not between 0 and 315360000000 then
        return flowfabric._fault('invalid_time', format(
            'resume_delay of %s ms is invalid; use 0 to 315,360,000,000 ms (ten years)', _wait_fault.resume_delay_ms));
    elsif octet_length(wait.about) > 65536 then
        return flowfabric._oversize_fault('about of a suspension', octet_length(wait.about), 65536);
    end if;
    cause := coalesce(flowfabric._condition_cause(wait.condition, _wait_fault.keys), case
        when flowfabric._suspension_reason(wait.reason_code) is null then 'unknown_reason_code'
        when wait.timeout_behavior not in ('fail', 'cancel', 'expire', 'auto_resume', 'escalate')
            then 'unknown_timeout_behavior'
        when wait.timeout_at <= _wait_fault.now then 'timeout_at_in_past'
        when wait.condition ->> 'kind' = 'timeout_only' and wait.timeout_at is null
            then 'timeout_only_without_deadline' end);
    return case when cause is not null then flowfabric._fault(
        'invalid_suspension', format('the suspension is invalid: %s', replace(cause, '_', ' ')),
        jsonb_build_object('cause', cause)) end;
end $$;

-- Check a waitpoint that a requested wait names. One requested by id must have been created by `create_waitpoint`; a
-- new one needs an active signing key.
--
--   refuses  invalid_suspension, waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired,
--            waitpoint_of_other_execution, as a value
--   returns  the fault, or null if it can be used
create or replace function flowfabric._point_fault(
    partition int, execution uuid, key text, wanted uuid, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    found_id uuid;
    point flowfabric.waitpoints;
    is_usable boolean;
begin
    found_id := coalesce(_point_fault.wanted, flowfabric._newest_waitpoint(
        _point_fault.partition, _point_fault.execution, _point_fault.key));
    select p.* into point from flowfabric.waitpoints p where p.id = found_id;
    is_usable := flowfabric._is_usable(point, _point_fault.now);
    return case
        when _point_fault.wanted is null then case
            when not is_usable and not exists (select from flowfabric.keys k where k.expires_at is null)
                then flowfabric._no_key_fault() end
        when point.id is null then flowfabric._fault('waitpoint_not_found', format(
            'waitpoint %s does not exist; use create_waitpoint to create one', _point_fault.wanted))
        when (point.partition, point.execution) <> (_point_fault.partition, _point_fault.execution) then
            flowfabric._fault('waitpoint_of_other_execution', format(
                'waitpoint %s belongs to another execution; use create_waitpoint to create one', _point_fault.wanted))
        when point.close_reason = 'never_committed' or point.state = 'pending' and not is_usable then
            flowfabric._fault('pending_waitpoint_expired', format(
                'waitpoint %s has expired; use create_waitpoint to create another', _point_fault.wanted))
        when point.state = 'closed' then flowfabric._fault('waitpoint_not_pending', format(
            'waitpoint %s is closed, not pending; use create_waitpoint to create another', _point_fault.wanted))
        when point.key <> _point_fault.key then flowfabric._fault('invalid_suspension', format(
            'key %s is not the key of waitpoint %s; use %s', flowfabric._shown(_point_fault.key), _point_fault.wanted,
            flowfabric._shown(point.key)), '{"cause": "waitpoint_key_mismatch"}') end;
end $$;

-- Check a requested wait, by its kind. `rare_points` says whether its waitpoints must be looked up: some are requested
-- by id, or no signing key is active.
--
--   refuses  invalid_suspension, as a value
--   returns  the fault, or null if it is valid
create or replace function flowfabric._asked_fault(
    wait flowfabric.waits, points jsonb, timeout_ms bigint, resume_delay_ms bigint, rare_points boolean,
    now timestamptz)
returns jsonb
language plpgsql stable as $$
begin
    if wait.is_sleep then
        return flowfabric._delay_fault(null, wait.timeout_at, _asked_fault.now);
    elsif wait.child is not null then
        return (
            select flowfabric._fault('invalid_suspension', format(
                'the suspension is invalid: %s is not a child of this execution; use one of its children',
                flowfabric._id(e.partition, e.id)), '{"cause": "not_its_child"}')
            from flowfabric.executions e
            where e.partition = wait.child_partition and e.id = wait.child
              and (e.parent_partition, e.parent) is distinct from (wait.partition, wait.execution));
    end if;
    return coalesce(
        flowfabric._wait_fault(
            _asked_fault.wait, case when jsonb_array_length(_asked_fault.points) = 1
                                    then array[_asked_fault.points -> 0 ->> 'key']
                                    else array(select p.point ->> 'key'
                                               from jsonb_array_elements(_asked_fault.points) p (point)) end,
            _asked_fault.timeout_ms, _asked_fault.resume_delay_ms, _asked_fault.now),
        case when _asked_fault.rare_points then (
            select f.fault from jsonb_to_recordset(_asked_fault.points) as p (key text, waitpoint_id uuid)
            cross join lateral (
                select flowfabric._point_fault(wait.partition, wait.execution, p.key, p.waitpoint_id,
                                               _asked_fault.now)) f (fault)
            where f.fault is not null limit 1) end);
end $$;

-- Read one requested wait, with the timeout that the policy of its execution adds. `points` are the ids of its
-- waitpoints.
create or replace function flowfabric._requested_wait(
    partition int, execution uuid, suspension uuid, id uuid, points jsonb, wish jsonb, policy jsonb, now timestamptz)
returns flowfabric.waits
language sql stable as $$
    select jsonb_populate_record(
        null::flowfabric.waits,
        jsonb_build_object(
            'reason_code', 'waiting_for_signal', 'requested_by', 'worker', 'bind', false, 'is_sleep', false,
            'timeout_behavior', case
                when not _requested_wait.wish ? 'condition' then 'auto_resume'
                when _requested_wait.policy ->> 'timeout_behavior' = 'auto_resume_with_timeout_signal'
                    then 'auto_resume'
                else coalesce(_requested_wait.policy ->> 'timeout_behavior', 'fail') end)
        || _requested_wait.wish
        || jsonb_strip_nulls(jsonb_build_object(
            'partition', _requested_wait.partition, 'execution', _requested_wait.execution,
            'suspension', _requested_wait.suspension, 'id', _requested_wait.id, 'suspended_at', _requested_wait.now,
            'condition', coalesce(_requested_wait.wish -> 'condition', '{"kind": "timeout_only"}'),
            'timeout_behavior', case
                when _requested_wait.wish ->> 'timeout_behavior' = 'auto_resume_with_timeout_signal'
                then 'auto_resume' end,
            -- A negative timeout counts as 0: the largest values would overflow an interval.
            'timeout_at', case when _requested_wait.wish ? 'condition' and not _requested_wait.wish ? 'timeout_at'
                then _requested_wait.now + coalesce(
                    case when _requested_wait.wish ? 'timeout_ms' then least(
                        greatest((_requested_wait.wish ->> 'timeout_ms')::bigint, 0), 315360000000) end,
                    (_requested_wait.policy ->> 'default_timeout_ms')::bigint) * interval '1 ms' end,
            'waitpoints', _requested_wait.points,
            'about_digest', '\x' || encode(sha256((_requested_wait.wish ->> 'about')::bytea), 'hex'))))
$$;

-- Read the requested waits of each item, with the timeouts that the policy of its execution adds, and compare them with
-- the waits of earlier suspensions: one at the same place of the journal is the same wait.
--
--   returns  a row per wait, each place once
create or replace function flowfabric._asked_waits(
    items int[], partitions smallint[], ids uuid[], wishes text[], suspensions uuid[], now timestamptz)
returns setof flowfabric.asked_wait
language sql stable as $$
    select k.item, k.number, k.wait, k.points, k.known, k.is_over,
           k.choice is not null and bool_or(k.is_over) over (partition by k.item, k.choice), k.resume_delay, k.fault
    from (
        select a.item, a.number, a.wait, a.points, w.id as known, coalesce(w.ended_at is not null, false) as is_over,
               case when a.delay_ms between 0 and 315360000000 then a.delay_ms * interval '1 ms' end as resume_delay,
               (a.wait).choice,
               case when w.id is null then flowfabric._asked_fault(
                   a.wait, a.points, a.timeout_ms, a.delay_ms, a.rare_points, _asked_waits.now) end as fault,
               row_number() over (
                   partition by a.item, (a.wait).name, (a.wait).occurrence,
                                case when num_nulls((a.wait).name, (a.wait).occurrence) > 0 then a.number end
                   order by a.number) as turn
        from (
            select x.item, g.number::int, (g.wish ->> 'timeout_ms')::bigint as timeout_ms,
                   (g.wish ->> 'resume_delay_ms')::bigint as delay_ms, coalesce(g.wish -> 'points', '[]') as points,
                   x.has_no_key or g.wish @? '$.points[*].waitpoint_id' as rare_points,
                   flowfabric._requested_wait(
                       x.partition, x.id, x.suspension,
                       case when jsonb_array_length(x.wishes) = 1 then x.suspension else gen_random_uuid() end,
                       flowfabric._points_to_use(x.partition, x.id, g.wish -> 'points', _asked_waits.now), g.wish,
                       x.policy, _asked_waits.now) as wait
            from (
                select x.item, x.partition, x.id, x.wishes::jsonb as wishes, x.suspension,
                       e.policy -> 'suspension' as policy,
                       not exists (select from flowfabric.keys s where s.expires_at is null) as has_no_key
                from unnest(_asked_waits.items, _asked_waits.partitions, _asked_waits.ids, _asked_waits.wishes,
                            _asked_waits.suspensions) as x (item, partition, id, wishes, suspension)
                cross join lateral (select e.policy from flowfabric.executions e
                                    where e.partition = x.partition and e.id = x.id offset 0) e
                offset 0) x -- once per item: reading the wishes as JSON for each of them would be quadratic
            cross join lateral jsonb_array_elements(x.wishes) with ordinality as g (wish, number)
            offset 0) a
        left join lateral (
            select w.id, w.ended_at from flowfabric.waits w
            where w.partition = (a.wait).partition and w.execution = (a.wait).execution and w.name = (a.wait).name
              and w.occurrence = (a.wait).occurrence offset 0) w on true
        offset 0) k
    where k.turn = 1
$$;
