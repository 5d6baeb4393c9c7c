-- Timeouts: end, resume or escalate executions whose wait did not complete in time.

-- End waits because they timed out: a sleep just ends, any other wait gets a `timeout` signal for its handler. The
-- caller has locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
create or replace function flowfabric._time_out_waits(
    partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
declare
    made record;
begin
    with late as (
        select x.*, w.is_sleep, row_number() over (partition by x.partition, x.execution order by x.number) as turn,
               gen_random_uuid() as signal
        from unnest(_time_out_waits.partitions, _time_out_waits.executions, _time_out_waits.ids)
             with ordinality as x (partition, execution, id, number)
        cross join lateral (
            select w.is_sleep, w.ended_at from flowfabric.waits w
            where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
        where w.ended_at is null
    ), inserted as (
        insert into flowfabric.signals (
            partition, execution, id, number, at, name, category, source_type, source_identity, effect)
        select l.partition, l.execution, l.signal, last.number + l.turn, _time_out_waits.now, 'timeout', 'system',
               'system', 'suspension_timeout', 'resume_condition_satisfied'
        from late l cross join lateral (select coalesce(max(s.number), 0) as number from flowfabric.signals s
                                        where s.partition = l.partition and s.execution = l.execution) last
        where not l.is_sleep
    )
    select array_agg(l.partition order by l.number) as partitions,
           array_agg(l.execution order by l.number) as executions,
           array_agg(l.id order by l.number) as ids,
           array_agg(case when not l.is_sleep then array[l.signal]::text end order by l.number) as signals
    into made from late l;
    perform flowfabric._end_waits(
        made.partitions, made.executions, made.ids, 'timeout', _time_out_waits.now, made.signals,
        'timed_out_auto_resume');
end $$;

-- Apply one timeout behavior to waits. A wait that is escalated to an operator has no timeout any more. The caller has
-- locked the tickets and checked that each execution still waits.
--
--   moves    suspended → ended: failed, cancelled, expired; or → runnable; or stays suspended, for an operator
--   emits    execution_failed, execution_cancelled, execution_expired, suspension_escalated
--   returns  the executions that ended
create or replace function flowfabric._time_out(
    behavior text, partitions smallint[], ids uuid[], waits uuid[], now timestamptz)
returns text[]
language plpgsql as $$
declare
    escalated record;
    others text[];
begin
    case _time_out.behavior
        when 'auto_resume' then
            perform flowfabric._time_out_waits(_time_out.partitions, _time_out.ids, _time_out.waits, _time_out.now);
            perform flowfabric._resume_finished(_time_out.partitions, _time_out.ids, 'timeout');
        when 'escalate' then
            update flowfabric.waits w set reason_code = 'waiting_for_operator_review', timeout_at = null
            from (
                select w.place
                from unnest(_time_out.partitions, _time_out.ids, _time_out.waits) as x (partition, id, wait)
                cross join lateral (
                    select w.ctid as place from flowfabric.waits w
                    where w.partition = x.partition and w.execution = x.id and w.id = x.wait offset 0) w
                limit cardinality(_time_out.ids)) x
            where w.ctid = x.place;
            with moved as (
                update flowfabric.tickets t set reason = 'paused_by_operator'
                from (
                    select t.place from unnest(_time_out.partitions, _time_out.ids) as x (partition, id)
                    cross join lateral (
                        select t.ctid as place from flowfabric.tickets t
                        where t.partition = x.partition and t.id = x.id offset 0) t
                    limit cardinality(_time_out.ids)) x
                where t.ctid = x.place
                returning t.partition, t.id, t.suspension
            )
            select array_agg(m.partition) as partitions, array_agg(m.id) as ids,
                   array_agg(jsonb_build_object('suspension_id', m.suspension)) as details
            into escalated from moved m;
            perform flowfabric._append_all(
                'suspension_escalated', escalated.partitions, escalated.ids, escalated.details);
        else
            perform flowfabric._close_waitpoints(array(
                select unnest(w.waitpoints)
                from unnest(_time_out.partitions, _time_out.ids, _time_out.waits) as x (partition, id, wait)
                cross join lateral (
                    select w.waitpoints from flowfabric.waits w
                    where w.partition = x.partition and w.execution = x.id and w.id = x.wait offset 0) w),
                'timed_out_' || _time_out.behavior);
            others := (flowfabric._end(
                _time_out.partitions, _time_out.ids,
                case _time_out.behavior when 'fail' then 'failed' when 'cancel' then 'cancelled'
                                        else 'expired' end::flowfabric.outcome,
                failures => array_fill(
                    '{"class": "timeout", "reason": "suspension_timeout"}'::jsonb,
                    array[cardinality(_time_out.ids)]))).ended;
            return others || array(
                select flowfabric._id(x.partition, x.id)
                from unnest(_time_out.partitions, _time_out.ids) as x (partition, id));
    end case;
    return null;
end $$;

-- Lock what the timeouts of these waits need, and release the reservations of executions that end. Only a timeout that
-- ends a member of a flow needs the flow.
--
--   locks    the tickets, after their flows, skipping locked ones; the budgets of their reservations, in key order
--   returns  the waits that can time out now, with the lanes of their executions
create or replace function flowfabric._lock_late_waits(
    inout partitions smallint[], inout executions uuid[], inout ids uuid[], now timestamptz, out lanes text[])
language plpgsql as $$
declare
    late record;
    members uuid[];
    ending record;
    free record;
begin
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(t.flow) as flows
    into late
    from unnest(_lock_late_waits.partitions, _lock_late_waits.executions, _lock_late_waits.ids)
         as x (partition, execution, id)
    cross join lateral (
        select w.partition, w.execution from flowfabric.waits w
        where w.partition = x.partition and w.execution = x.execution and w.id = x.id
          and w.timeout_behavior not in ('auto_resume', 'escalate') offset 0) w
    cross join lateral (
        select t.flow from flowfabric.tickets t where t.partition = w.partition and t.id = w.execution offset 0) t;
    members := flowfabric._try_members(late.partitions, late.executions, late.flows);
    select array_agg(x.partition), array_agg(x.execution), array_agg(x.id), array_agg(t.lane)
    into partitions, executions, ids, lanes
    from unnest(_lock_late_waits.partitions, _lock_late_waits.executions, _lock_late_waits.ids)
         as x (partition, execution, id)
    cross join lateral (
        select w.suspension, w.timeout_behavior from flowfabric.waits w
        where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
    cross join lateral (
        select t.lane from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.execution
          and (t.phase = 'suspended' and t.suspension = w.suspension or w.timeout_behavior = 'auto_resume')
          and (t.flow is null or t.id = any (members) or w.timeout_behavior in ('auto_resume', 'escalate'))
        for update skip locked) t;
    -- A statement after the locks: another sweep may have handled some of them in between.
    select array_agg(w.partition) as partitions, array_agg(w.execution) as ids into ending
    from unnest(partitions, executions, ids) as x (partition, execution, id)
    cross join lateral (
        select w.partition, w.execution, w.timeout_at, w.timeout_behavior from flowfabric.waits w
        where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
    where w.timeout_at <= _lock_late_waits.now and w.timeout_behavior not in ('auto_resume', 'escalate');
    -- For all at once, because budgets are locked in key order. The attempts of these executions end here.
    free := flowfabric._with_free_budgets(ending.partitions, ending.ids, members);
    perform flowfabric._return_reservations(free.partitions, free.ids);
    select array_agg(x.partition), array_agg(x.execution), array_agg(x.id), array_agg(x.lane)
    into partitions, executions, ids, lanes
    from unnest(partitions, executions, ids, lanes) as x (partition, execution, id, lane)
    where x.execution = any (free.ids) or not coalesce(x.execution = any (ending.ids), false);
end $$;

-- Sweep: time out waits, if the execution is suspended for them. A wait that only resumes its run also times out while
-- the run is active.
--
--   moves    suspended → ended, or → runnable, by the timeout behavior of each wait
--   locks    the tickets it moves, after their flows, skipping locked ones; the budgets of their reservations, in key
--            order
--   emits    execution_failed, execution_cancelled, execution_expired, execution_resumed, suspension_escalated,
--            waitpoint_closed, reservation_released, edge_group_impossible, edge_group_satisfied, execution_skipped
--   returns  how many timed out and how many could not, the lanes to wake, the executions that ended
create or replace function flowfabric.time_out_waits(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due record;
    held record;
    late record;
begin
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids into due
    from (
        select w.partition, w.execution, w.id from flowfabric.waits w where w.timeout_at <= now
        order by w.timeout_at, w.partition, w.execution limit time_out_waits.take offset time_out_waits.passing) w;
    held := flowfabric._lock_late_waits(due.partitions, due.executions, due.ids, now);
    moved := 0;
    for late in
        select w.timeout_behavior as behavior,
               array_agg(w.partition order by w.timeout_at) as partitions,
               array_agg(w.execution order by w.timeout_at) as ids,
               array_agg(w.id order by w.timeout_at) as waits,
               array_agg(distinct w.lane) as lanes
        from (
            select w.*, x.lane, row_number() over (
                partition by w.partition, w.execution, w.timeout_behavior in ('auto_resume', 'escalate')
                order by w.timeout_at, w.id) as turn
            from unnest(held.partitions, held.executions, held.ids, held.lanes)
                 as x (partition, execution, id, lane)
            cross join lateral (
                select w.partition, w.execution, w.id, w.timeout_at, w.timeout_behavior from flowfabric.waits w
                where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
            where w.timeout_at <= now) w
        -- If several late waits would end an execution, the first one ends it, and the end closes the others.
        where w.turn = 1 or w.timeout_behavior in ('auto_resume', 'escalate')
        group by 1
        -- If several waits of one execution are due: escalations first, endings last.
        order by array_position(array['escalate', 'auto_resume'], w.timeout_behavior)
    loop
        ended := ended || flowfabric._time_out(late.behavior, late.partitions, late.ids, late.waits, now);
        moved := moved + cardinality(late.ids);
        lanes := case when late.behavior = 'auto_resume' then lanes || late.lanes else lanes end;
    end loop;
    locked := greatest(coalesce(cardinality(due.ids), 0) - moved, 0);
end $$;
