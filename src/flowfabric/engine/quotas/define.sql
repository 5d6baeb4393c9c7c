-- Defining quotas: making, changing and reading them.

-- What is wrong with the limits of a quota.
--
--   refuses  invalid_quota, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._quota_fault(quota flowfabric.quotas)
returns jsonb
language sql immutable as $$
    select case
        when (quota).window_seconds between 1 and 86400 is not true then
            flowfabric._fault('invalid_quota', format('window_seconds %s: give 1 to 86 400', (quota).window_seconds), '{"field": "window_seconds"}')
        when (quota).max_requests_per_window not between 1 and 9007199254740991 then
            flowfabric._fault('invalid_quota', format('max_requests_per_window %s: give 1 to 9 007 199 254 740 991', (quota).max_requests_per_window),
                              '{"field": "max_requests_per_window"}')
        when (quota).max_concurrent not between 1 and 9007199254740991 then
            flowfabric._fault('invalid_quota', format('max_concurrent %s: give 1 to 9 007 199 254 740 991', (quota).max_concurrent),
                              '{"field": "max_concurrent"}')
        when coalesce((quota).max_requests_per_window, (quota).max_concurrent) is null then
            flowfabric._fault('invalid_quota', 'neither limit is given: give max_requests_per_window, max_concurrent, or both',
                              '{"field": "max_requests_per_window"}')
    end
$$;

-- The limits of a quota, in words that can be compared and shown.
--
--   returns  {window_seconds, max_requests_per_window?, max_concurrent?}
create or replace function flowfabric._quota_limits(quota flowfabric.quotas)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'window_seconds', (quota).window_seconds, 'max_requests_per_window', (quota).max_requests_per_window,
        'max_concurrent', (quota).max_concurrent))
$$;

-- The quota that is meant by a text: its id if it looks like one, else its name.
--
--   returns  the quota, or null when there is none
create or replace function flowfabric._find_quota(namespace text, quota text)
returns flowfabric.quotas
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    found flowfabric.quotas;
begin
    if _find_quota.quota ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then
        select q.* into found from flowfabric.quotas q where q.id = _find_quota.quota::uuid;
    else
        select q.* into found from flowfabric.quotas q where q.namespace = _find_quota.namespace and q.name = _find_quota.quota;
    end if;
    return found;
end $$;

-- The refusal of a quota that is not there.
--
--   refuses  quota_not_found, as a value
--   returns  the fault
create or replace function flowfabric._missing_quota(namespace text, quota text)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('quota_not_found', format('no quota %s in namespace %s; create_quota makes one',
        flowfabric._shown(_missing_quota.quota), flowfabric._shown(_missing_quota.namespace)))
$$;

-- Make a quota. Its id follows from namespace and name.
--
--   moves    quota – → open, nothing used
--   emits    quota_created
--   refuses  invalid_quota, invalid_body, quota_already_exists
--   returns  'created', or 'exists' when there is one of that name with the same limits
create or replace function flowfabric.create_quota(
    partition int, id uuid, namespace text, name text, window_seconds int default 60, max_requests_per_window bigint default null,
    max_concurrent bigint default null, by text default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    wanted flowfabric.quotas;
    known flowfabric.quotas;
begin
    perform flowfabric._check_by(create_quota.by);
    wanted.window_seconds := create_quota.window_seconds;
    wanted.max_requests_per_window := create_quota.max_requests_per_window;
    wanted.max_concurrent := create_quota.max_concurrent;
    perform flowfabric._raise(flowfabric._quota_fault(wanted));

    insert into flowfabric.quotas (partition, id, namespace, name, created_at, window_seconds, max_requests_per_window, max_concurrent)
    values (create_quota.partition, create_quota.id, create_quota.namespace, create_quota.name, flowfabric.clock(), wanted.window_seconds,
            wanted.max_requests_per_window, wanted.max_concurrent)
    on conflict do nothing;
    if found then
        perform flowfabric._append('quota_created', create_quota.name, create_quota.by, flowfabric._quota_limits(wanted)
            || jsonb_build_object('quota_id', create_quota.id, 'namespace', create_quota.namespace));
        return 'created';
    end if;
    select q.* into known from flowfabric.quotas q where q.partition = create_quota.partition and q.id = create_quota.id;
    if flowfabric._quota_limits(known) <> flowfabric._quota_limits(wanted) then
        perform flowfabric._refuse('quota_already_exists', format('quota %s of namespace %s has other limits: %s; change_quota changes them',
            flowfabric._shown(create_quota.name), flowfabric._shown(create_quota.namespace), flowfabric._quota_limits(known)));
    end if;
    return 'exists';
end $$;

-- Change the limits of a quota; what is left out stays. The next claim goes by them. What runs goes on, also above a lower cap.
--
--   moves    the limits
--   locks    the quota
--   emits    quota_changed
--   refuses  quota_not_found, invalid_quota, invalid_body
--   returns  the lanes that may have work again because of it
create or replace function flowfabric.change_quota(
    namespace text, quota text, by text, window_seconds int default null, max_requests_per_window bigint default null,
    max_concurrent bigint default null, out lanes text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    known flowfabric.quotas := flowfabric._find_quota(change_quota.namespace, change_quota.quota);
begin
    perform flowfabric._check_by(change_quota.by);
    select q.* into known from flowfabric.quotas q where q.partition = known.partition and q.id = known.id for update;
    if not found then
        perform flowfabric._raise(flowfabric._missing_quota(change_quota.namespace, change_quota.quota));
    end if;
    known.window_seconds := coalesce(change_quota.window_seconds, known.window_seconds);
    known.max_requests_per_window := coalesce(change_quota.max_requests_per_window, known.max_requests_per_window);
    known.max_concurrent := coalesce(change_quota.max_concurrent, known.max_concurrent);
    perform flowfabric._raise(flowfabric._quota_fault(known));

    update flowfabric.quotas q
    set window_seconds = known.window_seconds, max_requests_per_window = known.max_requests_per_window, max_concurrent = known.max_concurrent
    where q.partition = known.partition and q.id = known.id;
    perform flowfabric._append('quota_changed', known.name, change_quota.by, flowfabric._quota_limits(known)
        || jsonb_build_object('quota_id', known.id, 'namespace', known.namespace));
    lanes := array(select distinct r.lane from flowfabric.routes r where r.quotas <> '{}' and r.quotas @> array[known.id] order by 1);
end $$;

-- A quota and how much of it is used.
--
--   returns  {quota_id, namespace, name, limits, in_window, held_count, room, next_room_at?, created_at}
create or replace function flowfabric._quota_summary(quota flowfabric.quotas, now timestamptz)
returns jsonb
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select flowfabric._quota_limits(quota) || jsonb_strip_nulls(jsonb_build_object(
        'quota_id', (quota).id, 'namespace', (quota).namespace, 'name', (quota).name, 'created_at', (quota).created_at,
        'in_window', flowfabric._entries_in_window(quota, _quota_summary.now, _quota_summary.now),
        'held_count', flowfabric._held_slots(quota, _quota_summary.now),
        'room', flowfabric._quota_room(quota, _quota_summary.now, _quota_summary.now),
        'next_room_at', flowfabric._next_room_at(quota, _quota_summary.now)))
$$;

-- Show a quota: its limits, what is in its window, who holds its slots, and how much room that leaves.
--
--   refuses  quota_not_found
--   returns  the description
create or replace function flowfabric.describe_quota(namespace text, quota text)
returns text
language plpgsql stable as $$
declare
    known flowfabric.quotas := flowfabric._find_quota(describe_quota.namespace, describe_quota.quota);
begin
    if known.id is null then
        perform flowfabric._raise(flowfabric._missing_quota(describe_quota.namespace, describe_quota.quota));
    end if;
    return flowfabric._quota_summary(known, flowfabric.clock());
end $$;

-- The quotas of a namespace, by name.
--
--   refuses  invalid_limit
--   returns  a description each, one more than asked for when more follows
create or replace function flowfabric.list_quotas(namespace text default 'default', after text default '', take int default 50)
returns table (quota text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    return query
    select flowfabric._quota_summary(q, now)::text from (
        select * from flowfabric.quotas q
        where q.namespace = list_quotas.namespace and q.name > list_quotas.after
        order by q.name limit flowfabric._page(list_quotas.take)) q;
end $$;
