-- Timeouts: end, resume or escalate executions whose wait did not complete in time.

-- Resume executions whose wait timed out, each with a `timeout` signal for its handler. The caller has locked the
-- tickets and checked that each is in the suspension that ends here.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   emits    execution_resumed, waitpoint_closed
create or replace function flowfabric._resume_late(partitions smallint[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    made record;
begin
    with inserted as (
        insert into flowfabric.signals (
            partition, execution, id, number, at, name, category, source_type, source_identity, effect)
        select x.partition, x.id, gen_random_uuid(), l.last + 1, _resume_late.now, 'timeout', 'system', 'system',
               'suspension_timeout', 'resume_condition_satisfied'
        from unnest(_resume_late.partitions, _resume_late.ids) as x (partition, id)
        cross join lateral (select coalesce(max(s.number), 0) as last from flowfabric.signals s
                            where s.partition = x.partition and s.execution = x.id) l
        returning partition, execution, id
    )
    select array_agg(i.partition) as partitions, array_agg(i.execution) as ids, array_agg(array[i.id]::text) as signals
    into made from inserted i;
    perform flowfabric._resume(
        made.partitions, made.ids, 'timeout', made.signals, close_reason => 'timed_out_auto_resume');
end $$;

-- Escalate executions to an operator: they stay suspended without a timeout, and their waitpoints stay open. The caller
-- has locked the tickets and checked that each is in its suspension.
--
--   emits    suspension_escalated
create or replace function flowfabric._escalate(partitions smallint[], ids uuid[], suspensions uuid[])
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    escalated record;
begin
    update flowfabric.suspensions s set reason_code = 'waiting_for_operator_review', timeout_at = null
    from (
        select s.place
        from unnest(_escalate.partitions, _escalate.ids, _escalate.suspensions) as x (partition, id, suspension)
        cross join lateral (
            select s.ctid as place from flowfabric.suspensions s
            where s.partition = x.partition and s.execution = x.id and s.id = x.suspension offset 0) s
        limit cardinality(_escalate.ids)) x
    where s.ctid = x.place;
    with moved as (
        update flowfabric.tickets t set reason = 'paused_by_operator'
        from (
            select t.place from unnest(_escalate.partitions, _escalate.ids) as x (partition, id)
            cross join lateral (
                select t.ctid as place from flowfabric.tickets t
                where t.partition = x.partition and t.id = x.id offset 0) t
            limit cardinality(_escalate.ids)) x
        where t.ctid = x.place
        returning t.partition, t.id, t.route, t.suspension
    )
    select array_agg(m.partition) as partitions, array_agg(m.id) as ids, array_agg(m.route) as routes,
           array_agg(e.tags) as tags, array_agg(e.flow) as flows,
           array_agg(jsonb_build_object('suspension_id', m.suspension)) as details
    into escalated from moved m
    cross join lateral (
        select e.tags, e.flow from flowfabric.executions e where e.partition = m.partition and e.id = m.id offset 0) e;
    perform flowfabric._append_each(
        'suspension_escalated', escalated.partitions, escalated.ids, escalated.routes, escalated.tags,
        escalated.details, flows => escalated.flows);
end $$;

-- Apply the timeout behavior of suspensions. With `within`, these are waits that are part of a suspension. The caller
-- has locked the tickets and checked that each execution still is in its suspension, or waits for that part.
--
--   moves    suspended → ended: failed, cancelled, expired; or → runnable; or stays suspended, for an operator
--   locks    the budgets of their reservations, in key order
--   emits    execution_failed, execution_cancelled, execution_expired, execution_resumed, suspension_escalated,
--            waitpoint_closed
--   returns  the executions that ended
create or replace function flowfabric._time_out(
    behavior text, within boolean, partitions smallint[], ids uuid[], suspensions uuid[], now timestamptz)
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    others text[];
begin
    case _time_out.behavior
        when 'auto_resume' then
            if _time_out.within then
                perform flowfabric._time_out_waits(
                    _time_out.partitions, _time_out.ids, _time_out.suspensions, _time_out.now);
                perform flowfabric._resume_finished(_time_out.partitions, _time_out.ids, 'timeout');
            else
                perform flowfabric._resume_late(_time_out.partitions, _time_out.ids, _time_out.now);
            end if;
        when 'escalate' then
            perform flowfabric._escalate(_time_out.partitions, _time_out.ids, _time_out.suspensions);
        else
            perform flowfabric._close_suspended(_time_out.suspensions, 'timed_out_' || _time_out.behavior);
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

-- Lock what the timeouts of these suspensions need, and release the reservations of executions that end. Only a timeout
-- that ends a member of a flow needs the flow.
--
--   locks    the tickets, after their flows, skipping locked ones; the budgets of their reservations, in key order
--   emits    reservation_released
--   returns  the suspensions that can time out now, with the lanes of their executions
create or replace function flowfabric._lock_late_waits(
    inout partitions smallint[], inout executions uuid[], inout ids uuid[], now timestamptz, out lanes text[])
language plpgsql as $$
#variable_conflict use_column
declare
    late record;
    members uuid[];
    ending record;
    free record;
begin
    select array_agg(s.partition) as partitions, array_agg(s.execution) as executions, array_agg(t.flow) as flows
    into late
    from unnest(_lock_late_waits.partitions, _lock_late_waits.executions, _lock_late_waits.ids)
         as x (partition, execution, id)
    cross join lateral (
        select s.partition, s.execution from flowfabric.suspensions s
        where s.partition = x.partition and s.execution = x.execution and s.id = x.id
          and s.timeout_behavior not in ('auto_resume', 'escalate') offset 0) s
    cross join lateral (
        select t.flow from flowfabric.tickets t where t.partition = s.partition and t.id = s.execution offset 0) t;
    members := flowfabric._try_members(late.partitions, late.executions, late.flows);
    select array_agg(x.partition), array_agg(x.execution), array_agg(x.id), array_agg(t.lane)
    into partitions, executions, ids, lanes
    from unnest(_lock_late_waits.partitions, _lock_late_waits.executions, _lock_late_waits.ids)
         as x (partition, execution, id)
    cross join lateral (
        select s.within, s.timeout_behavior from flowfabric.suspensions s
        where s.partition = x.partition and s.execution = x.execution and s.id = x.id offset 0) s
    cross join lateral (
        select t.lane from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.execution
          and (t.phase = 'suspended' and t.suspension = coalesce(s.within, x.id)
               or s.within is not null and s.timeout_behavior = 'auto_resume')
          and (t.flow is null or t.id = any (members) or s.timeout_behavior in ('auto_resume', 'escalate'))
        for update skip locked) t;
    -- A statement after the locks: another sweep may have handled some of them in between.
    select array_agg(s.partition) as partitions, array_agg(s.execution) as ids into ending
    from unnest(partitions, executions, ids) as x (partition, execution, id)
    cross join lateral (
        select s.partition, s.execution, s.timeout_at, s.timeout_behavior from flowfabric.suspensions s
        where s.partition = x.partition and s.execution = x.execution and s.id = x.id offset 0) s
    where s.timeout_at <= _lock_late_waits.now and s.timeout_behavior not in ('auto_resume', 'escalate');
    -- For all at once, because budgets are locked in key order. The attempts of these executions end here.
    free := flowfabric._with_free_budgets(ending.partitions, ending.ids, members);
    perform flowfabric._return_reservations(free.partitions, free.ids);
    select array_agg(x.partition), array_agg(x.execution), array_agg(x.id), array_agg(x.lane)
    into partitions, executions, ids, lanes
    from unnest(partitions, executions, ids, lanes) as x (partition, execution, id, lane)
    where x.execution = any (free.ids) or not coalesce(x.execution = any (ending.ids), false);
end $$;

-- Sweep: time out suspensions, if the execution is still in that same suspension. A wait that is one of several, and
-- that only resumes its run, also times out while the run is active.
--
--   moves    suspended → ended, or → runnable, by the timeout behavior of each suspension
--   locks    the tickets it moves, after their flows, skipping locked ones; the budgets of their reservations, in key
--            order
--   emits    execution_failed, execution_cancelled, execution_expired, execution_resumed, suspension_escalated,
--            waitpoint_closed, reservation_released, edge_group_impossible, edge_group_satisfied, execution_skipped
--   returns  how many timed out and how many could not, the lanes to wake, the executions that ended
create or replace function flowfabric.time_out_waits(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    due record;
    held record;
    late record;
begin
    select array_agg(s.partition) as partitions, array_agg(s.execution) as executions, array_agg(s.id) as ids into due
    from (
        select s.partition, s.execution, s.id from flowfabric.suspensions s where s.timeout_at <= now
        order by s.timeout_at, s.partition, s.execution limit time_out_waits.take offset time_out_waits.passing) s;
    held := flowfabric._lock_late_waits(due.partitions, due.executions, due.ids, now);
    moved := 0;
    for late in
        select s.timeout_behavior as behavior, s.within is not null as within,
               array_agg(s.partition order by s.timeout_at) as partitions,
               array_agg(s.execution order by s.timeout_at) as ids,
               array_agg(s.id order by s.timeout_at) as suspensions,
               array_agg(distinct s.lane) as lanes
        from (
            select s.*, x.lane, row_number() over (
                partition by s.partition, s.execution, s.timeout_behavior in ('auto_resume', 'escalate')
                order by s.timeout_at, s.id) as turn
            from unnest(held.partitions, held.executions, held.ids, held.lanes)
                 as x (partition, id, suspension, lane)
            cross join lateral (
                select s.partition, s.execution, s.id, s.timeout_at, s.timeout_behavior, s.within
                from flowfabric.suspensions s
                where s.partition = x.partition and s.execution = x.id and s.id = x.suspension offset 0) s
            where s.timeout_at <= now) s
        -- If several late waits would end an execution, the first one ends it, and the end closes the others.
        where s.turn = 1 or s.timeout_behavior in ('auto_resume', 'escalate')
        group by 1, 2
        -- If several waits of one execution are due: escalations first, endings last.
        order by array_position(array['escalate', 'auto_resume'], s.timeout_behavior)
    loop
        ended := ended || flowfabric._time_out(
            late.behavior, late.within, late.partitions, late.ids, late.suspensions, now);
        moved := moved + cardinality(late.ids);
        lanes := case when late.behavior = 'auto_resume' then lanes || late.lanes else lanes end;
    end loop;
    locked := greatest(coalesce(cardinality(due.ids), 0) - moved, 0);
end $$;
