-- Waiting together: several waits of one run as one suspension. Each wait is a row of its own and ends independently;
-- the run resumes when all of them have ended, and whenever one of them times out.

-- Build the suspension row of a requested wait; `together` is the suspension that contains it, or null.
--
--   returns  the row, not yet stored
create or replace function flowfabric._requested_suspension(
    partition int, execution uuid, together uuid, wish jsonb, now timestamptz)
returns flowfabric.suspensions
language plpgsql stable as $$
declare
    about bytea := decode(_requested_suspension.wish ->> 'about', 'base64');
begin
    return row(_requested_suspension.partition, (_requested_suspension.wish ->> 'occurrence')::int,
               _requested_suspension.now, (_requested_suspension.wish ->> 'timeout_at')::timestamptz, null, null,
               _requested_suspension.execution, gen_random_uuid(),
               coalesce(_requested_suspension.wish ->> 'reason_code', 'waiting_for_signal'),
               _requested_suspension.wish ->> 'timeout_behavior',
               coalesce(_requested_suspension.wish ->> 'requested_by', 'worker'), null, null,
               _requested_suspension.wish ->> 'name', jsonb_strip_nulls(_requested_suspension.wish -> 'condition'),
               null, about, sha256(about), coalesce((_requested_suspension.wish ->> 'bind')::boolean, false),
               _requested_suspension.together, (_requested_suspension.wish ->> 'choice')::int, false, null,
               null)::flowfabric.suspensions;
end $$;

-- Start one requested wait within a suspension, with its waitpoints. If another open wait uses one of its keys, this
-- wait does not start: the run requests it again when the other wait has ended. The caller has locked the ticket.
--
--   moves    waitpoint pending → active, or – → active, or → closed
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found,
--            waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
create or replace function flowfabric._begin_wait(
    partition int, execution uuid, together uuid, wish jsonb, now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    made flowfabric.suspensions := flowfabric._requested_suspension(
        _begin_wait.partition, _begin_wait.execution, _begin_wait.together, _begin_wait.wish, _begin_wait.now);
    keys text[] := array(
        select p.point ->> 'key' from jsonb_array_elements(_begin_wait.wish -> 'waitpoints') p (point));
    judged record;
begin
    perform flowfabric._raise(flowfabric._wait_request_fault(
        made, (_begin_wait.wish ->> 'timeout_ms')::bigint, (_begin_wait.wish ->> 'resume_delay_ms')::bigint,
        _begin_wait.now));
    made := flowfabric._with_policy(
        made, (_begin_wait.wish ->> 'timeout_ms')::bigint, (_begin_wait.wish ->> 'resume_delay_ms')::bigint);
    perform flowfabric._raise(flowfabric._suspension_fault(made, keys, _begin_wait.now));
    if exists (select from flowfabric.waitpoints w
               where w.partition = _begin_wait.partition and w.execution = _begin_wait.execution
                 and w.key = any (keys) and w.state = 'active') then
        return;
    end if;
    insert into flowfabric.suspensions select made.*;
    perform flowfabric._bind_waitpoint(
        made.partition, made.execution, made.id, p.point ->> 'key', (p.point ->> 'waitpoint_id')::uuid, _begin_wait.now)
    from jsonb_array_elements(_begin_wait.wish -> 'waitpoints') p (point);
    judged := flowfabric._judge(made.condition, flowfabric._arrived_signals(made));
    if judged.holds then
        perform flowfabric._end_waits(
            array[made.partition], array[made.execution], array[made.id], 'signal', array[judged.satisfiers::text]);
    end if;
end $$;

-- End waits within a suspension: close their waitpoints, and release the alternatives of waits that belong to a choice.
-- If several waits of one choice are given, only the first ends. `satisfiers` holds a list of signal ids per wait, as
-- the text of a uuid[]. The caller has locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    waitpoint_closed
create or replace function flowfabric._end_waits(
    partitions smallint[], executions uuid[], ids uuid[], ended_by text, satisfiers text[] default null,
    close_reason text default 'resumed')
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    over record;
begin
    with first as (
        select f.* from (
            select x.*, s.place, s.choice, s.is_open,
                   row_number() over (partition by x.execution, s.within, s.choice order by x.number) as turn
            from unnest(_end_waits.partitions, _end_waits.executions, _end_waits.ids, _end_waits.satisfiers)
                 with ordinality as x (partition, execution, id, satisfiers, number)
            cross join lateral (
                select s.ctid as place, s.within, s.choice, s.ended_at is null as is_open from flowfabric.suspensions s
                where s.partition = x.partition and s.execution = x.execution and s.id = x.id offset 0) s) f
        where f.is_open and (f.choice is null or f.turn = 1)
    ), ended as (
        update flowfabric.suspensions s
        set satisfiers = x.satisfiers::uuid[], ended_at = now, timeout_at = null, ended_by = _end_waits.ended_by
        from first x where s.ctid = x.place
        returning s.partition, s.execution, s.id, s.within, s.choice, s.child
    )
    select array_agg(e.id) filter (where e.child is null) as ids,
           array_agg(e.within::text || e.choice) filter (where e.choice is not null) as choices,
           array_agg(e.partition) filter (where e.choice is not null) as partitions,
           array_agg(e.execution) filter (where e.choice is not null) as executions
    into over from ended e;
    if over.ids is not null then
        perform flowfabric._close_suspended(over.ids, _end_waits.close_reason);
    end if;
    if over.choices is not null then
        perform flowfabric._release_choices(over.partitions, over.executions, over.choices, now);
    end if;
end $$;

-- Release the remaining alternatives of choices that are made, each choice written as its suspension and its number.
-- The caller has locked the tickets.
--
--   moves    waitpoint active → pending
create or replace function flowfabric._release_choices(
    partitions smallint[], executions uuid[], choices text[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    perform flowfabric._release_waits(_release_choices.partitions, _release_choices.executions, array(
        select s.id
        from (select distinct x.partition, x.execution
              from unnest(_release_choices.partitions, _release_choices.executions) as x (partition, execution)) x
        cross join lateral (
            select s.id, s.within, s.choice from flowfabric.suspensions s
            where s.partition = x.partition and s.execution = x.execution and s.ended_at is null
              and s.within is not null offset 0) s
        where s.within::text || s.choice = any (_release_choices.choices)), _release_choices.now);
end $$;

-- Release waits that the run no longer requests. Their waitpoints stay open for a later wait: tokens stay valid, and
-- signals are buffered. The caller has locked the tickets.
--
--   moves    waitpoint active → pending
create or replace function flowfabric._release_waits(
    partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    with released as (
        update flowfabric.suspensions s
        set ended_at = _release_waits.now, timeout_at = null, ended_by = 'released', name = null, occurrence = null
        from (
            select s.place
            from (select distinct x.partition, x.execution
                  from unnest(_release_waits.partitions, _release_waits.executions) as x (partition, execution)) x
            cross join lateral (
                select s.ctid as place, s.id from flowfabric.suspensions s
                where s.partition = x.partition and s.execution = x.execution and s.ended_at is null
                  and s.within is not null offset 0) s
            where s.id = any (_release_waits.ids)) x
        where s.ctid = x.place
        returning s.id, s.about_digest
    )
    update flowfabric.waitpoints w
    set state = 'pending', suspension = null, activated_at = null, expires_at = _release_waits.now + interval '30 days',
        question = flowfabric._question(x.id, x.about_digest)
    from (
        select w.place, r.id, r.about_digest from released r
        cross join lateral (
            select w.ctid as place, w.state from flowfabric.waitpoints w where w.suspension = r.id offset 0) w
        where w.state = 'active') x
    where w.ctid = x.place;
end $$;

-- Resume executions that have no open wait left; after a timeout, regardless of their other open waits. The caller has
-- locked the tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   emits    execution_resumed, waitpoint_closed
--   returns  the lanes to wake
create or replace function flowfabric._resume_finished(partitions smallint[], executions uuid[], ended_by text)
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    free record;
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(distinct t.lane) as lanes into free
    from (select distinct x.partition, x.execution
          from unnest(_resume_finished.partitions, _resume_finished.executions) as x (partition, execution)) x
    cross join lateral (
        select t.partition, t.id, t.lane, t.phase, t.suspension from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.execution offset 0) t
    cross join lateral (
        select w.condition ->> 'kind' as kind from flowfabric.suspensions w
        where w.partition = t.partition and w.execution = t.id and w.id = t.suspension offset 0) w
    where t.phase = 'suspended' and w.kind = 'together'
      and (_resume_finished.ended_by = 'timeout' or not exists (
          select from flowfabric.suspensions s
          where s.partition = t.partition and s.execution = t.id and s.ended_at is null
            and s.within = t.suspension offset 0));
    if free.ids is not null then
        perform flowfabric._resume(free.partitions, free.ids, _resume_finished.ended_by);
    end if;
    return free.lanes;
end $$;

-- Check the sleeps and the children among the requested waits.
--
--   refuses  invalid_time, invalid_suspension, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._wait_requests_fault(partition int, execution uuid, wishes jsonb, now timestamptz)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
declare
    longest timestamptz := (
        select max(g.until) from jsonb_to_recordset(_wait_requests_fault.wishes) as g (until timestamptz));
    stranger text := (
        select flowfabric._id(g.child_partition, g.child)
        from jsonb_to_recordset(_wait_requests_fault.wishes) as g (child_partition smallint, child uuid)
        cross join lateral (
            select e.parent_partition, e.parent from flowfabric.executions e
            where e.partition = g.child_partition and e.id = g.child offset 0) e
        where (e.parent_partition, e.parent)
              is distinct from (_wait_requests_fault.partition::smallint, _wait_requests_fault.execution) limit 1);
begin
    return coalesce(
        flowfabric._delay_fault(null, longest, _wait_requests_fault.now),
        case when stranger is not null then flowfabric._fault(
            'invalid_suspension',
            format('the suspension is invalid: %s is not a child of this execution; use one of its children', stranger),
            '{"cause": "not_its_child"}') end);
end $$;

-- Start the waits of a suspension that do not exist yet: children and sleeps in one statement, the others one by one.
-- Waits that an earlier suspension started are kept if they are requested again, else released. The caller has locked
-- the ticket.
--
--   moves    waitpoint pending → active, or – → active, or → closed; of a wait no longer requested active → pending
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found,
--            waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
create or replace function flowfabric._begin_waits(
    partition int, execution uuid, together uuid, wishes jsonb, now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    wish jsonb;
begin
    perform flowfabric._raise(flowfabric._wait_requests_fault(
        _begin_waits.partition, _begin_waits.execution, _begin_waits.wishes, _begin_waits.now));
    perform flowfabric._mark_for_closing(_begin_waits.partition, _begin_waits.execution);
    update flowfabric.suspensions s set within = _begin_waits.together, choice = g.choice
    from jsonb_to_recordset(_begin_waits.wishes) as g (name text, occurrence int, choice int)
    where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.within is not null
      and s.name = g.name and s.occurrence = g.occurrence;
    perform flowfabric._release_waits(array[_begin_waits.partition::smallint], array[_begin_waits.execution], array(
        select s.id from flowfabric.suspensions s
        where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.ended_at is null
          and s.within is not null and s.within <> _begin_waits.together), _begin_waits.now);
    insert into flowfabric.suspensions (
        partition, execution, id, within, choice, name, occurrence, suspended_at, timeout_at, reason_code,
        timeout_behavior, requested_by, condition, is_sleep, child_partition, child)
    select _begin_waits.partition, _begin_waits.execution, gen_random_uuid(), _begin_waits.together, g.choice, g.name,
           g.occurrence, _begin_waits.now, g.until, 'waiting_for_signal', 'auto_resume', 'worker',
           '{"kind": "timeout_only"}', g.child is null, g.child_partition, g.child
    from jsonb_to_recordset(_begin_waits.wishes) as g (
        name text, occurrence int, choice int, until timestamptz, child_partition smallint, child uuid)
    where g.child is not null or g.until is not null
    on conflict do nothing;
    for wish in select g.wish from jsonb_array_elements(_begin_waits.wishes) g (wish) where g.wish ? 'condition' loop
        continue when exists (
            select from flowfabric.suspensions s
            where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.within is not null
              and s.name = wish ->> 'name' and s.occurrence = (wish ->> 'occurrence')::int);
        continue when wish ? 'choice' and exists (
            select from flowfabric.suspensions s
            where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution
              and s.within = _begin_waits.together and s.choice = (wish ->> 'choice')::int
              and s.ended_at is not null and s.ended_by <> 'released');
        perform flowfabric._begin_wait(
            _begin_waits.partition, _begin_waits.execution, _begin_waits.together, wish, _begin_waits.now);
    end loop;
end $$;

-- End the waits of a new suspension that are already over: children that have ended, timeouts that have passed, and the
-- remaining alternatives of choices that were made while the run was active. The caller has locked the ticket.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    signal_delivered, waitpoint_closed
--   returns  whether the run can continue immediately
create or replace function flowfabric._end_finished_waits(partition int, execution uuid, together uuid, now timestamptz)
returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    chosen text[];
    over uuid[];
    late uuid[];
begin
    select array_agg(s.within::text || s.choice) into chosen from flowfabric.suspensions s
    where s.partition = _end_finished_waits.partition and s.execution = _end_finished_waits.execution
      and s.within = _end_finished_waits.together and s.choice is not null
      and s.ended_at is not null and s.ended_by <> 'released';
    if chosen is not null then
        perform flowfabric._release_choices(
            array[_end_finished_waits.partition::smallint], array[_end_finished_waits.execution], chosen,
            _end_finished_waits.now);
    end if;
    over := array(
        select s.id
        from (select s.* from flowfabric.suspensions s
              where s.partition = _end_finished_waits.partition and s.execution = _end_finished_waits.execution
                and s.within = _end_finished_waits.together and s.ended_at is null offset 0) s
        where s.child is not null
          and not exists (select from flowfabric.executions e
                          where e.partition = s.child_partition and e.id = s.child and e.outcome is null offset 0));
    if cardinality(over) > 0 then
        perform flowfabric._answer_children(
            array_fill(_end_finished_waits.partition::smallint, array[cardinality(over)]),
            array_fill(_end_finished_waits.execution, array[cardinality(over)]), over, _end_finished_waits.now);
    end if;
    late := array(
        select s.id from flowfabric.suspensions s
        where s.partition = _end_finished_waits.partition and s.execution = _end_finished_waits.execution
          and s.within = _end_finished_waits.together and s.timeout_at <= _end_finished_waits.now
          and s.timeout_behavior = 'auto_resume' order by s.timeout_at);
    if cardinality(late) > 0 then
        perform flowfabric._time_out_waits(
            array_fill(_end_finished_waits.partition::smallint, array[cardinality(late)]),
            array_fill(_end_finished_waits.execution, array[cardinality(late)]), late, _end_finished_waits.now);
    end if;
    return (select coalesce(bool_or(s.ended_by = 'timeout'), false) or coalesce(bool_and(s.ended_at is not null), true)
            from flowfabric.suspensions s
            where s.partition = _end_finished_waits.partition and s.execution = _end_finished_waits.execution
              and s.within = _end_finished_waits.together);
end $$;

-- End waits within a suspension because they timed out: a sleep just ends, any other wait gets a `timeout` signal. The
-- caller has locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    waitpoint_closed
create or replace function flowfabric._time_out_waits(
    partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    made record;
begin
    with late as (
        select x.*, s.is_sleep, row_number() over (partition by x.partition, x.execution order by x.number) as turn,
               gen_random_uuid() as signal
        from unnest(_time_out_waits.partitions, _time_out_waits.executions, _time_out_waits.ids)
             with ordinality as x (partition, execution, id, number)
        cross join lateral (
            select s.is_sleep from flowfabric.suspensions s
            where s.partition = x.partition and s.execution = x.execution and s.id = x.id offset 0) s
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
        made.partitions, made.executions, made.ids, 'timeout', made.signals, 'timed_out_auto_resume');
end $$;

-- Suspend an execution for several waits at once, as one suspension. It resumes when all of them have ended, and
-- whenever one of them times out. Each wait ends independently, with the signals that arrived for it. A wait that was
-- requested before, at the same place in the journal, is kept. A wait that is no longer requested is released, and its
-- waitpoints can be waited on again. A single wait for signals becomes a plain suspension.
--
--   moves    active → suspended: attempt_interrupted; or stays active if the run can continue immediately
--   locks    the ticket
--   emits    execution_suspended, waitpoint_created, waitpoint_closed, signal_delivered
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_suspension,
--            invalid_body, invalid_time, payload_too_large, waitpoint_not_found, waitpoint_not_pending,
--            pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
--   returns  'suspended' or 'already_satisfied', and the suspension
create or replace function flowfabric.suspend_together(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, wishes text, idempotency_key text default null,
    out outcome text, out suspension_id uuid)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    held record := flowfabric._lock_fenced(
        suspend_together.partition, suspend_together.id, suspend_together.lease_id, suspend_together.epoch,
        suspend_together.attempt);
    now timestamptz := flowfabric.clock();
    made flowfabric.suspensions;
    given jsonb := suspend_together.wishes::jsonb;
    wish jsonb := given -> 0;
    earlier record;
begin
    if suspend_together.idempotency_key <> '' then
        select s.* into made from flowfabric.suspensions s
        where s.partition = suspend_together.partition and s.execution = suspend_together.id
          and s.idempotency_key = suspend_together.idempotency_key;
        if found then
            suspension_id := made.id;
            outcome := case when made.ended_by = 'buffered' then 'already_satisfied' else 'suspended' end;
            return;
        end if;
    end if;
    if held.fault is not null then
        perform flowfabric._raise(held.fault);
    end if;
    select exists (select from flowfabric.suspensions s
                   where s.partition = suspend_together.partition and s.execution = suspend_together.id
                     and s.within is not null and s.name = wish ->> 'name'
                     and s.occurrence = (wish ->> 'occurrence')::int) as is_asked,
           exists (select from flowfabric.suspensions s
                   where s.partition = suspend_together.partition and s.execution = suspend_together.id
                     and s.within is not null and s.ended_at is null) as is_open
    into earlier;
    if jsonb_array_length(given) = 1 and wish ? 'condition' and not wish ? 'choice' and not earlier.is_asked then
        if earlier.is_open then
            perform flowfabric._begin_waits(
                suspend_together.partition, suspend_together.id, gen_random_uuid(), '[]', now);
        end if;
        made := flowfabric._requested_suspension(suspend_together.partition, suspend_together.id, null, wish, now);
        made.idempotency_key := nullif(suspend_together.idempotency_key, '');
        suspension_id := made.id;
        outcome := (flowfabric._suspend(made, held.ticket, wish -> 'waitpoints', (wish ->> 'timeout_ms')::bigint,
                                        (wish ->> 'resume_delay_ms')::bigint)).outcome;
        return;
    end if;
    made := flowfabric._requested_suspension(
        suspend_together.partition, suspend_together.id, null, '{"condition": {"kind": "together"}}', now);
    made.timeout_behavior := 'auto_resume';
    made.idempotency_key := nullif(suspend_together.idempotency_key, '');
    made.resume_delay := (
        select max((g.wish ->> 'resume_delay_ms')::bigint) from jsonb_array_elements(given) g (wish)) * interval '1 ms';
    made.reason_code := (
        select case when count(distinct g.wish ->> 'reason_code') = 1 then min(g.wish ->> 'reason_code')
                    else made.reason_code end
        from jsonb_array_elements(given) g (wish));
    perform flowfabric._begin_waits(made.partition, made.execution, made.id, given, now);
    if flowfabric._end_finished_waits(made.partition, made.execution, made.id, now) then
        made.ended_at := now;
        made.ended_by := 'buffered';
    end if;
    insert into flowfabric.suspensions select made.*;
    suspension_id := made.id;
    outcome := case when made.ended_by is null then 'suspended' else 'already_satisfied' end;
    if outcome = 'suspended' then
        perform flowfabric._suspend_ticket(made, held.ticket);
    end if;
end $$;
