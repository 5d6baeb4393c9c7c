-- Resuming: a suspended execution becomes runnable again, by a signal, an operator, a timeout or a budget.

-- Resume suspended executions with the same attempt. The caller has locked the tickets and checked that each is in the
-- suspension that ends here. `satisfiers` holds a list of signal ids per execution, as the text of a uuid[].
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay; waitpoint
--            active → closed
--   emits    execution_resumed, waitpoint_closed
create or replace function flowfabric._resume(
    partitions smallint[], ids uuid[], ended_by text, satisfiers text[] default null, by text default null,
    delay interval default null, close_reason text default 'resumed', note text default null)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    noted text := case when _resume.note is not null then flowfabric._kept_text(_resume.note) end;
    resumed record;
begin
    perform flowfabric._lock_log();
    with found as materialized (
        select t.place, t.partition, t.id, t.attempt, t.epoch, s.place as wait, s.suspension,
               x.satisfiers::uuid[] as satisfiers,
               now + nullif(coalesce(_resume.delay, s.resume_delay), interval '0') as due_at, e.route, e.tags, e.flow
        from unnest(_resume.partitions, _resume.ids, _resume.satisfiers) as x (partition, id, satisfiers)
        cross join lateral (
            select t.ctid as place, t.partition, t.id, t.attempt, t.epoch, t.suspension from flowfabric.tickets t
            where t.partition = x.partition and t.id = x.id offset 0) t
        cross join lateral (
            select s.ctid as place, s.id as suspension, s.resume_delay from flowfabric.suspensions s
            where s.partition = t.partition and s.execution = t.id and s.id = t.suspension offset 0) s
        cross join lateral (
            select e.route, e.tags, e.flow from flowfabric.executions e
            where e.partition = t.partition and e.id = t.id offset 0) e
    ), ended as (
        update flowfabric.suspensions s
        set satisfiers = f.satisfiers, ended_at = now, timeout_at = null, ended_by = _resume.ended_by
        from found f where s.ctid = f.wait
    ), moved as (
        update flowfabric.tickets t
        set phase = 'runnable', due_at = f.due_at,
            eligibility = case when f.due_at is null then 'eligible_now'
                               else 'not_eligible_until_time' end::flowfabric.eligibility,
            reason = case when f.due_at is null then 'waiting_for_worker'
                          else 'waiting_for_resume_delay' end::flowfabric.reason
        from found f where t.ctid = f.place
    ), shut as (
        update flowfabric.waitpoints w
        set state = 'closed', closed_at = now, close_reason = _resume.close_reason, expires_at = null
        from (
            select f.*, w.place as waitpoint from found f
            cross join lateral (
                select w.ctid as place from flowfabric.waitpoints w where w.suspension = f.suspension offset 0) w) f
        where w.ctid = f.waitpoint
        returning w.partition, w.execution, w.id, w.key, f.route, f.tags, f.flow
    ), logged as (
        insert into flowfabric.events (at, kind, by, partition, execution, route, tags, flow, detail)
        select now, 'execution_resumed', _resume.by, f.partition, f.id, f.route, f.tags, f.flow, case
                   when f.due_at is null and f.satisfiers is not null and noted is null then jsonb_build_object(
                       'suspension_id', f.suspension, 'by', _resume.ended_by, 'signals', f.satisfiers,
                       'attempt', f.attempt, 'epoch', f.epoch)
                   else jsonb_strip_nulls(jsonb_build_object(
                       'suspension_id', f.suspension, 'by', _resume.ended_by, 'signals', f.satisfiers,
                       'due_at', f.due_at, 'attempt', f.attempt, 'epoch', f.epoch, 'note', noted)) end
        from found f
        union all
        select now, 'waitpoint_closed', null, s.partition, s.execution, s.route, s.tags, s.flow,
               jsonb_build_object('waitpoint_id', s.id, 'key', s.key, 'reason', _resume.close_reason)
        from shut s
    )
    select array_agg(f.partition) as partitions, array_agg(f.id) as ids, array_agg(f.suspension) as suspensions
    into resumed
    from found f where _resume.ended_by not in ('signal', 'timeout');
    if resumed.ids is not null then
        perform flowfabric._end_nested_waits(resumed.partitions, resumed.ids, resumed.suspensions, _resume.ended_by);
    end if;
end $$;

-- End all waits that are still open within these suspensions. The caller has locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    waitpoint_closed
create or replace function flowfabric._end_nested_waits(
    partitions smallint[], ids uuid[], suspensions uuid[], ended_by text)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    open_ones record;
begin
    select array_agg(s.partition) as partitions, array_agg(s.execution) as ids, array_agg(s.id) as waits into open_ones
    from unnest(_end_nested_waits.partitions, _end_nested_waits.ids, _end_nested_waits.suspensions)
         as x (partition, id, suspension)
    cross join lateral (
        select s.partition, s.execution, s.id from flowfabric.suspensions s
        where s.partition = x.partition and s.execution = x.id and s.ended_at is null
          and s.within = x.suspension offset 0) s;
    if open_ones.ids is not null then
        perform flowfabric._end_waits(open_ones.partitions, open_ones.ids, open_ones.waits, _end_nested_waits.ended_by);
    end if;
end $$;

-- Resume a suspended execution because an operator asks for it.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   locks    the ticket
--   emits    execution_resumed, waitpoint_closed
--   refuses  execution_not_found, execution_not_suspended, invalid_time, invalid_body
--   returns  its public state, and the lane to wake
create or replace function flowfabric.resume(
    partition int, id uuid, by text, note text default null, delay_ms bigint default null, out public_state text,
    out lane text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    ticket flowfabric.tickets;
begin
    perform flowfabric._check_by(resume.by);
    if resume.delay_ms not between 0 and 315360000000 then
        perform flowfabric._refuse('invalid_time', format(
            'delay of %s ms is invalid; use 0 to 315,360,000,000 ms (ten years)', resume.delay_ms));
    end if;
    select t.* into ticket from flowfabric.tickets t
    where t.partition = resume.partition and t.id = resume.id for update;
    if not found and not exists (
        select from flowfabric.executions e where e.partition = resume.partition and e.id = resume.id) then
        perform flowfabric._refuse_missing(resume.partition, resume.id);
    end if;
    if ticket.phase is distinct from 'suspended' then
        perform flowfabric._refuse('execution_not_suspended', format(
            'execution %s is %s, not suspended; use explain to see its state',
            flowfabric._id(resume.partition, resume.id), coalesce(ticket.phase::text, 'ended')));
    end if;
    perform flowfabric._resume(
        array[ticket.partition], array[ticket.id], 'operator', by => resume.by,
        delay => resume.delay_ms * interval '1 ms', note => resume.note);
    select flowfabric._public_state(t, flowfabric._eligibility_state(t, flowfabric.clock())) into public_state
    from flowfabric.tickets t
    where t.partition = ticket.partition and t.id = ticket.id;
    lane := ticket.lane;
end $$;

-- Deliver the decision of a person whom the deployment has authenticated: no token is needed. Each person counts once.
--
--   moves    suspended → runnable, if the condition now holds
--   locks    the ticket
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  execution_not_found, waitpoint_not_found, wrong_lane, invalid_signal, payload_too_large,
--            target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch
--   returns  'accepted' with the signal and its effect, or 'duplicate' with the first one; and the lane to wake
create or replace function flowfabric.deliver_approval(
    partition int, id uuid, waitpoint text, signal_name text, by text, signal_id uuid, lane text default null,
    suffix text default null, payload bytea default null, encoding text default null, digest bytea default null,
    note text default null, out outcome text, out accepted_id uuid, out effect text, out woken text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    point_id uuid;
    route_lane text;
    done record;
begin
    select r.lane into route_lane from flowfabric.executions e join flowfabric.routes r on r.id = e.route
    where e.partition = deliver_approval.partition and e.id = deliver_approval.id;
    if not found then
        perform flowfabric._refuse_missing(deliver_approval.partition, deliver_approval.id);
    end if;
    select w.id into point_id from flowfabric.waitpoints w
    where w.partition = deliver_approval.partition and w.execution = deliver_approval.id
      and (w.key = deliver_approval.waitpoint or w.id::text = lower(deliver_approval.waitpoint))
    order by w.state <> 'closed' desc, w.created_at desc limit 1;
    perform flowfabric._raise(coalesce(
        case when deliver_approval.lane <> route_lane then flowfabric._fault('wrong_lane', format(
            'lane %s is not the lane of execution %s; use %s', flowfabric._shown(deliver_approval.lane),
            flowfabric._id(deliver_approval.partition, deliver_approval.id), flowfabric._shown(route_lane))) end,
        flowfabric._signal_fault(
            deliver_approval.signal_name, 'approval', 'operator', deliver_approval.by, null, null,
            deliver_approval.digest, deliver_approval.encoding, deliver_approval.payload),
        case when octet_length(deliver_approval.suffix) > 256 then flowfabric._fault('invalid_signal',
            format('suffix %s is invalid; use at most 256 bytes', flowfabric._shown(deliver_approval.suffix)),
            '{"field": "suffix"}') end,
        case when point_id is null then flowfabric._fault('waitpoint_not_found',
            format('waitpoint %s does not exist in execution %s; use list_waitpoints to see the existing ones',
                   flowfabric._shown(deliver_approval.waitpoint),
                   flowfabric._id(deliver_approval.partition, deliver_approval.id))) end));
    done := flowfabric._accept_signals(
        '{1}', array[deliver_approval.partition], array[deliver_approval.id], array[point_id],
        array[deliver_approval.signal_name], array[deliver_approval.signal_id], '{operator}',
        array[deliver_approval.by], '{approval}', array[deliver_approval.payload], array[deliver_approval.encoding],
        null, array['approval:' || deliver_approval.signal_name || ':'
            || coalesce(nullif(deliver_approval.suffix, ''), deliver_approval.by)],
        array[deliver_approval.digest], now, deliver_approval.by, deliver_approval.note);
    perform flowfabric._raise(done.faults[1]);
    outcome := case when done.effects[1] is null then 'duplicate' else 'accepted' end;
    accepted_id := done.signals[1];
    effect := done.effects[1];
    woken := done.lanes[1];
end $$;

-- End the waits of executions that have ended, and close their waitpoints. `suspensions` holds the last suspension of
-- each execution, if any.
--
--   moves    waitpoint pending, active → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_waits(
    partitions smallint[], ids uuid[], suspensions uuid[], outcome flowfabric.outcome)
returns void
language plpgsql set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    open_ones record;
begin
    update flowfabric.suspensions s set ended_at = flowfabric.clock(), timeout_at = null, ended_by = 'ended'
    from (
        select o.place
        from unnest(_close_waits.partitions, _close_waits.ids, _close_waits.suspensions)
             as x (partition, id, suspension)
        cross join lateral (
            (select s.ctid as place from flowfabric.suspensions s
             where s.partition = x.partition and s.execution = x.id and s.id = x.suspension
               and s.ended_by is null offset 0)
            union all
            (select s.ctid from flowfabric.suspensions s
             where s.partition = x.partition and s.execution = x.id and s.ended_at is null
               and s.within is not null offset 0)) o
        limit 2147483647) x
    where s.ctid = x.place;
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids
    into open_ones
    from unnest(_close_waits.partitions, _close_waits.ids) as x (partition, id)
    cross join lateral (
        select w.partition, w.execution, w.id from flowfabric.waitpoints w
        where w.partition = x.partition and w.execution = x.id and w.state <> 'closed' offset 0) w;
    if open_ones.ids is not null then
        perform flowfabric._close_waitpoints(
            open_ones.partitions, open_ones.executions, open_ones.ids,
            case _close_waits.outcome when 'cancelled' then 'cancelled' else 'ended' end);
    end if;
end $$;

-- Forget the wait that an execution was in when it ended, so that a replay requests it again.
create or replace function flowfabric._forget_open_waits(partition int, id uuid)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    update flowfabric.suspensions s set name = null, occurrence = null, idempotency_key = null
    where s.partition = _forget_open_waits.partition and s.execution = _forget_open_waits.id and s.ended_by = 'ended';
end $$;
