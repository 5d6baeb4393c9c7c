-- Firing: an execution for every tick, once, whoever sees that it is due and whatever crashes.

-- Submit what a schedule says. The caller holds the schedule. An id that is in use is its own earlier success. An execution
-- before it that somebody else has locked is not waited for.
--
--   moves    – → runnable; the execution before → ended: cancelled, when the schedule replaces
--   locks    the ticket of the execution before, after its flow, when the schedule replaces; idempotency keys; the budgets of what it had set
--            aside, in key order
--   emits    schedule_fired, schedule_skipped, execution_submitted, execution_cancelled, waitpoint_closed; lane_registered, when
--            a lane is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, invalid_limit, as a value
--   returns  'fired', 'duplicate', 'skipped', 'busy' or 'refused' with the fault; the execution it is about, the one that ended,
--            and whether budgets are locked for that
create or replace function flowfabric._fire(
    schedule flowfabric.schedules, tick timestamptz, partition int, id uuid, due timestamptz, by text, detail jsonb,
    out outcome text, out execution_id text, out cancelled text, out fault jsonb, out holds_budgets boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    about jsonb := jsonb_build_object('namespace', schedule.namespace, 'tick', _fire.tick) || _fire.detail;
    unfinished boolean := exists (select from flowfabric.tickets t
                                  where t.partition = schedule.last_partition and t.id = schedule.last_execution);
    held uuid[];
    answer record;
begin
    execution_id := flowfabric._id(_fire.partition, _fire.id);
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
        held := (select flowfabric._try_flows(array_agg(t.partition), array_agg(t.flow)) from flowfabric.tickets t
                 where t.partition = schedule.last_partition and t.id = schedule.last_execution and t.flow is not null);
        perform from flowfabric.tickets t
        where t.partition = schedule.last_partition and t.id = schedule.last_execution and (t.flow is null or t.flow = any (held))
        for update skip locked;
        if not found then
            outcome := 'busy';
            return;
        end if;
        cancelled := flowfabric._id(schedule.last_partition, schedule.last_execution);
    end if;

    select s.refusal, s.detail into answer from flowfabric.submit(
        options => array[schedule.options::text], options_of => array[1], partitions => array[_fire.partition], ids => array[_fire.id],
        payloads => array[schedule.payload], priorities => array[schedule.priority::int], delays_until => array[_fire.due],
        deadlines_ms => array[schedule.deadline_ms], tags => array[schedule.tags::text], payload_limit => 1073741823) s;
    if answer.refusal is not null then
        outcome := 'refused';
        cancelled := null;
        fault := answer.detail::jsonb || jsonb_build_object('code', answer.refusal);
        return;
    end if;
    outcome := 'fired';
    if cancelled is not null then
        holds_budgets := flowfabric._lock_budgets_at_stake(array[schedule.last_partition], array[schedule.last_execution], held);
        perform flowfabric._end(array[schedule.last_partition], array[schedule.last_execution], 'cancelled', by => _fire.by,
                                failures => array[jsonb_build_object('class', 'cancelled', 'reason', 'replaced by the next tick of its schedule')],
                                detail => jsonb_build_object('source', 'schedule'));
    end if;
    update flowfabric.schedules s set last_partition = _fire.partition, last_execution = _fire.id
    where s.namespace = schedule.namespace and s.name = schedule.name;
    perform flowfabric._append('schedule_fired', schedule.name, _fire.by, about || jsonb_build_object('execution_id', execution_id));
end $$;

-- The schedules that are due, for whoever computes what follows.
--
--   returns  a row each: the tick that waits and what its followers are computed from; what time it is
create or replace function flowfabric._due_schedules(take int default 500, passing int default 0)
returns table (namespace text, name text, timing text, anchor_at timestamptz, next_tick_at timestamptz, now timestamptz)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    moment timestamptz := flowfabric.clock();
begin
    return query
    select s.namespace, s.name, s.timing::text, s.anchor_at, s.next_tick_at, moment from flowfabric.schedules s
    where s.due_at <= moment
    order by s.due_at, s.namespace, s.name limit _due_schedules.take offset _due_schedules.passing;
end $$;

-- Note that a schedule could not submit. Its tick stays; it is looked at again soon, and less often the longer that lasts.
-- The caller holds the schedule.
--
--   emits    schedule_refused, unless it was refused so before
--   returns  whether that is news
create or replace function flowfabric._note_refusal(schedule flowfabric.schedules, tick timestamptz, fault jsonb, now timestamptz)
returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    before jsonb := case when schedule.refusal ->> 'code' = fault ->> 'code' then schedule.refusal end;
    times int := coalesce((before ->> 'count')::int, 0) + 1;
begin
    update flowfabric.schedules s
    set due_at = _note_refusal.now + least(power(2, least(times, 6) - 1), 30) * interval '1 second',
        refusal = jsonb_build_object('code', fault ->> 'code', 'message', fault ->> 'message', 'tick', _note_refusal.tick,
                                     'since', coalesce(before -> 'since', to_jsonb(_note_refusal.now)), 'count', times)
    where s.namespace = schedule.namespace and s.name = schedule.name;
    if before is null then
        perform flowfabric._append('schedule_refused', schedule.name, detail => jsonb_build_object(
            'namespace', schedule.namespace, 'tick', _note_refusal.tick, 'code', fault ->> 'code', 'message', fault ->> 'message'));
    end if;
    return before is null;
end $$;

-- Submit the ticks of due schedules, and move each on to the tick that follows. Which those are the caller has computed, per
-- schedule, from the tick it read: where another tick waits by now, or nothing was computed, the schedule is left alone. No
-- tick to submit means that what waited came too long ago. A fault says why nothing could be computed.
--
--   moves    – → runnable, for every tick; the execution before → ended: cancelled, when the schedule replaces
--   locks    the schedules it moves, skips those that are locked; tickets of executions it replaces, idempotency keys
--   emits    schedule_fired, schedule_skipped, schedule_refused, execution_submitted, execution_cancelled, waitpoint_closed;
--            lane_registered, when a lane is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, invalid_limit, noted on the schedule
--   returns  how many were dealt with, the lanes with work, the executions that ended, and what could not be submitted since now
create or replace function flowfabric.fire_schedules(
    take int default 500, passing int default 0, namespaces text[] default '{}', names text[] default '{}',
    read_ticks timestamptz[] default '{}', ticks timestamptz[] default '{}', followings timestamptz[] default '{}',
    dues timestamptz[] default '{}', partitions int[] default '{}', ids uuid[] default '{}', faults text[] default '{}',
    out moved int, out lanes text[], out ended text[], out refused text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    keys text[] := array(select d.namespace || chr(10) || d.name
                         from unnest(fire_schedules.namespaces, fire_schedules.names) with ordinality as d (namespace, name, number) order by d.number);
    schedule flowfabric.schedules;
    at int;
    missed jsonb;
    outcome text;
    cancelled text;
    fault jsonb;
    holds_budgets boolean;
begin
    moved := 0;
    for schedule in
        -- Only those that it can move are locked, so that processes which have read the same ones hold up nobody.
        select s.* from (
            select d.namespace, d.name from flowfabric.schedules d where d.due_at <= now order by d.due_at, d.namespace, d.name
            limit fire_schedules.take offset fire_schedules.passing) d
        join flowfabric.schedules s on s.namespace = d.namespace and s.name = d.name
        where s.due_at <= now and s.next_tick_at = read_ticks[array_position(keys, s.namespace || chr(10) || s.name)]
        for update of s skip locked
    loop
        at := array_position(keys, schedule.namespace || chr(10) || schedule.name);
        missed := case when ticks[at] is distinct from schedule.next_tick_at
                       then jsonb_build_object('missed_from', schedule.next_tick_at) else '{}' end;
        fault := faults[at]::jsonb;
        outcome := null;
        if fault is null and ticks[at] is not null then
            select f.outcome, f.cancelled, f.fault, f.holds_budgets into outcome, cancelled, fault, holds_budgets
            from flowfabric._fire(schedule, ticks[at], partitions[at], ids[at], dues[at], null, missed) f;
            continue when outcome = 'busy';
        elsif fault is null then
            perform flowfabric._append('schedule_skipped', schedule.name, detail => jsonb_build_object(
                'namespace', schedule.namespace, 'tick', schedule.next_tick_at, 'cause', 'missed'));
        end if;

        moved := moved + 1;
        if fault is not null then
            if flowfabric._note_refusal(schedule, coalesce(ticks[at], schedule.next_tick_at), fault, now) then
                refused := refused || format('%s in namespace %s: %s: %s', schedule.name, schedule.namespace,
                                             fault ->> 'code', fault ->> 'message');
            end if;
            continue;
        end if;
        update flowfabric.schedules s
        set next_tick_at = followings[at], due_at = followings[at], refusal = null,
            last_tick_at = greatest(s.last_tick_at, ticks[at], schedule.next_tick_at)
        where s.namespace = schedule.namespace and s.name = schedule.name;
        if outcome = 'fired' then
            lanes := lanes || coalesce(schedule.options ->> 'lane', 'default');
            ended := ended || cancelled;
            -- Budgets are waited for once; the caller asks again for the rest.
            exit when holds_budgets;
        end if;
    end loop;
    lanes := array(select distinct l from unnest(lanes) l);
    ended := array_remove(ended, null);
end $$;

-- Submit what a schedule says now, by hand; also one that is paused or finished. Its ticks come as they would.
--
--   moves    – → runnable; the execution before → ended: cancelled, when the schedule replaces
--   locks    the schedule; the ticket of the execution before, after its flow, when the schedule replaces; idempotency keys
--   emits    schedule_fired, schedule_skipped, execution_submitted, execution_cancelled, waitpoint_closed; lane_registered, when
--            a lane is new
--   refuses  schedule_not_found, invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag, invalid_limit
--   returns  'fired', 'duplicate' when that id was submitted before, or 'skipped' when the execution before is unfinished and the
--            schedule skips then; the execution it is about, its lane, and the executions that ended
create or replace function flowfabric.fire_schedule(
    namespace text, name text, partition int, id uuid, by text,
    out outcome text, out execution_id text, out lane text, out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    schedule flowfabric.schedules;
    fired record;
begin
    perform flowfabric._check_by(fire_schedule.by);
    schedule := flowfabric._lock_schedule(fire_schedule.namespace, fire_schedule.name);
    loop
        if schedule.overlap = 'replace' then
            perform flowfabric._lock_for_end(array[schedule.last_partition], array[schedule.last_execution]);
            perform from flowfabric.tickets t
            where t.partition = schedule.last_partition and t.id = schedule.last_execution for update;
        end if;
        fired := flowfabric._fire(schedule, now, fire_schedule.partition, fire_schedule.id, null, fire_schedule.by, '{"by_hand": true}');
        -- It may have joined a flow between the two locks, which somebody else has.
        exit when fired.outcome <> 'busy';
    end loop;
    perform flowfabric._raise(fired.fault);
    outcome := fired.outcome;
    execution_id := fired.execution_id;
    lane := coalesce(schedule.options ->> 'lane', 'default');
    ended := array_remove(array[fired.cancelled], null);
end $$;
