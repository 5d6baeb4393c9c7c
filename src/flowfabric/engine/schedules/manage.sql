-- Managing schedules: create, change, pause, resume and delete them.

-- Check the name of a schedule and its submission. A draining lane is accepted, because it may be active again when the
-- tick comes.
--
--   refuses  invalid_name, as a value
--   returns  the fault, or null if everything is valid
create or replace function flowfabric._schedule_fault(
    name text, options jsonb, priority int, payload_bytes int, payload_limit int, deadline_ms bigint, tags text)
returns jsonb
language plpgsql stable as $$
declare
    fault jsonb := (flowfabric._read_options(_schedule_fault.options)).fault;
begin
    if _schedule_fault.name !~ '^[!-~]([ -~]{0,126}[!-~])?$' then
        return flowfabric._fault('invalid_name',
            format('schedule name %s is invalid; use 1 to 128 printable ASCII characters, without spaces at the ends',
                   flowfabric._shown(_schedule_fault.name)));
    end if;
    if fault is not null and fault ->> 'code' <> 'lane_draining' then
        return fault;
    end if;
    return flowfabric._submission_fault(
        null, _schedule_fault.priority, _schedule_fault.payload_bytes, _schedule_fault.payload_limit, null, null,
        _schedule_fault.deadline_ms, null, _schedule_fault.tags, flowfabric.clock());
end $$;

-- Lock a schedule by namespace and name.
--
--   locks    the schedule
create or replace function flowfabric._lock_schedule(namespace text, name text)
returns flowfabric.schedules
language plpgsql as $$
declare
    schedule flowfabric.schedules;
begin
    select s.* into schedule from flowfabric.schedules s
    where s.namespace = _lock_schedule.namespace and s.name = _lock_schedule.name for update;
    if not found then
        perform flowfabric._refuse_no_schedule(_lock_schedule.namespace, _lock_schedule.name);
    end if;
    return schedule;
end $$;

-- Refuse a call about a schedule that does not exist.
--
--   refuses  schedule_not_found
create or replace function flowfabric._refuse_no_schedule(namespace text, name text)
returns void
language plpgsql as $$
begin
    perform flowfabric._refuse('schedule_not_found',
        format('schedule %s does not exist in namespace %s; check the name, or use create_schedule to create it',
               flowfabric._shown(_refuse_no_schedule.name), flowfabric._shown(_refuse_no_schedule.namespace)));
end $$;

-- Create a schedule. The caller, who can parse cron expressions, has computed its next tick.
--
--   moves    schedule – → active, or paused
--   emits    schedule_created
--   refuses  schedule_already_exists, invalid_name, invalid_body, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag
--   returns  'created', or 'noop' if the same schedule already exists
create or replace function flowfabric.create_schedule(
    namespace text, name text, timing text, anchor_at timestamptz, next_tick_at timestamptz, overlap text, options text,
    payload bytea default null, priority int default 0, tags text default null, deadline_ms bigint default null,
    paused boolean default false, declared boolean default false, by text default null,
    payload_limit int default 1048576)
returns text
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    wanted_options jsonb := jsonb_strip_nulls(create_schedule.options::jsonb);
    wanted_tags jsonb := nullif(create_schedule.tags::jsonb, '{}');
    there flowfabric.schedules;
begin
    perform flowfabric._check_by(create_schedule.by);
    perform flowfabric._raise(flowfabric._schedule_fault(
        create_schedule.name, wanted_options, create_schedule.priority, octet_length(create_schedule.payload),
        create_schedule.payload_limit, create_schedule.deadline_ms, create_schedule.tags));
    loop
        insert into flowfabric.schedules (namespace, name, timing, anchor_at, next_tick_at, due_at, overlap, options,
                                          payload, priority, tags, deadline_ms, pause, declared, by, created_at,
                                          changed_at)
        select create_schedule.namespace, create_schedule.name, create_schedule.timing::jsonb,
               create_schedule.anchor_at, n.tick, n.tick, create_schedule.overlap::flowfabric.overlap, wanted_options,
               create_schedule.payload, create_schedule.priority, wanted_tags, create_schedule.deadline_ms,
               case when create_schedule.paused
                    then jsonb_strip_nulls(jsonb_build_object('since', now, 'by', create_schedule.by)) end,
               create_schedule.declared, create_schedule.by, now, now
        from (select case when not create_schedule.paused then create_schedule.next_tick_at end) n (tick)
        on conflict do nothing;
        if found then
            perform flowfabric._append('schedule_created', create_schedule.name, create_schedule.by, jsonb_build_object(
                'namespace', create_schedule.namespace, 'task', wanted_options ->> 'task',
                'next_tick_at', create_schedule.next_tick_at));
            return 'created';
        end if;
        select s.* into there from flowfabric.schedules s
        where s.namespace = create_schedule.namespace and s.name = create_schedule.name;
        exit when found; -- otherwise it was just deleted: try again
    end loop;
    if (there.timing, there.options, there.payload, there.priority, there.tags, there.deadline_ms)
       is distinct from (create_schedule.timing::jsonb, wanted_options, create_schedule.payload,
                         create_schedule.priority, wanted_tags, create_schedule.deadline_ms) then
        perform flowfabric._refuse('schedule_already_exists', format(
            'schedule %s already exists in namespace %s with another definition; use change_schedule to change it',
            flowfabric._shown(create_schedule.name), flowfabric._shown(create_schedule.namespace)));
    end if;
    return 'noop';
end $$;

-- Change the timing or the submission of a schedule. Pending ticks are dropped: the next tick is the first one from now
-- on. The caller computed it from the revision it read, which must still be current.
--
--   locks    the schedule
--   emits    schedule_changed
--   refuses  schedule_not_found, invalid_name, invalid_body, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag
--   returns  'changed', 'noop' if nothing differs, or 'stale' if the schedule has changed since it was read
create or replace function flowfabric.change_schedule(
    namespace text, name text, revision int, timing text, anchor_at timestamptz, next_tick_at timestamptz, overlap text,
    options text, payload bytea default null, priority int default 0, tags text default null,
    deadline_ms bigint default null, declared boolean default false, by text default null,
    payload_limit int default 1048576)
returns text
language plpgsql as $$
declare
    wanted_options jsonb := jsonb_strip_nulls(change_schedule.options::jsonb);
    wanted_tags jsonb := nullif(change_schedule.tags::jsonb, '{}');
    there flowfabric.schedules;
begin
    perform flowfabric._check_by(change_schedule.by);
    there := flowfabric._lock_schedule(change_schedule.namespace, change_schedule.name);
    if there.revision <> change_schedule.revision or change_schedule.next_tick_at <= there.last_tick_at then
        return 'stale';
    end if;
    perform flowfabric._raise(flowfabric._schedule_fault(
        change_schedule.name, wanted_options, change_schedule.priority, octet_length(change_schedule.payload),
        change_schedule.payload_limit, change_schedule.deadline_ms, change_schedule.tags));
    if (there.timing, there.options, there.payload, there.priority, there.tags, there.deadline_ms)
       is not distinct from (change_schedule.timing::jsonb, wanted_options, change_schedule.payload,
                             change_schedule.priority, wanted_tags, change_schedule.deadline_ms) then
        return 'noop';
    end if;

    update flowfabric.schedules s
    set timing = change_schedule.timing::jsonb, anchor_at = change_schedule.anchor_at, options = wanted_options,
        next_tick_at = case when s.pause is null then change_schedule.next_tick_at end,
        due_at = case when s.pause is null then change_schedule.next_tick_at end,
        overlap = change_schedule.overlap::flowfabric.overlap, payload = change_schedule.payload,
        priority = change_schedule.priority, tags = wanted_tags, deadline_ms = change_schedule.deadline_ms,
        declared = s.declared or change_schedule.declared, by = change_schedule.by, changed_at = flowfabric.clock(),
        revision = s.revision + 1, refusal = null
    where s.namespace = there.namespace and s.name = there.name;
    perform flowfabric._append('schedule_changed', there.name, change_schedule.by, jsonb_build_object(
        'namespace', there.namespace, 'task', wanted_options ->> 'task', 'next_tick_at', change_schedule.next_tick_at));
    return 'changed';
end $$;

-- Pause a schedule. Executions it has submitted continue; ticks that pass in the meantime are not caught up.
--
--   moves    schedule any → paused
--   locks    the schedule
--   emits    schedule_paused
--   refuses  schedule_not_found, invalid_body
--   returns  'paused', or 'noop' if it already was paused
create or replace function flowfabric.pause_schedule(namespace text, name text, by text, reason text default null)
returns text
language plpgsql as $$
declare
    given text := flowfabric._kept_text(pause_schedule.reason);
begin
    perform flowfabric._check_by(pause_schedule.by);
    if (flowfabric._lock_schedule(pause_schedule.namespace, pause_schedule.name)).pause is not null then
        return 'noop';
    end if;
    update flowfabric.schedules s
    set pause = jsonb_strip_nulls(
            jsonb_build_object('since', flowfabric.clock(), 'by', pause_schedule.by, 'reason', given)),
        next_tick_at = null, due_at = null, refusal = null, revision = s.revision + 1
    where s.namespace = pause_schedule.namespace and s.name = pause_schedule.name;
    perform flowfabric._append('schedule_paused', pause_schedule.name, pause_schedule.by,
                               jsonb_build_object('namespace', pause_schedule.namespace, 'reason', given));
    return 'paused';
end $$;

-- Resume a paused schedule at the first tick from now on. The caller computed that tick from the revision it read,
-- which must still be current.
--
--   moves    schedule paused → active, or finished when there is no further tick
--   locks    the schedule
--   emits    schedule_resumed
--   refuses  schedule_not_found, invalid_body
--   returns  'resumed', 'noop' if it was not paused, or 'stale' if the schedule has changed since it was read
create or replace function flowfabric.resume_schedule(
    namespace text, name text, revision int, next_tick_at timestamptz, by text, reason text default null)
returns text
language plpgsql as $$
declare
    there flowfabric.schedules;
begin
    perform flowfabric._check_by(resume_schedule.by);
    there := flowfabric._lock_schedule(resume_schedule.namespace, resume_schedule.name);
    if there.pause is null then
        return 'noop';
    elsif there.revision <> resume_schedule.revision or resume_schedule.next_tick_at <= there.last_tick_at then
        return 'stale';
    end if;
    update flowfabric.schedules s
    set pause = null, next_tick_at = resume_schedule.next_tick_at, due_at = resume_schedule.next_tick_at,
        revision = s.revision + 1
    where s.namespace = there.namespace and s.name = there.name;
    perform flowfabric._append('schedule_resumed', there.name, resume_schedule.by, jsonb_build_object(
        'namespace', there.namespace, 'reason', flowfabric._kept_text(resume_schedule.reason),
        'next_tick_at', resume_schedule.next_tick_at));
    return 'resumed';
end $$;

-- Delete a schedule. Executions it has submitted continue.
--
--   moves    schedule any → –
--   locks    the schedule
--   emits    schedule_deleted
--   refuses  schedule_not_found, invalid_body
--   returns  'deleted'
create or replace function flowfabric.delete_schedule(namespace text, name text, by text, reason text default null)
returns text
language plpgsql as $$
begin
    perform flowfabric._check_by(delete_schedule.by);
    perform flowfabric._lock_schedule(delete_schedule.namespace, delete_schedule.name);
    delete from flowfabric.schedules s where s.namespace = delete_schedule.namespace and s.name = delete_schedule.name;
    perform flowfabric._append('schedule_deleted', delete_schedule.name, delete_schedule.by,
                               jsonb_build_object('namespace', delete_schedule.namespace,
                                                  'reason', flowfabric._kept_text(delete_schedule.reason)));
    return 'deleted';
end $$;
