-- Timeouts: what happens when what was waited for has not come.

-- Record the signal by which a handler sees that its wait timed out.
--
--   returns  the signal's id
create or replace function flowfabric._timeout_signal(partition int, execution uuid, now timestamptz)
returns uuid
language plpgsql as $$
#variable_conflict use_column
declare
    made uuid := gen_random_uuid();
begin
    insert into flowfabric.signals (partition, execution, id, number, at, name, category, source_type, source_identity, effect)
    select _timeout_signal.partition, _timeout_signal.execution, made, coalesce(max(s.number), 0) + 1, _timeout_signal.now, 'timeout', 'system',
           'system', 'suspension_timeout', 'resume_condition_satisfied'
    from flowfabric.signals s where s.partition = _timeout_signal.partition and s.execution = _timeout_signal.execution;
    return made;
end $$;

-- Do what a suspension asked for when it times out. The caller holds the ticket and has seen that it is in this suspension.
--
--   moves    suspended → ended: failed, cancelled, expired; or → runnable; or stays, for an operator to look at
--   emits    execution_failed, execution_cancelled, execution_expired, execution_resumed, suspension_escalated, waitpoint_closed
create or replace function flowfabric._time_out(suspension flowfabric.suspensions, now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    partitions smallint[] := array[suspension.partition];
    ids uuid[] := array[suspension.execution];
    failure jsonb[] := array['{"class": "timeout", "reason": "suspension_timeout"}'::jsonb];
begin
    case suspension.timeout_behavior
        when 'auto_resume' then
            perform flowfabric._resume(partitions, ids, 'timeout', array[flowfabric._timeout_signal(suspension.partition, suspension.execution, now)],
                                       close_reason => 'timed_out_auto_resume');
        when 'escalate' then
            update flowfabric.suspensions s set reason_code = 'waiting_for_operator_review', timeout_at = null
            where s.partition = suspension.partition and s.execution = suspension.execution and s.id = suspension.id;
            update flowfabric.tickets t set reason = 'paused_by_operator' where t.partition = suspension.partition and t.id = suspension.execution;
            perform flowfabric._append_about('suspension_escalated', suspension.partition, suspension.execution,
                                             detail => jsonb_build_object('suspension_id', suspension.id));
        else
            perform flowfabric._close_waitpoints(partitions, ids, 'timed_out_' || suspension.timeout_behavior);
            perform flowfabric._end(partitions, ids, case suspension.timeout_behavior
                when 'fail' then 'failed' when 'cancel' then 'cancelled' else 'expired' end::flowfabric.outcome, failures => failure);
    end case;
end $$;

-- Act on suspensions whose time is over, if the execution is still in that same suspension.
--
--   moves    suspended → ended, or → runnable, as each suspension asked for
--   locks    the tickets it moves; skips those that are locked
--   emits    execution_failed, execution_cancelled, execution_expired, execution_resumed, suspension_escalated, waitpoint_closed
--   returns  how many were dealt with, the lanes with work again, the executions that ended
create or replace function flowfabric.time_out_waits(take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    late record;
begin
    moved := 0;
    for late in
        select s as suspension, t.lane, flowfabric._id(t.partition, t.id) as execution_id
        from flowfabric.suspensions s
        join flowfabric.tickets t on t.partition = s.partition and t.id = s.execution and t.suspension = s.id and t.phase = 'suspended'
        where s.ended_at is null and s.timeout_at <= now
        order by s.timeout_at, s.partition, s.execution limit time_out_waits.take offset time_out_waits.passing
        for update of t skip locked
    loop
        perform flowfabric._time_out(late.suspension, now);
        moved := moved + 1;
        if (late.suspension).timeout_behavior = 'auto_resume' then
            lanes := lanes || late.lane;
        elsif (late.suspension).timeout_behavior <> 'escalate' then
            ended := ended || late.execution_id;
        end if;
    end loop;
end $$;
