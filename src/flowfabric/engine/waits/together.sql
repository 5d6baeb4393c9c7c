-- Waiting together: several waits of one run as one suspension. Each is a row of its own and ends by itself; the run goes on
-- when none is left, and whenever the time of one has come.

-- A wish as it is stored, once it is within a suspension.
--
--   returns  the row
create or replace function flowfabric._wished(partition int, execution uuid, together uuid, wish jsonb, now timestamptz)
returns flowfabric.suspensions
language plpgsql stable as $$
declare
    about bytea := decode(wish ->> 'about', 'base64');
begin
    return row(_wished.partition, (wish ->> 'occurrence')::int, now, (wish ->> 'timeout_at')::timestamptz, null, null, _wished.execution,
               gen_random_uuid(), coalesce(wish ->> 'reason_code', 'waiting_for_signal'), wish ->> 'timeout_behavior',
               coalesce(wish ->> 'requested_by', 'worker'), null, null, wish ->> 'name', jsonb_strip_nulls(wish -> 'condition'), null, about,
               sha256(about), coalesce((wish ->> 'bind')::boolean, false), together, (wish ->> 'choice')::int, false, null, null)::flowfabric.suspensions;
end $$;

-- Make the wait that a wish asks for, with its waitpoints, unless another wait that is open has one of its keys: then it is
-- asked for again when that is over. The caller holds the ticket.
--
--   moves    waitpoint pending → active, or – → active, or → closed
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found, waitpoint_not_pending,
--            pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
create or replace function flowfabric._begin_wait(partition int, execution uuid, together uuid, wish jsonb, now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    made flowfabric.suspensions := flowfabric._wished(_begin_wait.partition, _begin_wait.execution, together, wish, now);
    keys text[] := array(select p.point ->> 'key' from jsonb_array_elements(wish -> 'waitpoints') p (point));
    judged record;
begin
    perform flowfabric._raise(flowfabric._wish_fault(made, (wish ->> 'timeout_ms')::bigint, (wish ->> 'resume_delay_ms')::bigint, now));
    made := flowfabric._with_policy(made, (wish ->> 'timeout_ms')::bigint, (wish ->> 'resume_delay_ms')::bigint);
    perform flowfabric._raise(flowfabric._suspension_fault(made, keys, now));
    if exists (select from flowfabric.waitpoints w where w.partition = _begin_wait.partition and w.execution = _begin_wait.execution
               and w.key = any (keys) and w.state = 'active') then
        return;
    end if;
    insert into flowfabric.suspensions select made.*;
    perform flowfabric._bind_waitpoint(made.partition, made.execution, made.id, p.point ->> 'key', (p.point ->> 'waitpoint_id')::uuid, now)
    from jsonb_array_elements(wish -> 'waitpoints') p (point);
    judged := flowfabric._judge(made.condition, flowfabric._arrived(made));
    if judged.holds then
        perform flowfabric._end_waits(array[made.partition], array[made.execution], array[made.id], 'signal', array[judged.satisfiers::text]);
    end if;
end $$;

-- End waits that are within a suspension: close their waitpoints, and take out the alternatives of those that were one of a
-- choice. Of several of one choice the first in the order given counts. `satisfiers` holds a list of signal ids for each,
-- written as Postgres writes a uuid[]. The caller holds the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    waitpoint_closed
create or replace function flowfabric._end_waits(
    partitions smallint[], executions uuid[], ids uuid[], ended_by text, satisfiers text[] default null, close_reason text default 'resumed')
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    over record;
begin
    with first as (
        select f.* from (
            select x.*, s.choice, row_number() over (partition by s.execution, s.within, s.choice order by x.number) as turn
            from unnest(_end_waits.partitions, _end_waits.executions, _end_waits.ids, _end_waits.satisfiers) with ordinality
                 as x (partition, execution, id, satisfiers, number)
            join flowfabric.suspensions s on s.partition = x.partition and s.execution = x.execution and s.id = x.id) f
        where f.choice is null or f.turn = 1
    ), ended as (
        update flowfabric.suspensions s set ended_at = now, timeout_at = null, ended_by = _end_waits.ended_by, satisfiers = x.satisfiers::uuid[]
        from first x where s.partition = x.partition and s.execution = x.execution and s.id = x.id and s.ended_at is null
        returning s.partition, s.execution, s.id, s.within, s.choice, s.child
    )
    select array_agg(e.id) filter (where e.child is null) as ids,
           array_agg(e.within::text || e.choice) filter (where e.choice is not null) as choices,
           array_agg(e.partition) filter (where e.choice is not null) as partitions, array_agg(e.execution) filter (where e.choice is not null) as executions
    into over from ended e;
    if over.ids is not null then
        perform flowfabric._close_suspended(over.ids, _end_waits.close_reason);
    end if;
    if over.choices is not null then
        perform flowfabric._release_choices(over.partitions, over.executions, over.choices, now);
    end if;
end $$;

-- Take out what is left of choices that are made, each written as its suspension and its number. The caller holds the tickets.
--
--   moves    waitpoint active → pending
create or replace function flowfabric._release_choices(partitions smallint[], executions uuid[], choices text[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    perform flowfabric._release_waits(_release_choices.partitions, _release_choices.executions, array(
        select s.id
        from (select distinct x.partition, x.execution
              from unnest(_release_choices.partitions, _release_choices.executions) as x (partition, execution)) x
        join flowfabric.suspensions s on s.partition = x.partition and s.execution = x.execution
        where s.ended_at is null and s.within is not null and s.within::text || s.choice = any (_release_choices.choices)), _release_choices.now);
end $$;

-- Take waits back that nobody asks for any more. Their waitpoints stay open for whoever asks next: tokens stay good, and
-- what arrives is kept. The caller holds the tickets.
--
--   moves    waitpoint active → pending
create or replace function flowfabric._release_waits(partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    update flowfabric.suspensions s set ended_at = _release_waits.now, timeout_at = null, ended_by = 'released', name = null, occurrence = null
    from (select distinct x.partition, x.execution from unnest(_release_waits.partitions, _release_waits.executions) as x (partition, execution)) x
    where s.partition = x.partition and s.execution = x.execution and s.ended_at is null and s.within is not null
      and s.id = any (_release_waits.ids);
    update flowfabric.waitpoints w
    set state = 'pending', suspension = null, activated_at = null, expires_at = _release_waits.now + interval '30 days'
    from unnest(_release_waits.ids) as x (suspension) where w.suspension = x.suspension and w.state = 'active';
end $$;

-- Let executions go on that wait for nothing more, or, when a time has come, whatever else they wait for. The caller holds
-- the tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   emits    execution_resumed, waitpoint_closed
--   returns  the lanes with work again
create or replace function flowfabric._go_on(partitions smallint[], executions uuid[], ended_by text)
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    free record;
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(distinct t.lane) as lanes into free
    from (select distinct x.partition, x.execution from unnest(_go_on.partitions, _go_on.executions) as x (partition, execution)) x
    join flowfabric.tickets t on t.partition = x.partition and t.id = x.execution
    join flowfabric.suspensions w on w.partition = t.partition and w.execution = t.id and w.id = t.suspension
    where t.phase = 'suspended' and w.condition ->> 'kind' = 'together'
      and (_go_on.ended_by = 'timeout' or not exists (
          select from flowfabric.suspensions s
          where s.partition = t.partition and s.execution = t.id and s.ended_at is null and s.within = t.suspension));
    if free.ids is not null then
        perform flowfabric._resume(free.partitions, free.ids, _go_on.ended_by);
    end if;
    return free.lanes;
end $$;

-- What is wrong with the sleeps and the children that are asked for.
--
--   refuses  invalid_time, invalid_suspension, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._wishes_fault(partition int, execution uuid, wishes jsonb, now timestamptz)
returns jsonb
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    longest timestamptz := (select max(g.until) from jsonb_to_recordset(wishes) as g (until timestamptz));
    stranger text := (
        select flowfabric._id(e.partition, e.id) from jsonb_to_recordset(wishes) as g (child_partition smallint, child uuid)
        join flowfabric.executions e on e.partition = g.child_partition and e.id = g.child
        where (e.parent_partition, e.parent) is distinct from (_wishes_fault.partition::smallint, _wishes_fault.execution) limit 1);
begin
    return coalesce(
        flowfabric._delay_fault(null, longest, now),
        case when stranger is not null then flowfabric._fault(
            'invalid_suspension', format('the wait cannot be: %s is not its child, so its end would not be heard of', stranger),
            '{"cause": "not_its_child"}') end);
end $$;

-- Make the waits of a suspension that are not there yet: those for children and the sleeps at once, the others one by one.
-- What an earlier suspension asked for goes on as it is, and what it asked for in vain is released. The caller holds the ticket.
--
--   moves    waitpoint pending → active, or – → active, or → closed; of what is not asked for any more active → pending
--   emits    waitpoint_created, waitpoint_closed
--   refuses  invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found, waitpoint_not_pending,
--            pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
create or replace function flowfabric._begin_waits(partition int, execution uuid, together uuid, wishes jsonb, now timestamptz)
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    wish jsonb;
begin
    perform flowfabric._raise(flowfabric._wishes_fault(_begin_waits.partition, _begin_waits.execution, wishes, now));
    perform flowfabric._tie(_begin_waits.partition, _begin_waits.execution);
    update flowfabric.suspensions s set within = together, choice = g.choice
    from jsonb_to_recordset(wishes) as g (name text, occurrence int, choice int)
    where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.within is not null
      and s.name = g.name and s.occurrence = g.occurrence;
    perform flowfabric._release_waits(array[_begin_waits.partition::smallint], array[_begin_waits.execution], array(
        select s.id from flowfabric.suspensions s
        where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.ended_at is null
          and s.within is not null and s.within <> together), now);
    insert into flowfabric.suspensions (partition, execution, id, within, choice, name, occurrence, suspended_at, timeout_at, reason_code,
                                        timeout_behavior, requested_by, condition, is_sleep, child_partition, child)
    select _begin_waits.partition, _begin_waits.execution, gen_random_uuid(), together, g.choice, g.name, g.occurrence, now, g.until,
           'waiting_for_signal', 'auto_resume', 'worker', '{"kind": "timeout_only"}', g.child is null, g.child_partition, g.child
    from jsonb_to_recordset(wishes) as g (name text, occurrence int, choice int, until timestamptz, child_partition smallint, child uuid)
    where g.child is not null or g.until is not null
    on conflict do nothing;
    for wish in select g.wish from jsonb_array_elements(wishes) g (wish) where g.wish ? 'condition' loop
        continue when exists (
            select from flowfabric.suspensions s
            where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.within is not null
              and s.name = wish ->> 'name' and s.occurrence = (wish ->> 'occurrence')::int);
        continue when wish ? 'choice' and exists (
            select from flowfabric.suspensions s
            where s.partition = _begin_waits.partition and s.execution = _begin_waits.execution and s.within = together
              and s.choice = (wish ->> 'choice')::int and s.ended_at is not null and s.ended_by <> 'released');
        perform flowfabric._begin_wait(_begin_waits.partition, _begin_waits.execution, together, wish, now);
    end loop;
end $$;

-- End what is over of the waits of a suspension that begins: children that have ended, times that have come, and what is
-- left of choices that were made while the run went on. The caller holds the ticket.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    signal_delivered, waitpoint_closed
--   returns  whether the run has something to go on with at once
create or replace function flowfabric._settle_begun(partition int, execution uuid, together uuid, now timestamptz)
returns boolean
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    chosen text[];
    late uuid[];
begin
    select array_agg(s.within::text || s.choice) into chosen from flowfabric.suspensions s
    where s.partition = _settle_begun.partition and s.execution = _settle_begun.execution and s.within = together
      and s.choice is not null and s.ended_at is not null and s.ended_by <> 'released';
    if chosen is not null then
        perform flowfabric._release_choices(array[_settle_begun.partition::smallint], array[_settle_begun.execution], chosen, now);
    end if;
    perform flowfabric._answer_children(array[_settle_begun.partition::smallint], array[_settle_begun.execution], array(
        select s.id from flowfabric.suspensions s
        where s.partition = _settle_begun.partition and s.execution = _settle_begun.execution and s.within = together
          and s.ended_at is null and s.child is not null
          and not exists (select from flowfabric.executions e
                          where e.partition = s.child_partition and e.id = s.child and e.outcome is null)), now);
    late := array(
        select s.id from flowfabric.suspensions s
        where s.partition = _settle_begun.partition and s.execution = _settle_begun.execution and s.within = together
          and s.timeout_at <= now and s.timeout_behavior = 'auto_resume' order by s.timeout_at);
    if cardinality(late) > 0 then
        perform flowfabric._time_out_waits(array_fill(_settle_begun.partition::smallint, array[cardinality(late)]),
                                           array_fill(_settle_begun.execution, array[cardinality(late)]), late, now);
    end if;
    return (select coalesce(bool_or(s.ended_by = 'timeout'), false) or coalesce(bool_and(s.ended_at is not null), true) from flowfabric.suspensions s
            where s.partition = _settle_begun.partition and s.execution = _settle_begun.execution and s.within = together);
end $$;

-- End waits within a suspension because their time has come: a sleep is over, another wait gets a signal that says so. The
-- caller holds the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   emits    waitpoint_closed
create or replace function flowfabric._time_out_waits(partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    made record;
begin
    with late as (
        select x.*, s.is_sleep, row_number() over (partition by x.partition, x.execution order by x.number) as turn, gen_random_uuid() as signal
        from unnest(_time_out_waits.partitions, _time_out_waits.executions, _time_out_waits.ids) with ordinality as x (partition, execution, id, number)
        join flowfabric.suspensions s on s.partition = x.partition and s.execution = x.execution and s.id = x.id
    ), inserted as (
        insert into flowfabric.signals (partition, execution, id, number, at, name, category, source_type, source_identity, effect)
        select l.partition, l.execution, l.signal, last.number + l.turn, _time_out_waits.now, 'timeout', 'system', 'system', 'suspension_timeout',
               'resume_condition_satisfied'
        from late l cross join lateral (select coalesce(max(s.number), 0) as number from flowfabric.signals s
                                        where s.partition = l.partition and s.execution = l.execution) last
        where not l.is_sleep
    )
    select array_agg(l.partition order by l.number) as partitions, array_agg(l.execution order by l.number) as executions,
           array_agg(l.id order by l.number) as ids, array_agg(case when not l.is_sleep then array[l.signal]::text end order by l.number) as signals
    into made from late l;
    perform flowfabric._end_waits(made.partitions, made.executions, made.ids, 'timeout', made.signals, 'timed_out_auto_resume');
end $$;

-- Let an execution step aside for several waits at once, as one suspension: it goes on when all of them are over, and whenever
-- the time of one has come. Each wait is over by itself, with what arrived for it. A wait that was asked for before, at the same
-- place in the journal, goes on as it is; one that is not asked for any more is released, and its waitpoints can be waited for
-- again. A lone wait for signals is a plain suspension.
--
--   moves    active → suspended: attempt_interrupted; or stays active when there is something to go on with at once
--   locks    the ticket
--   emits    execution_suspended, waitpoint_created, waitpoint_closed, signal_delivered
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_suspension, invalid_body,
--            invalid_time, payload_too_large, waitpoint_not_found, waitpoint_not_pending, pending_waitpoint_expired,
--            waitpoint_of_other_execution, no_active_key
--   returns  'suspended' or 'already_satisfied', and the suspension
create or replace function flowfabric.suspend_together(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, wishes text, idempotency_key text default null,
    out outcome text, out suspension_id uuid)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    held record := flowfabric._lock_fenced(suspend_together.partition, suspend_together.id, suspend_together.lease_id, suspend_together.epoch,
                                           suspend_together.attempt, now);
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
                   where s.partition = suspend_together.partition and s.execution = suspend_together.id and s.within is not null
                     and s.name = wish ->> 'name' and s.occurrence = (wish ->> 'occurrence')::int) as is_asked,
           exists (select from flowfabric.suspensions s
                   where s.partition = suspend_together.partition and s.execution = suspend_together.id and s.within is not null
                     and s.ended_at is null) as is_open
    into earlier;
    if jsonb_array_length(given) = 1 and wish ? 'condition' and not wish ? 'choice' and not earlier.is_asked then
        if earlier.is_open then
            perform flowfabric._begin_waits(suspend_together.partition, suspend_together.id, gen_random_uuid(), '[]', now);
        end if;
        made := flowfabric._wished(suspend_together.partition, suspend_together.id, null, wish, now);
        made.idempotency_key := nullif(suspend_together.idempotency_key, '');
        suspension_id := made.id;
        outcome := (flowfabric._suspend(made, held.ticket, wish -> 'waitpoints', (wish ->> 'timeout_ms')::bigint,
                                        (wish ->> 'resume_delay_ms')::bigint)).outcome;
        return;
    end if;
    made := flowfabric._wished(suspend_together.partition, suspend_together.id, null, '{"condition": {"kind": "together"}}', now);
    made.timeout_behavior := 'auto_resume';
    made.idempotency_key := nullif(suspend_together.idempotency_key, '');
    made.resume_delay := (select max((g.wish ->> 'resume_delay_ms')::bigint) from jsonb_array_elements(given) g (wish)) * interval '1 ms';
    made.reason_code := (select case when count(distinct g.wish ->> 'reason_code') = 1 then min(g.wish ->> 'reason_code') else made.reason_code end
                         from jsonb_array_elements(given) g (wish));
    perform flowfabric._begin_waits(made.partition, made.execution, made.id, given, now);
    if flowfabric._settle_begun(made.partition, made.execution, made.id, now) then
        made.ended_at := now;
        made.ended_by := 'buffered';
    end if;
    insert into flowfabric.suspensions select made.*;
    suspension_id := made.id;
    outcome := case when made.ended_by is null then 'suspended' else 'already_satisfied' end;
    if outcome = 'suspended' then
        perform flowfabric._step_aside(made, held.ticket);
    end if;
end $$;
