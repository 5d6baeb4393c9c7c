-- Firing: submit one execution per tick, exactly once, whichever process fires it and whatever crashes.

-- Submit the execution of a schedule. The caller has locked the schedule. If the execution id is already in use, an
-- earlier call has fired this tick. If the previous execution is locked by another transaction, this does not wait for
-- it; for its budgets, as long as the caller's lock_timeout.
--
--   moves    – → runnable; the previous execution → ended: cancelled, if the schedule replaces it
--   locks    the ticket of the previous execution, after its flow, if the schedule replaces it; idempotency keys; the
--            budgets of its reservations, in key order
--   emits    schedule_fired, schedule_skipped, execution_cancelled
--   returns  'fired', 'duplicate', 'skipped', 'busy' or 'refused' with the fault; the execution it is about, the
--            executions that ended, and whether budgets are locked for that
create or replace function flowfabric._fire(
    schedule flowfabric.schedules, tick timestamptz, partition int, id uuid, due timestamptz, by text, detail jsonb,
    out outcome text, out execution_id text, out ended text[], out fault jsonb, out holds_budgets boolean)
language plpgsql as $$
declare
    about jsonb := jsonb_build_object('namespace', schedule.namespace, 'tick', _fire.tick) || _fire.detail;
    unfinished boolean := exists (select from flowfabric.tickets t
                                  where t.partition = schedule.last_partition and t.id = schedule.last_execution);
    held uuid[] := '{}';
    replaced record;
    answer record;
begin
    execution_id := flowfabric._id(_fire.partition, _fire.id);
    select null::uuid[] as ids into replaced;
    if exists (select from flowfabric.executions e where e.partition = _fire.partition and e.id = _fire.id) then
        outcome := 'duplicate';
        return;
    elsif unfinished and schedule.overlap = 'skip' then
        outcome := 'skipped';
        execution_id := flowfabric._id(schedule.last_partition, schedule.last_execution);
        perform flowfabric._append('schedule_skipped', schedule.name, _fire.by,
                                   about || jsonb_build_object('cause', 'overlap', 'execution_id', execution_id));
        return;
    elsif unfinished and schedule.overlap = 'replace' then
        held := (select flowfabric._try_members(array_agg(t.partition), array_agg(t.id), array_agg(t.flow))
                 from flowfabric.tickets t
                 where t.partition = schedule.last_partition and t.id = schedule.last_execution);
        perform from flowfabric.tickets t
        where t.partition = schedule.last_partition and t.id = schedule.last_execution
          and (t.flow is null or t.id = any (held))
        for update skip locked;
        if found then
            replaced := flowfabric._with_free_budgets(
                array[schedule.last_partition], array[schedule.last_execution], held);
        end if;
        if replaced.ids is null then
            outcome := 'busy';
            return;
        end if;
        holds_budgets := replaced.holds_budgets;
    end if;

    select s.refusal, s.detail into answer from flowfabric.submit(
        options => array[schedule.options::text], options_of => array[1], partitions => array[_fire.partition],
        ids => array[_fire.id], payloads => array[schedule.payload], priorities => array[schedule.priority::int],
        delays_until => array[_fire.due], deadlines_ms => array[schedule.deadline_ms],
        tags => array[schedule.tags::text], payload_limit => 1073741823) s;
    if answer.refusal is not null then
        outcome := 'refused';
        fault := answer.detail::jsonb || jsonb_build_object('code', answer.refusal);
        return;
    end if;
    outcome := 'fired';
    if replaced.ids is not null then
        ended := flowfabric._id(schedule.last_partition, schedule.last_execution) || (flowfabric._end(
            array[schedule.last_partition], array[schedule.last_execution], 'cancelled', by => _fire.by,
            failures => array['{"class": "cancelled", "reason": "replaced by the next tick of its schedule"}'::jsonb],
            detail => jsonb_build_object('source', 'schedule'))).ended;
    end if;
    update flowfabric.schedules s set last_partition = _fire.partition, last_execution = _fire.id
    where s.namespace = schedule.namespace and s.name = schedule.name;
    perform flowfabric._append('schedule_fired', schedule.name, _fire.by,
                               about || jsonb_build_object('execution_id', execution_id));
end $$;

-- The due schedules, for the caller to compute their next ticks.
--
--   returns  a row per schedule: the pending tick, the fields that the next ticks are computed from, and the current
--            time
create or replace function flowfabric._due_schedules(take int default 500, passing int default 0)
returns table (namespace text, name text, timing text, anchor_at timestamptz, next_tick_at timestamptz, now timestamptz)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    moment timestamptz := flowfabric.clock();
begin
    return query
    select s.namespace, s.name, s.timing::text, s.anchor_at, s.next_tick_at, moment from flowfabric.schedules s
    where s.due_at <= moment
    order by s.due_at, s.namespace, s.name limit _due_schedules.take offset _due_schedules.passing;
end $$;

-- Record that a schedule could not submit. Its tick stays pending and is retried, with a pause that doubles up to 30 s.
-- The caller has locked the schedule.
--
--   emits    schedule_refused, unless the last refusal had the same code
--   returns  whether the refusal is new
create or replace function flowfabric._note_refusal(
    schedule flowfabric.schedules, tick timestamptz, fault jsonb, now timestamptz)
returns boolean
language plpgsql as $$
declare
    before jsonb := case when schedule.refusal ->> 'code' = _note_refusal.fault ->> 'code' then schedule.refusal end;
    times int := coalesce((before ->> 'count')::int, 0) + 1;
begin
    update flowfabric.schedules s
    set due_at = _note_refusal.now + least(power(2, least(times, 6) - 1), 30) * interval '1 second',
        refusal = jsonb_build_object('code', _note_refusal.fault ->> 'code',
                                     'message', _note_refusal.fault ->> 'message', 'tick', _note_refusal.tick,
                                     'since', coalesce(before -> 'since', to_jsonb(_note_refusal.now)), 'count', times)
    where s.namespace = schedule.namespace and s.name = schedule.name;
    if before is null then
        perform flowfabric._append('schedule_refused', schedule.name, detail => jsonb_build_object(
            'namespace', schedule.namespace, 'tick', _note_refusal.tick, 'code', _note_refusal.fault ->> 'code',
            'message', _note_refusal.fault ->> 'message'));
    end if;
    return before is null;
end $$;

-- Sweep: submit the ticks of due schedules, and move each schedule to its next tick. The caller has computed the ticks
-- of each schedule from the pending tick it read. If another tick is pending by now, or nothing was computed, the
-- schedule is left unchanged. A null tick means that the pending tick is too old to be caught up. A fault says why no
-- tick could be computed.
--
--   moves    – → runnable, for every tick; the previous execution → ended: cancelled, if the schedule replaces it
--   locks    the schedules it moves, skipping locked ones; tickets of executions it replaces; idempotency keys
--   emits    schedule_fired, schedule_skipped, schedule_refused, execution_submitted, execution_cancelled,
--            edge_group_impossible, edge_group_satisfied, execution_skipped, reservation_released, waitpoint_closed;
--            lane_registered, if a lane is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, invalid_limit, key_conflict, recorded on the schedule
--   returns  how many schedules were handled, the lanes with new work, the executions that ended, and new refusals
create or replace function flowfabric.fire_schedules(
    take int default 500, passing int default 0, namespaces text[] default '{}', names text[] default '{}',
    read_ticks timestamptz[] default '{}', ticks timestamptz[] default '{}', followings timestamptz[] default '{}',
    dues timestamptz[] default '{}', partitions int[] default '{}', ids uuid[] default '{}', faults text[] default '{}',
    out moved int, out lanes text[], out ended text[], out refused text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    keys text[] := array(
        select d.namespace || chr(10) || d.name
        from unnest(fire_schedules.namespaces, fire_schedules.names) with ordinality as d (namespace, name, number)
        order by d.number);
    schedule flowfabric.schedules;
    at int;
    missed jsonb;
    outcome text;
    others text[];
    fault jsonb;
    holds_budgets boolean;
begin
    moved := 0;
    for schedule in
        -- Lock only schedules that this call can move, so that processes with the same list do not block each other.
        select s.* from (
            select d.namespace, d.name from flowfabric.schedules d where d.due_at <= now
            order by d.due_at, d.namespace, d.name
            limit fire_schedules.take offset fire_schedules.passing) d
        join flowfabric.schedules s on s.namespace = d.namespace and s.name = d.name
        where s.due_at <= now
          and s.next_tick_at = fire_schedules.read_ticks[array_position(keys, s.namespace || chr(10) || s.name)]
        for update of s skip locked
    loop
        at := array_position(keys, schedule.namespace || chr(10) || schedule.name);
        missed := case when fire_schedules.ticks[at] is distinct from schedule.next_tick_at
                       then jsonb_build_object('missed_from', schedule.next_tick_at) else '{}' end;
        fault := fire_schedules.faults[at]::jsonb;
        outcome := null;
        if fault is null and fire_schedules.ticks[at] is not null then
            select f.outcome, f.ended, f.fault, f.holds_budgets into outcome, others, fault, holds_budgets
            from flowfabric._fire(schedule, fire_schedules.ticks[at], fire_schedules.partitions[at],
                                  fire_schedules.ids[at], fire_schedules.dues[at], null, missed) f;
            if outcome = 'busy' then
                -- Later, so that schedules whose previous execution is locked do not fill the next pass.
                update flowfabric.schedules s set due_at = now + interval '1 second'
                where s.namespace = schedule.namespace and s.name = schedule.name;
                continue;
            end if;
        elsif fault is null then
            perform flowfabric._append('schedule_skipped', schedule.name, detail => jsonb_build_object(
                'namespace', schedule.namespace, 'tick', schedule.next_tick_at, 'cause', 'missed'));
        end if;

        moved := moved + 1;
        if fault is not null then
            if flowfabric._note_refusal(
                schedule, coalesce(fire_schedules.ticks[at], schedule.next_tick_at), fault, now) then
                refused := refused || format('%s in namespace %s: %s: %s', schedule.name, schedule.namespace,
                                             fault ->> 'code', fault ->> 'message');
            end if;
            continue;
        end if;
        update flowfabric.schedules s
        set next_tick_at = fire_schedules.followings[at], due_at = fire_schedules.followings[at], refusal = null,
            last_tick_at = greatest(s.last_tick_at, fire_schedules.ticks[at], schedule.next_tick_at)
        where s.namespace = schedule.namespace and s.name = schedule.name;
        if outcome = 'fired' then
            lanes := lanes || coalesce(schedule.options ->> 'lane', 'default');
            ended := ended || others;
            -- Budget locks may be waited for only once per transaction; the caller calls again for the rest.
            exit when holds_budgets;
        end if;
    end loop;
    lanes := array(select distinct l from unnest(lanes) l);
end $$;

-- Submit the execution of a schedule now, on request, even if the schedule is paused or finished. Its ticks are not
-- affected.
--
--   moves    – → runnable; the previous execution → ended: cancelled, if the schedule replaces it
--   locks    the schedule; the ticket of the previous execution, after its flow, if the schedule replaces it;
--            idempotency keys
--   emits    schedule_fired, schedule_skipped, execution_submitted, execution_cancelled, edge_group_impossible,
--            edge_group_satisfied, execution_skipped, reservation_released, waitpoint_closed;
--            lane_registered, if a lane is new
--   refuses  schedule_not_found, invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag, invalid_limit, row_locked, key_conflict
--   returns  'fired', 'duplicate' if that id was submitted before, or 'skipped' if the previous execution is
--            unfinished and the schedule skips overlaps; the execution it is about, its lane, and the executions that
--            ended
create or replace function flowfabric.fire_schedule(
    namespace text, name text, partition int, id uuid, by text,
    out outcome text, out execution_id text, out lane text, out ended text[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    schedule flowfabric.schedules;
    fired record;
begin
    perform flowfabric._check_by(fire_schedule.by);
    schedule := flowfabric._lock_schedule(fire_schedule.namespace, fire_schedule.name);
    for tries in 1 .. 10 loop
        if schedule.overlap = 'replace' then
            perform flowfabric._lock_for_end(array[schedule.last_partition], array[schedule.last_execution]);
            perform from flowfabric.tickets t
            where t.partition = schedule.last_partition and t.id = schedule.last_execution for update;
        end if;
        fired := flowfabric._fire(schedule, now, fire_schedule.partition, fire_schedule.id, null, fire_schedule.by,
                                  '{"by_hand": true}');
        -- Busy: the execution may have joined a flow between the two locks, and another transaction has locked it.
        exit when fired.outcome <> 'busy';
    end loop;
    perform flowfabric._raise(case
        when fired.outcome = 'busy' then
            flowfabric._locked_fault(schedule.last_partition, schedule.last_execution)
        else fired.fault end);
    outcome := fired.outcome;
    execution_id := fired.execution_id;
    lane := coalesce(schedule.options ->> 'lane', 'default');
    ended := fired.ended;
end $$;
