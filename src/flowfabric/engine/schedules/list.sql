-- Reading schedules: describe one, list many.

-- A schedule as JSON, without its payload.
--
--   returns  its fields
create or replace function flowfabric._schedule_json(schedule flowfabric.schedules)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'namespace', s.namespace, 'name', s.name,
        'state', case when s.pause is not null then 'paused' when s.refusal is not null then 'refused'
                      when s.next_tick_at is null then 'finished' else 'active' end,
        'options', s.options, 'timing', s.timing, 'anchor_at', s.anchor_at, 'declared', s.declared,
        'created_at', s.created_at, 'changed_at', s.changed_at, 'priority', s.priority, 'revision', s.revision,
        'by', s.by, 'next_tick_at', s.next_tick_at, 'last_tick_at', s.last_tick_at,
        'last_execution_id', flowfabric._id_json(s.last_partition, s.last_execution),
        'deadline_ms', s.deadline_ms, 'tags', s.tags, 'pause', s.pause, 'refusal', s.refusal))
    from (select (_schedule_json.schedule).*) s
$$;

-- Everything about one schedule.
--
--   refuses  schedule_not_found
--   returns  its fields as JSON, its payload, and the current time
create or replace function flowfabric.describe_schedule(
    namespace text, name text, out description text, out payload bytea, out now timestamptz)
language plpgsql stable as $$
begin
    now := flowfabric.clock();
    select flowfabric._schedule_json(s)::text, s.payload into description, payload from flowfabric.schedules s
    where s.namespace = describe_schedule.namespace and s.name = describe_schedule.name;
    if not found then
        perform flowfabric._refuse_no_schedule(describe_schedule.namespace, describe_schedule.name);
    end if;
end $$;

-- List schedules by namespace and name (keyset pagination), of one namespace if given.
--
--   refuses  invalid_limit
--   returns  the fields of each schedule as JSON
create or replace function flowfabric.list_schedules(
    namespace text default null, after_namespace text default '', after_name text default '', take int default 50)
returns table (description text)
language plpgsql stable as $$
begin
    return query
    select flowfabric._schedule_json(s)::text from flowfabric.schedules s
    where (s.namespace, s.name) > (list_schedules.after_namespace collate "C", list_schedules.after_name collate "C")
      and (list_schedules.namespace is null or s.namespace = list_schedules.namespace)
    order by s.namespace, s.name
    limit flowfabric._page(list_schedules.take);
end $$;
