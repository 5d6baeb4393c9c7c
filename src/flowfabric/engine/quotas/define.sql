-- Define quotas: create, change and read them.

-- Check the limits of a quota.
--
--   refuses  invalid_quota, as a value
--   returns  the fault, or null if the limits are valid
create or replace function flowfabric._quota_fault(quota flowfabric.quotas)
returns jsonb
language sql immutable as $$
    select case
        when (_quota_fault.quota).window_seconds between 1 and 86400 is not true then
            flowfabric._fault('invalid_quota',
                format('window_seconds %s is invalid; use 1 to 86,400', (_quota_fault.quota).window_seconds),
                '{"field": "window_seconds"}')
        when (_quota_fault.quota).max_requests_per_window not between 1 and 9007199254740991 then
            flowfabric._fault('invalid_quota',
                format('max_requests_per_window %s is invalid; use 1 to 9,007,199,254,740,991',
                       (_quota_fault.quota).max_requests_per_window),
                '{"field": "max_requests_per_window"}')
        when (_quota_fault.quota).max_concurrent not between 1 and 9007199254740991 then
            flowfabric._fault('invalid_quota',
                format('max_concurrent %s is invalid; use 1 to 9,007,199,254,740,991',
                       (_quota_fault.quota).max_concurrent),
                '{"field": "max_concurrent"}')
        when coalesce((_quota_fault.quota).max_requests_per_window, (_quota_fault.quota).max_concurrent) is null then
            flowfabric._fault('invalid_quota',
                'the quota has no limit; use max_requests_per_window, max_concurrent or both',
                '{"field": "max_requests_per_window"}')
    end
$$;

-- The limits of a quota as JSON, to compare and to show.
--
--   returns  {window_seconds, max_requests_per_window?, max_concurrent?}
create or replace function flowfabric._quota_limits(quota flowfabric.quotas)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'window_seconds', (_quota_limits.quota).window_seconds,
        'max_requests_per_window', (_quota_limits.quota).max_requests_per_window,
        'max_concurrent', (_quota_limits.quota).max_concurrent))
$$;

-- Find a quota by a text: a UUID is taken as its id, any other text as its name.
--
--   returns  the quota, or null if it does not exist
create or replace function flowfabric._find_quota(namespace text, quota text)
returns flowfabric.quotas
language plpgsql stable as $$
declare
    found flowfabric.quotas;
begin
    if _find_quota.quota ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then
        select q.* into found from flowfabric.quotas q
        where q.id = _find_quota.quota::uuid and q.namespace = _find_quota.namespace;
    else
        select q.* into found from flowfabric.quotas q
        where q.namespace = _find_quota.namespace and q.name = _find_quota.quota;
    end if;
    return found;
end $$;

-- Build the error for a quota that does not exist.
--
--   refuses  quota_not_found, as a value
create or replace function flowfabric._missing_quota(namespace text, quota text)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('quota_not_found', format(
        'quota %s does not exist in namespace %s; check the name, or use create_quota to create it',
        flowfabric._shown(_missing_quota.quota), flowfabric._shown(_missing_quota.namespace)))
$$;

-- Create a quota. Its id is derived from namespace and name.
--
--   moves    quota – → open, nothing used
--   locks    its stripes, which nobody else sees yet
--   emits    quota_created
--   refuses  invalid_quota, invalid_body, quota_already_exists
--   returns  'created', or 'exists' if a quota with this name and the same limits exists
create or replace function flowfabric.create_quota(
    partition int, id uuid, namespace text, name text, window_seconds int default 60,
    max_requests_per_window bigint default null, max_concurrent bigint default null, by text default null)
returns text
language plpgsql as $$
declare
    wanted flowfabric.quotas;
    known flowfabric.quotas;
begin
    perform flowfabric._check_by(create_quota.by);
    wanted.window_seconds := create_quota.window_seconds;
    wanted.max_requests_per_window := create_quota.max_requests_per_window;
    wanted.max_concurrent := create_quota.max_concurrent;
    perform flowfabric._raise(flowfabric._quota_fault(wanted));

    -- Not if it exists: the insert would wait for a transaction that has locked the quota.
    insert into flowfabric.quotas (
        partition, id, namespace, name, created_at, window_seconds, max_requests_per_window, max_concurrent)
    select create_quota.partition, create_quota.id, create_quota.namespace, create_quota.name, flowfabric.clock(),
           wanted.window_seconds, wanted.max_requests_per_window, wanted.max_concurrent
    where not exists (select from flowfabric.quotas q
                      where q.partition = create_quota.partition and q.id = create_quota.id)
    on conflict do nothing;
    if found then
        perform flowfabric._make_stripes(create_quota.partition, create_quota.id);
        perform flowfabric._append('quota_created', create_quota.name, create_quota.by, flowfabric._quota_limits(wanted)
            || jsonb_build_object('quota_id', create_quota.id, 'namespace', create_quota.namespace));
        return 'created';
    end if;
    select q.* into known from flowfabric.quotas q
    where q.partition = create_quota.partition and q.id = create_quota.id;
    if flowfabric._quota_limits(known) <> flowfabric._quota_limits(wanted) then
        perform flowfabric._refuse('quota_already_exists',
            format('quota %s already exists in namespace %s with another definition: %s; use change_quota to change it',
                   flowfabric._shown(create_quota.name), flowfabric._shown(create_quota.namespace),
                   flowfabric._quota_limits(known)));
    end if;
    return 'exists';
end $$;

-- Change the limits of a quota. Omitted limits keep their values. The next claim uses the new limits; running
-- executions continue, even above a lowered limit. It waits for the claims that admit to the quota at this moment.
--
--   moves    the limits
--   locks    the quota, then its stripes in order
--   emits    quota_changed
--   refuses  quota_not_found, invalid_quota, invalid_body
--   returns  the lanes that may have claimable work again
create or replace function flowfabric.change_quota(
    namespace text, quota text, by text, window_seconds int default null, max_requests_per_window bigint default null,
    max_concurrent bigint default null, out lanes text[])
language plpgsql as $$
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
    set window_seconds = known.window_seconds,
        max_requests_per_window = known.max_requests_per_window, max_concurrent = known.max_concurrent
    where q.partition = known.partition and q.id = known.id;
    perform flowfabric._make_stripes(known.partition, known.id);
    perform flowfabric._append('quota_changed', known.name, change_quota.by, flowfabric._quota_limits(known)
        || jsonb_build_object('quota_id', known.id, 'namespace', known.namespace));
    lanes := array(
        select distinct r.lane from flowfabric.routes r where r.quotas <> '{}' and r.quotas @> array[known.id]
        order by 1);
end $$;

-- A quota with its usage.
--
--   returns  {quota_id, namespace, name, limits, in_window, held_count, room, next_room_at?, created_at}
create or replace function flowfabric._quota_summary(quota flowfabric.quotas, now timestamptz)
returns jsonb
language sql stable as $$
    select flowfabric._quota_limits(_quota_summary.quota) || jsonb_strip_nulls(jsonb_build_object(
        'quota_id', (_quota_summary.quota).id, 'namespace', (_quota_summary.quota).namespace,
        'name', (_quota_summary.quota).name, 'created_at', (_quota_summary.quota).created_at,
        'in_window', flowfabric._entries_in_window(_quota_summary.quota, _quota_summary.now, _quota_summary.now),
        'held_count', flowfabric._held_slots(_quota_summary.quota, _quota_summary.now),
        'room', flowfabric._quota_room(_quota_summary.quota, _quota_summary.now, _quota_summary.now),
        'next_room_at', flowfabric._next_room_at(_quota_summary.quota, _quota_summary.now)))
$$;

-- Describe a quota: its limits, the admissions in its window, the slots in use and the remaining room.
--
--   refuses  quota_not_found
--   returns  the description
create or replace function flowfabric.describe_quota(namespace text, quota text)
returns text
language plpgsql stable set enable_bitmapscan = off as $$
declare
    known flowfabric.quotas := flowfabric._find_quota(describe_quota.namespace, describe_quota.quota);
begin
    if known.id is null then
        perform flowfabric._raise(flowfabric._missing_quota(describe_quota.namespace, describe_quota.quota));
    end if;
    return flowfabric._quota_summary(known, flowfabric.clock());
end $$;

-- List the quotas of a namespace by name (keyset pagination).
--
--   refuses  invalid_limit
--   returns  one description per row, and one more row than asked for if more follow
create or replace function flowfabric.list_quotas(
    namespace text default 'default', after text default '', take int default 50)
returns table (quota text)
language plpgsql stable set enable_bitmapscan = off as $$
declare
    now timestamptz := flowfabric.clock();
begin
    return query
    select flowfabric._quota_summary(q, now)::text from (
        select q.* from flowfabric.quotas q
        where q.namespace = list_quotas.namespace and q.name > list_quotas.after
        order by q.name limit flowfabric._page(list_quotas.take)) q;
end $$;
