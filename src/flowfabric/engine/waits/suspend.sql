-- Suspending: an execution waits without a lease, a slot or a connection until its waits are over.

-- Take the open waits of earlier suspensions over into new ones, and release those that are not requested again. The
-- caller has locked the tickets.
--
--   moves    waitpoint active → pending, of a released wait
create or replace function flowfabric._keep_waits(asked flowfabric.asked_wait[], now timestamptz)
returns void
language plpgsql as $$
declare
    dropped record;
begin
    update flowfabric.waits w
    set suspension = x.suspension, choice = x.choice, suspended_at = _keep_waits.now
    from (
        select w.place, (a.wait).suspension, (a.wait).choice
        from unnest(_keep_waits.asked) a
        cross join lateral (
            select w.ctid as place from flowfabric.waits w
            where w.partition = (a.wait).partition and w.execution = (a.wait).execution and w.id = a.known offset 0) w
        limit cardinality(_keep_waits.asked)) x
    where w.ctid = x.place;
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids
    into dropped
    from (select (a.wait).partition, (a.wait).execution,
                 array_agg(a.known) filter (where not a.is_moot) as kept
          from unnest(_keep_waits.asked) a group by 1, 2) x
    cross join lateral (
        select w.partition, w.execution, w.id from flowfabric.waits w
        where w.partition = x.partition and w.execution = x.execution and w.ended_at is null offset 0) w
    where not coalesce(w.id = any (x.kept), false);
    if dropped.ids is not null then
        perform flowfabric._release_waits(dropped.partitions, dropped.executions, dropped.ids, _keep_waits.now);
    end if;
end $$;

-- Start the requested waits that are new, and use or create their waitpoints. A wait does not start if another open
-- wait, or one requested before it, uses one of its keys: the run requests it again when the other has ended. The
-- caller has locked the tickets.
--
--   moves    waitpoint pending → active, or – → active; a pending one that expired or lost its signing key → closed
--   returns  the started waits whose waitpoints were created earlier, and by item its waitpoints with their tokens
create or replace function flowfabric._start_waits(
    asked flowfabric.asked_wait[], now timestamptz, out waited uuid[], out bound jsonb[])
language plpgsql as $$
declare
    fresh flowfabric.asked_wait[] := array(
        select a from unnest(_start_waits.asked) a where a.known is null and not a.is_moot);
    points record;
    point record;
begin
    select array_agg((x.wait).id) filter (where x.is_taken) as blocked,
           array_agg(distinct (x.wait).id) filter (where x.is_old) as waited into points
    from (
        select a.wait, p.state = 'pending' as is_old,
               p.state = 'active' or row_number() over (partition by a.item, g.point -> 'key' order by a.number) > 1
                   as is_taken
        from unnest(fresh) a
        cross join lateral rows from (jsonb_array_elements(a.points), unnest((a.wait).waitpoints)) as g (point, id)
        left join lateral (select p.state from flowfabric.waitpoints p where p.id = g.id offset 0) p on true) x;
    waited := points.waited;
    if points.blocked is not null then
        fresh := array(select a from unnest(fresh) a where (a.wait).id <> all (points.blocked));
    end if;
    insert into flowfabric.waits select w.* from unnest(fresh) a cross join lateral (select (a.wait).*) w;
    select array_agg(x.partition) as partitions, array_agg(x.execution) as executions, array_agg(x.key) as keys,
           array_agg(x.id) as ids, array_agg(x.wait) as waits, array_agg(x.item) as items
    into points
    from (
        select (a.wait).partition, (a.wait).execution, g.point ->> 'key' as key, g.id, (a.wait).id as wait, a.item
        from unnest(fresh) a
        cross join lateral rows from (jsonb_array_elements(a.points), unnest((a.wait).waitpoints)) as g (point, id)) x;
    if points.ids is not null then
        for point in
            select x.item, jsonb_agg(jsonb_build_object('id', x.id, 'key', x.key, 'token', x.token)
                                     order by x.key collate "C") as bound
            from rows from (
                     unnest(points.items, points.keys, points.ids),
                     unnest(flowfabric._open_waitpoints(
                         points.partitions, points.executions, points.keys, points.ids, points.waits, null,
                         _start_waits.now))) as x (item, key, id, token)
            group by x.item
        loop
            bound[point.item] := point.bound;
        end loop;
    end if;
end $$;

-- End the requested waits that are already over: conditions that signals sent earlier satisfy, children that have
-- ended, and timeouts that have passed. `waited` are the waits whose waitpoints were created earlier. The caller has
-- locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
--   returns  the items of which a wait timed out
create or replace function flowfabric._end_finished_waits(
    asked flowfabric.asked_wait[], waited uuid[], now timestamptz)
returns int[]
language plpgsql as $$
declare
    over record;
begin
    if _end_finished_waits.waited is not null then
        select array_agg(x.partition) as partitions, array_agg(x.execution) as executions, array_agg(x.id) as ids,
               array_agg(x.satisfiers) as satisfiers
        into over from (
            select w.partition, w.execution, w.id, j.satisfiers
            from unnest(_end_finished_waits.asked) a
            cross join lateral (
                select w from flowfabric.waits w
                where w.partition = (a.wait).partition and w.execution = (a.wait).execution and w.id = (a.wait).id
                  and (a.wait).id = any (_end_finished_waits.waited) offset 0) x
            cross join lateral (select (x.w).*) w
            cross join lateral (
                select flowfabric._judge(w.condition, flowfabric._signals_to_judge(x.w))::text offset 0) j (satisfiers)
            where j.satisfiers is not null order by a.item, a.number) x;
        if over.ids is not null then
            perform flowfabric._end_waits(
                over.partitions, over.executions, over.ids, 'signal', _end_finished_waits.now,
                over.satisfiers);
        end if;
    end if;
    select array_agg((a.wait).partition) as partitions, array_agg((a.wait).execution) as executions,
           array_agg(coalesce(a.known, (a.wait).id)) as ids
    into over
    from unnest(_end_finished_waits.asked) a
    where (a.wait).child is not null
      and not exists (select from flowfabric.executions e
                      where e.partition = (a.wait).child_partition and e.id = (a.wait).child and e.outcome is null
                      offset 0)
      and (a.known is null or (a.wait).child = (  -- another kind of wait may have used its place of the journal
          select w.child from flowfabric.waits w
          where w.partition = (a.wait).partition and w.execution = (a.wait).execution and w.id = a.known));
    if over.ids is not null then
        perform flowfabric._answer_children(
            over.partitions, over.executions, over.ids, _end_finished_waits.now);
    end if;
    select array_agg(w.partition order by w.timeout_at) filter (where w.ended_at is null) as partitions,
           array_agg(w.execution order by w.timeout_at) filter (where w.ended_at is null) as executions,
           array_agg(w.id order by w.timeout_at) filter (where w.ended_at is null) as ids, array_agg(a.item) as items
    into over
    from unnest(_end_finished_waits.asked) a
    cross join lateral (
        select w.* from flowfabric.waits w
        where w.partition = (a.wait).partition and w.execution = (a.wait).execution
          and w.id = coalesce(a.known, (a.wait).id) offset 0) w
    where (a.known is not null or (a.wait).is_sleep)
      and (w.ended_by = 'timeout' or w.timeout_at <= _end_finished_waits.now and w.timeout_behavior = 'auto_resume');
    if over.ids is not null then
        perform flowfabric._time_out_waits(over.partitions, over.executions, over.ids, _end_finished_waits.now);
    end if;
    return over.items;
end $$;

-- Suspend tickets, each for its open waits. The caller has locked the tickets.
--
--   moves    active → suspended: attempt_interrupted
--   emits    execution_suspended
create or replace function flowfabric._suspend_tickets(
    partitions smallint[], ids uuid[], suspensions uuid[], delays interval[], now timestamptz)
returns void
language plpgsql as $$
begin
    perform flowfabric._lock_log();
    with found as materialized (
        select t.place, t.attempt, t.epoch, x.suspension, x.delay, e.partition, e.id, e.route, e.tags, e.flow,
               w.reason_code, w.timeout_at, w.timeout_behavior, w.about_digest
        from unnest(_suspend_tickets.partitions, _suspend_tickets.ids, _suspend_tickets.suspensions,
                    _suspend_tickets.delays) as x (partition, id, suspension, delay)
        cross join lateral (select t.ctid as place, t.attempt, t.epoch from flowfabric.tickets t
                            where t.partition = x.partition and t.id = x.id offset 0) t
        cross join lateral (select e.partition, e.id, e.route, e.tags, e.flow from flowfabric.executions e
                            where e.partition = x.partition and e.id = x.id offset 0) e
        cross join lateral flowfabric._open_waits(x.partition, x.id, x.suspension) w
    ), moved as (
        update flowfabric.tickets t
        set phase = 'suspended', reason = flowfabric._suspension_reason(f.reason_code),
            attempt_state = 'attempt_interrupted', attempt_left = t.attempt_deadline - _suspend_tickets.now,
            attempt_deadline = null, suspension = f.suspension, suspended_at = _suspend_tickets.now,
            resume_delay = f.delay, ties = true
        from (select f.* from found f limit cardinality(_suspend_tickets.ids)) f
        where t.ctid = f.place
    )
    insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, detail)
    select _suspend_tickets.now, 'execution_suspended', f.partition, f.id, f.route, f.tags, f.flow,
           jsonb_strip_nulls(jsonb_build_object(
               'suspension_id', f.suspension, 'reason_code', f.reason_code, 'timeout_at', f.timeout_at,
               'timeout_behavior', f.timeout_behavior, 'about_digest', encode(f.about_digest, 'hex'),
               'attempt', f.attempt, 'epoch', f.epoch))
    from found f;
end $$;

-- Rebuild the answer of a suspension. It did not suspend if a wait timed out, or all of them ended, when it was
-- requested.
--
--   returns  outcome, and {suspension_id, waitpoints with their tokens, the signals that satisfied it immediately};
--            null if there is no such suspension
create or replace function flowfabric._suspension_answer(
    partition int, execution uuid, suspension uuid, out outcome text, out detail text)
language plpgsql stable as $$
declare
    waits record;
    bound jsonb;
begin
    select bool_and(w.ended_at <= w.suspended_at) is true
           or bool_or(w.ended_by = 'timeout' and w.ended_at <= w.suspended_at) is true as is_over,
           array_agg(w.id) as ids, string_agg(nullif(flowfabric._signals_text(
               w.partition, w.execution, case when w.ended_at <= w.suspended_at then w.satisfiers end), '[]'), '')
               as signals
    into waits from flowfabric.waits w
    where w.partition = _suspension_answer.partition and w.execution = _suspension_answer.execution
      and w.suspension = _suspension_answer.suspension;
    if waits.ids is null then
        return;
    end if;
    outcome := case when waits.is_over then 'already_satisfied' else 'suspended' end;
    select jsonb_agg(jsonb_build_object(
               'id', p.id, 'key', p.key, 'token', flowfabric._waitpoint_token(p.partition, p.execution, p.id, p.kid))
               order by p.key)
    into bound from flowfabric.waitpoints p
    where p.partition = _suspension_answer.partition and p.execution = _suspension_answer.execution
      and p.wait = any (waits.ids);
    detail := flowfabric._suspension_text(
        _suspension_answer.suspension, bound, case when waits.is_over then replace(waits.signals, '][', ',') end);
end $$;

-- The detail of the answer of a suspension. Concatenated as text, because the signals are text already.
--
--   returns  {suspension_id, waitpoints, signals}
create or replace function flowfabric._suspension_text(suspension uuid, bound jsonb, signals text)
returns text
language sql immutable as $$
    select '{"suspension_id":"' || _suspension_text.suspension::text
        || '","waitpoints":' || coalesce(_suspension_text.bound, '[]')::text
        || ',"signals":' || coalesce(_suspension_text.signals, '[]') || '}'
$$;

-- Suspend executions, at most once each. The caller has locked the tickets and checked the fences.
--
--   moves    active → suspended: attempt_interrupted; or stays active if the run can continue immediately
--   returns  per item as suspend
create or replace function flowfabric._suspend(
    items int[], partitions smallint[], ids uuid[], wishes text[], suspensions uuid[], now timestamptz)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    asked flowfabric.asked_wait[] := array(
        select a from flowfabric._asked_waits(
            _suspend.items, _suspend.partitions, _suspend.ids, _suspend.wishes, _suspend.suspensions,
            _suspend.now) a);
    seen record;
    started record;
    may_be_over boolean;
    timed_out int[];
    judged record;
begin
    select array_agg(distinct a.item) filter (where a.fault is not null) as bad,
           bool_or(a.known is not null) as has_known,
           bool_or((a.wait).child is not null or (a.wait).is_sleep) as has_others into seen
    from unnest(asked) a;
    if seen.bad is not null then
        return query
        select distinct on (a.item) a.item, null, a.fault ->> 'code', (a.fault - 'code')::text
        from unnest(asked) a where a.fault is not null order by a.item, a.number;
        asked := array(select a from unnest(asked) a where a.item <> all (seen.bad));
    end if;
    if seen.has_known or exists (
        select from unnest(asked) a
        cross join lateral (select from flowfabric.waits w where w.partition = (a.wait).partition
                            and w.execution = (a.wait).execution and w.ended_at is null limit 1) w) then
        perform flowfabric._keep_waits(asked, _suspend.now);
    end if;
    started := flowfabric._start_waits(asked, _suspend.now);
    may_be_over := seen.has_known or seen.has_others or started.waited is not null;
    if may_be_over then
        timed_out := flowfabric._end_finished_waits(asked, started.waited, _suspend.now);
    end if;
    select array_agg(x.partition) filter (where not x.is_over) as partitions,
           array_agg(x.id) filter (where not x.is_over) as ids,
           array_agg(x.suspension) filter (where not x.is_over) as suspensions,
           array_agg(x.delay) filter (where not x.is_over) as delays,
           array_agg(x.item) filter (where not x.is_over) as waiting,
           array_agg(x.partition) filter (where x.is_over) as over_partitions,
           array_agg(x.id) filter (where x.is_over) as over_ids,
           array_agg(x.suspension) filter (where x.is_over) as over_suspensions,
           array_agg(x.item) filter (where x.is_over) as over
    into judged from (
        select x.*, may_be_over and (coalesce(x.item = any (timed_out), false) or not exists (
                   select from flowfabric.waits w
                   where w.partition = x.partition and w.execution = x.id and w.ended_at is null offset 0)) as is_over
        from (select a.item, (a.wait).partition, (a.wait).execution as id, (a.wait).suspension,
                     max(a.resume_delay) as delay
              from unnest(asked) a group by 1, 2, 3, 4) x) x;
    if judged.waiting is not null then
        perform flowfabric._suspend_tickets(
            judged.partitions, judged.ids, judged.suspensions, judged.delays, _suspend.now);
        return query
        select x.item, 'suspended', null, flowfabric._suspension_text(x.suspension, started.bound[x.item], null)
        from unnest(judged.waiting, judged.suspensions) as x (item, suspension);
    end if;
    if judged.over is not null then
        perform flowfabric._mark_for_closing(x.partition, x.id)
        from unnest(judged.over_partitions, judged.over_ids) as x (partition, id);
        return query
        select x.item, 'already_satisfied', null, a.detail
        from unnest(judged.over, judged.over_partitions, judged.over_ids, judged.over_suspensions)
             as x (item, partition, id, suspension)
        cross join lateral flowfabric._suspension_answer(x.partition, x.id, x.suspension) a;
    end if;
end $$;

-- Check the arguments of a suspension but its waits.
--
--   refuses  invalid_body, invalid_suspension, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._suspend_fault(wishes text, idempotency_key text)
returns jsonb
language sql stable as $$
    select case
        when octet_length(_suspend_fault.idempotency_key) > 256 then flowfabric._fault(
            'invalid_body', format('idempotency_key %s is invalid; use at most 256 bytes',
                                   flowfabric._shown(_suspend_fault.idempotency_key)),
            '{"field": "idempotency_key"}')
        when _suspend_fault.wishes = '[]' then flowfabric._fault(
            'invalid_suspension', 'the suspension is invalid: it has no waits; pass at least one',
            '{"cause": "waits_empty"}') end
$$;

-- Suspend executions, each for one or several waits. An execution resumes when all its waits have ended, and whenever
-- one of them times out. Each wait ends independently, with the signals that arrived for it. A wait that was requested
-- before, at the same place of the journal, is kept. A wait that is no longer requested is released, and its waitpoints
-- can be waited on again. Signals that are buffered on waitpoints created earlier count: if the run can continue
-- immediately, it stays active and keeps its lease. With an idempotency key, a repeated call returns the first answer,
-- even without the lease. Without `wait`, items whose ticket another transaction has locked are refused, so that the
-- other items do not wait for them.
--
--   moves    active → suspended: attempt_interrupted; or stays active if the run can continue immediately
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   emits    execution_suspended, waitpoint_created, waitpoint_closed, signal_delivered
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, row_locked,
--            invalid_suspension, invalid_body, invalid_time, payload_too_large, waitpoint_not_found,
--            waitpoint_not_pending, pending_waitpoint_expired, waitpoint_of_other_execution, no_active_key
--   returns  per item 'suspended' or 'already_satisfied' {suspension_id, waitpoints with their tokens, the signals that
--            satisfied it}, or its refusal
create or replace function flowfabric.suspend(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], wishes text[],
    idempotency_keys text[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    rounds int[] := flowfabric._rounds(suspend.partitions, suspend.ids);
    held record;
    judged record;
begin
    perform flowfabric._limit_waits(suspend.wait);
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(f.item) as items, array_agg(f.fault) as faults into held
        from flowfabric._fenced(suspend.partitions, suspend.ids, suspend.lease_ids, suspend.epochs, suspend.attempts,
                                rounds, round, suspend.wait) f;
        item := held.items[1];
        if cardinality(held.items) = 1 and held.faults[1] is null
           and coalesce(suspend.idempotency_keys[item], '') = '' then
            detail := flowfabric._suspend_for_one(
                suspend.partitions[item]::smallint, suspend.ids[item], suspend.wishes[item]::jsonb, flowfabric.clock());
            outcome := 'suspended';
            if detail is not null then
                return next;
                continue;
            end if;
        end if;
        -- A statement after the locks, which sees the suspensions that they waited for.
        select array_agg(x.item) filter (where x.is_good) as good,
               array_agg(suspend.partitions[x.item]) filter (where x.is_good) as partitions,
               array_agg(suspend.ids[x.item]) filter (where x.is_good) as ids,
               array_agg(suspend.wishes[x.item]) filter (where x.is_good) as wishes,
               array_agg(x.suspension) filter (where x.is_good) as suspensions,
               array_agg(x.item) filter (where not x.is_good) as answered,
               array_agg(x.outcome) filter (where not x.is_good) as outcomes,
               array_agg(x.fault) filter (where not x.is_good) as faults,
               array_agg(x.detail) filter (where not x.is_good) as details
        into judged
        from (
            select h.item, s.id as suspension, a.outcome, a.detail, o.fault,
                   a.outcome is null and o.fault is null as is_good
            from unnest(held.items, held.faults) as h (item, fault)
            cross join lateral (
                -- With an idempotency key, the id is fixed until the execution is replayed, so that a repeated call
                -- finds the suspension without an index.
                select case when suspend.idempotency_keys[h.item] <> '' then (
                           select left(encode(sha256(convert_to(e.id || ':' || e.replays || ':'
                                      || suspend.idempotency_keys[h.item], 'UTF8')), 'hex'), 32)::uuid
                           from flowfabric.executions e
                           where e.partition = suspend.partitions[h.item] and e.id = suspend.ids[h.item])
                       else gen_random_uuid() end as id
                offset 0) s
            left join lateral (
                select a.* from (select where suspend.idempotency_keys[h.item] <> '' offset 0) k
                cross join lateral flowfabric._suspension_answer(
                    suspend.partitions[h.item], suspend.ids[h.item], s.id) a) a on true
            cross join lateral (
                select case when a.outcome is null then coalesce(h.fault, flowfabric._suspend_fault(
                    suspend.wishes[h.item], suspend.idempotency_keys[h.item])) end as fault offset 0) o
            offset 0) x;
        if judged.answered is not null then
            return query
            select x.item, x.outcome, x.fault ->> 'code', coalesce(x.detail, (x.fault - 'code')::text)
            from unnest(judged.answered, judged.outcomes, judged.faults, judged.details)
                 as x (item, outcome, fault, detail);
        end if;
        if judged.good is not null then
            return query
            select s.* from flowfabric._suspend(
                judged.good, judged.partitions::smallint[], judged.ids, judged.wishes, judged.suspensions,
                flowfabric.clock()) s;
        end if;
    end loop;
end $$;
