-- Resuming: a suspended execution becomes runnable again, by a signal, an operator, a timeout or a budget.

-- Resume suspended executions with the same attempt. Their open waits end, unless one of them has timed out: then the
-- others continue if the run requests them again. `satisfiers` holds a list of signal ids per execution, as the text of
-- a uuid[]. The caller has locked the tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay; waitpoint
--            active → closed
--   emits    execution_resumed, waitpoint_closed
create or replace function flowfabric._resume(
    partitions smallint[], ids uuid[], ended_by text, satisfiers text[] default null, by text default null,
    delay interval default null, note text default null)
returns void
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    noted text := case when _resume.note is not null then flowfabric._kept_text(_resume.note) end;
begin
    perform flowfabric._lock_log();
    with found as materialized (
        select t.place, t.partition, t.id, t.attempt, t.epoch, t.suspension, t.reason, x.satisfiers::uuid[],
               now + nullif(coalesce(_resume.delay, t.resume_delay), interval '0') as due_at, e.route, e.tags, e.flow
        from unnest(_resume.partitions, _resume.ids, _resume.satisfiers) as x (partition, id, satisfiers)
        cross join lateral (
            select t.ctid as place, t.partition, t.id, t.attempt, t.epoch, t.suspension, t.reason, t.resume_delay
            from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) t
        cross join lateral (
            select e.route, e.tags, e.flow from flowfabric.executions e
            where e.partition = t.partition and e.id = t.id offset 0) e
    ), waits as materialized (
        select w.place, w.waitpoints, f.partition, f.id, f.satisfiers, f.route, f.tags, f.flow from found f
        cross join lateral (
            select w.ctid as place, w.waitpoints from flowfabric.waits w
            where w.partition = f.partition and w.execution = f.id and w.ended_at is null
              and w.suspension = f.suspension and _resume.ended_by <> 'timeout' offset 0) w
    ), ended as (
        update flowfabric.waits w
        set satisfiers = x.satisfiers, ended_at = now, timeout_at = null, ended_by = _resume.ended_by
        from waits x where w.ctid = x.place
    ), moved as (
        update flowfabric.tickets t
        set phase = 'runnable', due_at = f.due_at,
            eligibility = case when f.due_at is null then 'eligible_now'
                               else 'not_eligible_until_time' end::flowfabric.eligibility,
            reason = case when f.due_at is null then 'waiting_for_worker'
                          else 'waiting_for_resume_delay' end::flowfabric.reason
        from found f where t.ctid = f.place
    ), freed as (
        delete from flowfabric.budget_waits b using found f
        where f.reason = 'waiting_for_budget' and b.partition = any (array[f.partition])
          and b.execution between f.id and f.id
    ), shut as (
        update flowfabric.waitpoints p
        set state = 'closed', closed_at = now, close_reason = 'resumed', expires_at = null
        from (
            select p.place, x.partition, x.id, x.route, x.tags, x.flow
            from waits x cross join lateral unnest(x.waitpoints) as g (id)
            cross join lateral (
                select p.ctid as place from flowfabric.waitpoints p where p.id = g.id offset 0) p) x
        where p.ctid = x.place
        returning p.partition, p.execution, p.id, p.key, x.route, x.tags, x.flow
    ), noted as (
        insert into flowfabric.events (at, kind, by, partition, execution, route, tags, flow, detail)
        select now, 'execution_resumed', _resume.by, f.partition, f.id, f.route, f.tags, f.flow, case
                   when f.due_at is null and f.satisfiers is not null and noted is null then jsonb_build_object(
                       'suspension_id', f.suspension, 'by', _resume.ended_by, 'signals', f.satisfiers,
                       'attempt', f.attempt, 'epoch', f.epoch)
                   else jsonb_strip_nulls(jsonb_build_object(
                       'suspension_id', f.suspension, 'by', _resume.ended_by, 'signals', f.satisfiers,
                       'due_at', f.due_at, 'attempt', f.attempt, 'epoch', f.epoch, 'note', noted)) end
        from found f
        returning 1
    )
    insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, detail)
    select now, 'waitpoint_closed', s.partition, s.execution, s.route, s.tags, s.flow,
           jsonb_build_object('waitpoint_id', s.id, 'key', s.key, 'reason', 'resumed')
    from shut s cross join (select count(*) from noted) n; -- after the events above
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
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
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
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
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
        array[row(1, deliver_approval.partition, deliver_approval.id, point_id, deliver_approval.signal_name,
                  deliver_approval.signal_id, 'operator', deliver_approval.by, 'approval', deliver_approval.payload,
                  deliver_approval.encoding, null, 'approval:' || deliver_approval.signal_name || ':'
                      || coalesce(nullif(deliver_approval.suffix, ''), deliver_approval.by),
                  deliver_approval.digest)::flowfabric.given_signal],
        now, deliver_approval.by, deliver_approval.note);
    perform flowfabric._raise(done.faults[1]);
    outcome := case when done.effects[1] is null then 'duplicate' else 'accepted' end;
    accepted_id := done.signals[1];
    effect := done.effects[1];
    woken := done.lanes[1];
end $$;
