-- Retries: whether and when a failed attempt is retried.

-- Compute the backoff before the next retry from the policy's retry object. Uses exact decimal arithmetic, rounded down
-- to whole milliseconds. With jitter the result is a random integer between half of the backoff and the backoff.
--
--   returns  milliseconds
create or replace function flowfabric._backoff_ms(retry jsonb, retries_made int)
returns bigint
language plpgsql volatile as $$
declare
    backoff jsonb := coalesce(_backoff_ms.retry -> 'backoff', '{}');
    most numeric := coalesce((backoff ->> 'max_delay_ms')::numeric, 60000);
    multiplier numeric := coalesce((backoff ->> 'multiplier')::numeric, 2);
    wait numeric := coalesce((backoff ->> 'initial_delay_ms')::numeric, 1000);
    half bigint;
begin
    if backoff ->> 'type' = 'fixed' then
        wait := coalesce((backoff ->> 'delay_ms')::numeric, 1000);
    else
        for made in 1 .. _backoff_ms.retries_made loop
            exit when wait >= most or multiplier = 1 or wait = 0;
            wait := wait * multiplier;
        end loop;
        wait := least(wait, most);
    end if;
    if coalesce((backoff ->> 'jitter')::boolean, false) then
        half := ceil(trunc(wait) / 2);
        return half + floor(random() * (trunc(wait) - half + 1))::bigint;
    end if;
    return trunc(wait);
end $$;

-- Compute when a failed attempt is retried. It is retried if its class is retryable, its class or category is in the
-- policy's list, a retry is left, and the retry starts before the deadline.
--
--   returns  the time of the retry, or null if the failure is final
create or replace function flowfabric._retry_at(
    policy jsonb, failure jsonb, retries_made int, retry_after_ms bigint, deadline_at timestamptz, now timestamptz)
returns timestamptz
language plpgsql volatile as $$
declare
    retry jsonb := _retry_at.policy -> 'retry';
    retryable jsonb := coalesce(retry -> 'retryable', '["transient", "infra_crash", "timeout"]');
    due_at timestamptz;
begin
    if retry is null or _retry_at.failure ->> 'class' in ('permanent', 'cancelled')
       or not (retryable ? (_retry_at.failure ->> 'class') or retryable ? (_retry_at.failure ->> 'category'))
       or _retry_at.retries_made >= coalesce((retry ->> 'max_retries')::int, 3) then
        return null;
    end if;
    due_at := _retry_at.now + coalesce(_retry_at.retry_after_ms,
                                       flowfabric._backoff_ms(retry, _retry_at.retries_made)) * interval '1 ms';
    return case when due_at < coalesce(_retry_at.deadline_at, 'infinity') then due_at end;
end $$;

-- Schedule the retries of failed attempts. The caller has locked the tickets.
--
--   moves    active → runnable: not_eligible_until_time / waiting_for_retry_backoff, pending_retry_attempt, retries + 1
--   emits    attempt_failed
create or replace function flowfabric._schedule_retries(
    partitions smallint[], ids uuid[], failures jsonb[], dues timestamptz[])
returns void
language plpgsql as $$
declare
    failed record;
begin
    perform flowfabric._close_attempts(_schedule_retries.partitions, _schedule_retries.ids, 'ended_failure',
                                       _schedule_retries.failures);
    with moved as (
        update flowfabric.tickets t
        set phase = 'runnable', eligibility = 'not_eligible_until_time', reason = 'waiting_for_retry_backoff',
            attempt_state = 'pending_retry_attempt', retries = t.retries + 1, due_at = x.due_at, attempt_deadline = null
        from (
            select x.*, t.place from (
                select x.* from unnest(_schedule_retries.partitions, _schedule_retries.ids, _schedule_retries.failures,
                                       _schedule_retries.dues)
                                as x (partition, id, failure, due_at)
                limit cardinality(_schedule_retries.ids)) x
            cross join lateral (select t.ctid as place from flowfabric.tickets t
                                where t.partition = x.partition and t.id = x.id offset 0) t) x
        where t.ctid = x.place
        returning t.partition, t.id, t.attempt, t.epoch, x.due_at, x.failure
    )
    select array_agg(m.partition) as partitions, array_agg(m.id) as ids,
           array_agg((m.failure - 'traceback')
                     || jsonb_build_object('due_at', m.due_at, 'attempt', m.attempt, 'epoch', m.epoch)) as details
    into failed from moved m;
    perform flowfabric._append_all('attempt_failed', failed.partitions, failed.ids, failed.details);
end $$;

-- Settle failed attempts: schedule a retry if one is left, else end the execution. The caller has locked the tickets.
--
--   moves    active → runnable: not_eligible_until_time / waiting_for_retry_backoff, pending_retry_attempt; or → ended
--   emits    execution_failed
--   returns  per item 'retry_scheduled' {due_at, next_attempt}, or 'failed'; if that ended other members of flows, the
--            first 'failed' item has them
create or replace function flowfabric._settle_failures(
    partitions smallint[], ids uuid[], failures jsonb[], retry_afters_ms bigint[], now timestamptz)
returns table (item int, outcome text, detail text, ended text[])
language plpgsql as $$
declare
    judged record;
    others text[];
begin
    -- For all attempts in one call, because budgets must be locked in key order. Retried or not, the attempt has ended.
    perform flowfabric._return_reservations(_settle_failures.partitions, _settle_failures.ids);
    select array_agg(x.due_at order by x.item) as dues, array_agg(x.attempt order by x.item) as attempts,
           array_agg(x.partition order by x.item) filter (where x.due_at is not null) as partitions,
           array_agg(x.id order by x.item) filter (where x.due_at is not null) as ids,
           array_agg(x.failure order by x.item) filter (where x.due_at is not null) as failures,
           array_agg(x.partition order by x.item) filter (where x.due_at is null) as lost_partitions,
           array_agg(x.id order by x.item) filter (where x.due_at is null) as lost,
           array_agg(x.failure order by x.item) filter (where x.due_at is null) as final_failures
    into judged
    from (
        select x.*, t.attempt, flowfabric._retry_at(
                   e.policy, x.failure, t.retries, x.retry_after_ms, t.deadline_at, _settle_failures.now) as due_at
        from unnest(_settle_failures.partitions, _settle_failures.ids, _settle_failures.failures,
                    _settle_failures.retry_afters_ms)
             with ordinality as x (partition, id, failure, retry_after_ms, item)
        cross join lateral (select t.* from flowfabric.tickets t
                            where t.partition = x.partition and t.id = x.id offset 0) t
        cross join lateral (select e.policy from flowfabric.executions e
                            where e.partition = x.partition and e.id = x.id offset 0) e
        offset 0) x; -- `offset 0`: the time of a retry is random, and computed once
    if judged.ids is not null then
        perform flowfabric._schedule_retries(
            judged.partitions, judged.ids, judged.failures, array_remove(judged.dues, null));
    end if;
    if judged.lost is not null then
        others := (flowfabric._end(
            judged.lost_partitions, judged.lost, 'failed', failures => judged.final_failures)).ended;
    end if;

    return query
    select x.item::int, case when x.due_at is null then 'failed' else 'retry_scheduled' end,
           case when x.due_at is not null
               then jsonb_build_object('due_at', x.due_at, 'next_attempt', x.attempt + 1)::text end,
           case when x.item = array_position(judged.dues, null) then others end
    from unnest(judged.dues, judged.attempts) with ordinality as x (due_at, attempt, item);
end $$;

-- Sweep: fail attempts that exceeded their timeout. They are retried if the policy allows it, else the execution
-- fails.
--
--   moves    active → runnable: pending_retry_attempt; or → ended: failed
--   locks    the tickets it moves, after their flows, skipping locked ones; the budgets of their reservations, in key
--            order
--   emits    attempt_failed, execution_failed, edge_group_impossible, edge_group_satisfied, execution_cancelled,
--            execution_skipped, reservation_released, waitpoint_closed
--   returns  how many were moved and how many could not be, no lanes (a retry is due later), the executions that ended
create or replace function flowfabric.time_out_attempts(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due record;
    held uuid[];
    late record;
    failures jsonb[];
begin
    select array_agg(d.partition) as partitions, array_agg(d.id) as ids, array_agg(d.flow) as flows into due from (
        select t.partition, t.id, t.flow from flowfabric.tickets t
        where t.phase = 'active' and t.attempt_deadline <= now
        order by t.attempt_deadline, t.partition, t.id
        limit time_out_attempts.take offset time_out_attempts.passing) d;
    held := flowfabric._try_members(due.partitions, due.ids, due.flows);
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids into late
    from unnest(due.partitions, due.ids) as x (partition, id)
    cross join lateral (
        select t.partition, t.id from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id and t.phase = 'active' and t.attempt_deadline <= now
          and (t.flow is null or t.id = any (held))
        for update skip locked) t;
    late := flowfabric._with_free_budgets(late.partitions, late.ids, held);
    moved := coalesce(cardinality(late.ids), 0);
    locked := coalesce(cardinality(due.ids), 0) - moved;
    if moved > 0 then
        failures := array(
            select jsonb_build_object(
                'class', 'timeout', 'category', 'timeout',
                'reason', format('attempt_timeout: attempt %s used up its %s s; that happened %s', t.attempt, e.seconds,
                                 case when a.count = 0 then 'once' else a.count + 1 || ' times' end))
            from unnest(late.partitions, late.ids) with ordinality as x (partition, id, item)
            cross join lateral (select t.attempt from flowfabric.tickets t
                                where t.partition = x.partition and t.id = x.id offset 0) t
            cross join lateral (
                select trim_scale((e.policy ->> 'attempt_timeout_ms')::numeric / 1000) as seconds
                from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e
            cross join lateral (
                select count(*) from flowfabric.attempts a
                where a.partition = x.partition and a.execution = x.id
                  and starts_with(a.failure ->> 'reason', 'attempt_timeout:')) a
            order by x.item);
        select array_agg(flowfabric._id(late.partitions[s.item], late.ids[s.item])) filter (where s.outcome = 'failed')
               || max(s.ended)
        into ended from flowfabric._settle_failures(late.partitions, late.ids, failures, null, now) s;
    end if;
end $$;
