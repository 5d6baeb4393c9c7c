-- Reading: schedules as they stand.

-- A schedule as people see it, without its payload.
--
--   returns  its fields
create or replace function flowfabric._schedule_json(schedule flowfabric.schedules)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'namespace', (schedule).namespace, 'name', (schedule).name,
        'state', case when (schedule).pause is not null then 'paused' when (schedule).refusal is not null then 'refused'
                      when (schedule).next_tick_at is null then 'finished' else 'active' end,
        'options', (schedule).options, 'timing', (schedule).timing, 'anchor_at', (schedule).anchor_at, 'declared', (schedule).declared,
        'created_at', (schedule).created_at, 'changed_at', (schedule).changed_at, 'priority', (schedule).priority,
        'revision', (schedule).revision, 'by', (schedule).by, 'next_tick_at', (schedule).next_tick_at,
        'last_tick_at', (schedule).last_tick_at,
        'last_execution_id', flowfabric._id((schedule).last_partition, (schedule).last_execution),
        'deadline_ms', (schedule).deadline_ms, 'tags', (schedule).tags, 'pause', (schedule).pause, 'refusal', (schedule).refusal))
$$;

-- All there is to know of a schedule.
--
--   refuses  schedule_not_found
--   returns  its fields as JSON, its payload, and what time it is
create or replace function flowfabric.describe_schedule(
    namespace text, name text, out description text, out payload bytea, out now timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
    now := flowfabric.clock();
    select flowfabric._schedule_json(s)::text, s.payload into description, payload from flowfabric.schedules s
    where s.namespace = describe_schedule.namespace and s.name = describe_schedule.name;
    if not found then
        perform flowfabric._refuse_no_schedule(describe_schedule.namespace, describe_schedule.name);
    end if;
end $$;

-- The schedules there are, by namespace and name; those of one namespace when it is given.
--
--   refuses  invalid_limit
--   returns  the fields of each as JSON
create or replace function flowfabric.list_schedules(
    namespace text default null, after_namespace text default '', after_name text default '', take int default 50)
returns table (description text)
language plpgsql stable as $$
#variable_conflict use_column
begin
    return query
    select flowfabric._schedule_json(s)::text from flowfabric.schedules s
    where (s.namespace, s.name) > (list_schedules.after_namespace collate "C", list_schedules.after_name collate "C")
      and (list_schedules.namespace is null or s.namespace = list_schedules.namespace)
    order by s.namespace, s.name
    limit flowfabric._page(list_schedules.take);
end $$;
