-- Ends of attempts: complete, fail or delay; many in one call, each checked against its fence.

-- Record the current attempts as ended, close their streams and release their reservations. The caller has locked the
-- tickets and updates them next.
create or replace function flowfabric._close_attempts(
    partitions smallint[], ids uuid[], lifecycle flowfabric.lifecycle, failures jsonb[])
returns void
language plpgsql as $$
declare
    tied record;
begin
    insert into flowfabric.attempts (partition, execution, number, type, lifecycle, worker, instance, first_epoch,
                                     last_epoch, started_at, ended_at, failure)
    select t.partition, t.id, t.attempt, t.attempt_type, _close_attempts.lifecycle, t.worker, t.instance,
           t.attempt_epoch, t.epoch, t.attempt_started_at, flowfabric.clock(), x.failure
    from unnest(_close_attempts.partitions, _close_attempts.ids, _close_attempts.failures) as x (partition, id, failure)
    cross join lateral (select t.* from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) t
    where t.attempt_state in ('running_attempt', 'attempt_interrupted');
    perform flowfabric._return_reservations(_close_attempts.partitions, _close_attempts.ids);
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(t.attempt) as attempts,
           array_agg(case _close_attempts.lifecycle when 'interrupted_reclaimed' then 'reclaimed'
                     else flowfabric._closed_reason('failed', x.failure) end) as reasons
    into tied
    from unnest(_close_attempts.partitions, _close_attempts.ids, _close_attempts.failures) as x (partition, id, failure)
    cross join lateral (select t.partition, t.id, t.attempt from flowfabric.tickets t
                        where t.partition = x.partition and t.id = x.id and t.ties offset 0) t;
    if tied.ids is not null then
        perform flowfabric._close_streams(tied.partitions, tied.ids, tied.attempts, tied.reasons);
    end if;
end $$;

-- Complete executions with their results. `flows` is the flow of each item as the claim returned it, and empty if no
-- item is in a flow; if it is null, the flows are looked up. Without `wait`, items whose flow or ticket another
-- transaction has locked are refused, so that the other items do not wait for them.
--
--   moves    active → ended: success
--   locks    the flows, in key order; the tickets, in key order; without `wait`, skips locked ones
--   emits    execution_completed, edge_group_impossible, edge_group_satisfied, execution_cancelled, execution_skipped,
--            reservation_released, waitpoint_closed
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            payload_too_large, invalid_body, row_locked
--   returns  per item 'completed', or its refusal; if the call changed other members of flows, its first 'completed'
--            item has {lanes, ended}: where members became claimable, and the members that ended
create or replace function flowfabric.complete(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], results bytea[] default null,
    encodings text[] default null, result_limit int default 1048576, flows uuid[] default null,
    wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    rounds int[] := flowfabric._rounds(complete.partitions, complete.ids);
    judged record;
    lanes text[];
    ended text[];
begin
    perform flowfabric._limit_waits(complete.wait);
    if complete.flows is null or complete.flows <> '{}' then
        if complete.wait then
            perform flowfabric._lock_for_end(complete.partitions, complete.ids, complete.flows, wins => true);
        else
            rounds := flowfabric._free_rounds(rounds, complete.partitions, complete.ids, complete.flows, wins => true);
            return query select l.* from flowfabric._locked_items(rounds, complete.partitions, complete.ids) l;
        end if;
    end if;
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(x.item) as items, array_agg(x.fault) as faults,
               min(x.item) filter (where x.fault is null) as first,
               array_agg(x.place) filter (where x.fault is null) as places,
               array_agg(x.result) filter (where x.fault is null) as results,
               array_agg(x.encoding) filter (where x.fault is null) as encodings
        into judged
        from (
            select f.item, f.place, r.result, r.encoding,
                   case when f.fault is not null then f.fault
                        when octet_length(r.result) > complete.result_limit
                             or octet_length(r.encoding) not between 1 and 64
                        then flowfabric._result_fault(octet_length(r.result), r.encoding,
                                                      complete.result_limit) end as fault
            from flowfabric._fenced(complete.partitions, complete.ids, complete.lease_ids, complete.epochs,
                                    complete.attempts, rounds, round, complete.wait) f
            cross join lateral (select complete.results[f.item], complete.encodings[f.item]) r (result, encoding)
            offset 0) x;
        if round = 1 and 2 = any (rounds) then
            perform flowfabric._lock_reserved_budgets(complete.partitions, complete.ids);
        end if;
        if judged.places is not null then
            select s.lanes, s.ended into lanes, ended
            from flowfabric._end(null, null, 'success', judged.results, judged.encodings, places => judged.places) s;
        end if;
        return query
        select x.item, case when x.fault is null then 'completed' end, x.fault ->> 'code',
               case when x.item = judged.first and ended is not null
                    then jsonb_build_object('lanes', lanes, 'ended', ended) else x.fault - 'code' end::text
        from unnest(judged.items, judged.faults) as x (item, fault);
    end loop;
end $$;

-- Check a result.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if the result is valid
create or replace function flowfabric._result_fault(bytes int, encoding text, most int)
returns jsonb
language sql immutable as $$
    select case when _result_fault.bytes > _result_fault.most
        then flowfabric._oversize_fault('result', _result_fault.bytes, _result_fault.most)
        else flowfabric._length_fault('invalid_body', 'encoding', _result_fault.encoding, 1, 64, 'encoding') end
$$;

-- Fail attempts. The policy of each execution decides whether it is retried. `flows` and `wait` are as for complete.
--
--   moves    active → runnable: not_eligible_until_time / waiting_for_retry_backoff; or → ended: failed
--   locks    the flows, in key order; the tickets, in key order; without `wait`, skips locked ones
--   emits    attempt_failed, execution_failed, edge_group_impossible, edge_group_satisfied, execution_cancelled,
--            execution_skipped, reservation_released, waitpoint_closed
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            invalid_body, invalid_time, row_locked
--   returns  per item 'retry_scheduled' {due_at, next_attempt}, 'failed', or its refusal; if the call changed other
--            members of flows, its first 'failed' item has {ended}: the members that ended
create or replace function flowfabric.fail(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], classes text[],
    reasons text[] default null, categories text[] default null, tracebacks text[] default null,
    retry_afters_ms bigint[] default null, flows uuid[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz;
    rounds int[] := flowfabric._rounds(fail.partitions, fail.ids);
    judged record;
begin
    perform flowfabric._limit_waits(fail.wait);
    if fail.flows is null or fail.flows <> '{}' then
        if fail.wait then
            perform flowfabric._lock_for_end(fail.partitions, fail.ids, fail.flows, wins => false);
        else
            rounds := flowfabric._free_rounds(rounds, fail.partitions, fail.ids, fail.flows, wins => false);
            return query select l.* from flowfabric._locked_items(rounds, fail.partitions, fail.ids) l;
        end if;
    end if;
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(x.item) as items, array_agg(x.fault) as faults,
               array_agg(x.item) filter (where x.fault is null) as good,
               array_agg(x.partition) filter (where x.fault is null) as partitions,
               array_agg(x.id) filter (where x.fault is null) as ids,
               array_agg(x.failure) filter (where x.fault is null) as failures,
               array_agg(fail.retry_afters_ms[x.item]) filter (where x.fault is null) as retry_afters_ms
        into judged
        from (
            select f.item, fail.partitions[f.item] as partition, fail.ids[f.item] as id,
                   jsonb_strip_nulls(jsonb_build_object(
                       'class', fail.classes[f.item],
                       'category', coalesce(fail.categories[f.item], fail.classes[f.item]),
                       'reason', flowfabric._kept_text(fail.reasons[f.item]),
                       'traceback', left(fail.tracebacks[f.item], 16384))) as failure,
                   coalesce(f.fault, flowfabric._failure_fault(
                       fail.classes[f.item], fail.categories[f.item], fail.retry_afters_ms[f.item])) as fault
            from flowfabric._fenced(fail.partitions, fail.ids, fail.lease_ids, fail.epochs, fail.attempts, rounds,
                                    round, fail.wait) f
            offset 0) x;
        now := flowfabric.clock();
        if round = 1 and 2 = any (rounds) then
            perform flowfabric._lock_reserved_budgets(fail.partitions, fail.ids);
        end if;

        return query
        select x.item, null, x.fault ->> 'code', (x.fault - 'code')::text
        from unnest(judged.items, judged.faults) as x (item, fault) where x.fault is not null
        union all
        select judged.good[s.item], s.outcome, null,
               case when s.ended is null then s.detail else jsonb_build_object('ended', s.ended)::text end
        from flowfabric._settle_failures(judged.partitions::smallint[], judged.ids, judged.failures,
                                         judged.retry_afters_ms, now) s;
    end loop;
end $$;

-- Check the report of a failure.
--
--   refuses  invalid_body, invalid_time, as a value
--   returns  the fault, or null if the report is valid
create or replace function flowfabric._failure_fault(class text, category text, retry_after_ms bigint)
returns jsonb
language sql immutable as $$
    select case
        when _failure_fault.class is null
             or _failure_fault.class not in ('transient', 'permanent', 'infra_crash', 'timeout', 'cancelled') then
            flowfabric._fault('invalid_body',
                format('failure class %s is invalid; use transient, permanent, infra_crash, timeout or cancelled',
                       flowfabric._shown(_failure_fault.class)), '{"field": "class"}')
        when _failure_fault.retry_after_ms not between 0 and 2592000000 then
            flowfabric._fault('invalid_time',
                format('retry_after of %s ms is invalid; use 0 to 2,592,000,000 ms (30 days)',
                       _failure_fault.retry_after_ms))
        else flowfabric._length_fault('invalid_body', 'category', _failure_fault.category, 1, 64, 'category')
    end
$$;

-- Delay attempts: release the lease and continue the same attempt at a later time, or immediately if that time has
-- passed. With a name and an occurrence the delay is recorded in the journal, so that a sleeping handler does not sleep
-- there again. A worker also uses it to release unfinished executions: no retry and no reclaim is counted. `wait` is as
-- for complete.
--
--   moves    active → runnable: attempt_interrupted, not_eligible_until_time / waiting_for_delay or eligible_now
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   emits    execution_delayed
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            invalid_time, row_locked
--   returns  per item 'delayed' {due_at}, or its refusal
create or replace function flowfabric.delay(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], delays_ms bigint[] default null,
    delays_until timestamptz[] default null, names text[] default null, occurrences int[] default null,
    reasons text[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    rounds int[] := flowfabric._rounds(delay.partitions, delay.ids);
    judged record;
begin
    perform flowfabric._limit_waits(delay.wait);
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(x.item) filter (where x.fault is null) as items,
               array_agg(x.place) filter (where x.fault is null) as places,
               array_agg(x.item) filter (where x.fault is not null) as refused,
               array_agg(x.fault) filter (where x.fault is not null) as faults
        into judged from (
            select f.item, f.place,
                   coalesce(f.fault, flowfabric._delay_fault(
                       delay.delays_ms[f.item], delay.delays_until[f.item], now)) as fault
            from flowfabric._fenced(delay.partitions, delay.ids, delay.lease_ids, delay.epochs, delay.attempts, rounds,
                                    round, delay.wait) f) x;
        now := flowfabric.clock(); -- again, after the locks

        return query
        with delayed as (
            update flowfabric.tickets t
            set phase = 'runnable', attempt_state = 'attempt_interrupted', due_at = nullif(d.due_at, now),
                eligibility = case when d.due_at > now then 'not_eligible_until_time'
                                   else 'eligible_now' end::flowfabric.eligibility,
                reason = case when d.due_at > now then 'waiting_for_delay'
                              else 'waiting_for_worker' end::flowfabric.reason,
                attempt_left = t.attempt_deadline - now, attempt_deadline = null
            from (select x.* from unnest(judged.items, judged.places) as x (item, place)
                  limit cardinality(judged.items)) x
            cross join lateral (
                select greatest(now, coalesce(
                    delay.delays_until[x.item], now + delay.delays_ms[x.item] * interval '1 ms', now))) d (due_at)
            where t.ctid = x.place
            returning x.item, t.partition, t.id, t.attempt, t.epoch, d.due_at
        ), journalled as (
            insert into flowfabric.steps (partition, execution, name, occurrence, kind, at, due_at)
            select d.partition, d.id, delay.names[d.item], delay.occurrences[d.item], 'sleep', now, d.due_at
            from delayed d where delay.names[d.item] is not null
            on conflict do nothing
        ), noted as (
            select flowfabric._append_all(
                'execution_delayed', array_agg(d.partition), array_agg(d.id),
                array_agg(jsonb_strip_nulls(jsonb_build_object(
                    'due_at', d.due_at, 'attempt', d.attempt, 'epoch', d.epoch, 'reason', delay.reasons[d.item]))))
            from delayed d having count(*) > 0
        )
        select d.item, 'delayed', null, jsonb_build_object('due_at', d.due_at)::text from delayed d
        left join noted n on true
        union all
        select x.item, null, x.fault ->> 'code', (x.fault - 'code')::text
        from unnest(judged.refused, judged.faults) as x (item, fault);
    end loop;
end $$;

-- Check the time of a delay.
--
--   refuses  invalid_time, as a value
--   returns  the fault, or null if the time is valid
create or replace function flowfabric._delay_fault(delay_ms bigint, delay_until timestamptz, now timestamptz)
returns jsonb
language sql stable as $$
    select case when _delay_fault.delay_ms not between 0 and 315360000000
                     or _delay_fault.delay_until > _delay_fault.now + interval '10 years' then
        flowfabric._fault('invalid_time',
            format('delay %s is invalid; use a duration from 0 or a time, at most ten years ahead',
                   coalesce('of ' || _delay_fault.delay_ms || ' ms', flowfabric._moment(_delay_fault.delay_until))))
    end
$$;
