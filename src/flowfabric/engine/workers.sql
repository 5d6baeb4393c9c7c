-- Workers: which worker processes are live. Used for blocked_by_route and by `ff top`. A claim works without an entry
-- here.

-- Refuse an invalid worker or instance name.
--
--   refuses  invalid_worker
create or replace function flowfabric._check_worker(worker text, instance text)
returns void
language plpgsql immutable as $$
declare
    name text;
begin
    foreach name in array array[_check_worker.worker, _check_worker.instance] loop
        if name is null or octet_length(name) not between 1 and 256
           or name ~ '[\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000|]' then
            perform flowfabric._refuse('invalid_worker',
                format('worker or instance name %s is invalid; use 1 to 256 bytes without whitespace, control '
                       'characters or |', flowfabric._shown(name)));
        end if;
    end loop;
end $$;

-- Refuse invalid lane names, or an empty list of lanes to serve.
--
--   refuses  invalid_lane
create or replace function flowfabric._check_lanes(lanes text[])
returns void
language plpgsql immutable as $$
declare
    name text;
begin
    foreach name in array coalesce(nullif(_check_lanes.lanes, '{}'), '{null}') loop
        perform flowfabric._raise(flowfabric._label_fault('invalid_lane', 'lane name', coalesce(name, '')));
    end loop;
end $$;

-- Check the tasks that an instance registers; null is valid and means that they are unknown.
--
--   refuses  invalid_tasks, as a value
--   returns  the fault, or null if the tasks are valid
create or replace function flowfabric._tasks_fault(tasks jsonb, bytes int)
returns jsonb
language plpgsql immutable as $$
declare
    task jsonb;
    seen text[] := '{}';
begin
    if _tasks_fault.bytes > 262144 or jsonb_typeof(_tasks_fault.tasks) <> 'array'
       or jsonb_array_length(_tasks_fault.tasks) > 1000 then
        return flowfabric._fault('invalid_tasks', format(
            'a list of %s tasks with %s bytes is invalid; use a list of at most 1,000 tasks and 262,144 bytes, without '
            'large schemas, and start several workers if one app has more',
            case jsonb_typeof(_tasks_fault.tasks) when 'array'
                then flowfabric._number(jsonb_array_length(_tasks_fault.tasks)) else 'no' end,
            flowfabric._number(_tasks_fault.bytes)));
    end if;
    for task in select t from jsonb_array_elements(_tasks_fault.tasks) t loop
        if jsonb_typeof(task) <> 'object' or jsonb_typeof(task -> 'name') is distinct from 'string'
           or octet_length(task ->> 'name') not between 1 and 256
           or jsonb_typeof(task -> 'lane') is distinct from 'string'
           or flowfabric._label_fault('invalid_tasks', 'lane name', task ->> 'lane') is not null
           or jsonb_typeof(task -> 'version') is distinct from 'number'
           or (task ->> 'version')::numeric not between 1 and 2147483647
           or (task ->> 'version')::numeric % 1 <> 0
           or coalesce(jsonb_typeof(task -> 'schema'), 'object') not in ('object', 'null') then
            return flowfabric._fault('invalid_tasks', format(
                'task %s is invalid; use a name of 1 to 256 bytes, a version from 1, a lane, and an object as schema, '
                'or none', flowfabric._shown(task::text)));
        end if;
        seen := seen || flowfabric._version_word(task ->> 'name', (task ->> 'version')::int);
    end loop;
    return (
        select flowfabric._fault('invalid_tasks', format(
            'task %s is listed twice; use every version of a name once', flowfabric._shown(s.word)))
        from unnest(seen) s (word) group by s.word having count(*) > 1 limit 1);
end $$;

-- The advisory lock number that an instance holds while it lives.
--
--   returns  the second lock key; the first is 17991
create or replace function flowfabric.worker_lock(instance text)
returns int
language sql immutable as $$
    select hashtext(worker_lock.instance)
$$;

-- The instance locks that are held now.
--
--   returns  their lock numbers
create or replace function flowfabric._held_locks()
returns int[]
language plpgsql as $$
begin
    -- Lock numbers are signed ints, but pg_locks shows them as unsigned oids.
    return array(
        select (l.objid::bigint - case when l.objid::bigint > 2147483647 then 4294967296 else 0 end)::int
        from pg_locks l
        where l.locktype = 'advisory' and l.classid = 17991 and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database()));
end $$;

-- Register a worker instance with the lanes it serves, its capabilities and its tasks: a list of {name, version, lane,
-- schema?}, or null if nobody knows which tasks it has. `holds_lock` promises that the instance
-- holds the shared advisory lock (17991, worker_lock(instance)), taken before this call on a connection that lives as
-- long as the instance. If the lock was never seen, the instance counts as dead only when its leases expire. An expired
-- entry counts as missing. Without `wait`, the transaction waits at most 100 ms for a lock.
--
--   locks    the entry
--   emits    worker_registered, the first time and when lanes or capabilities change
--   refuses  invalid_worker, invalid_lane, invalid_capabilities, invalid_tasks, invalid_limit, instance_reassigned
--   returns  'registered' or 'refreshed', and when the entry expires
create or replace function flowfabric.register_worker(
    worker text, instance text, lanes text[], capabilities text default '[]', namespace text default null,
    ttl_ms bigint default 30000, holds_lock boolean default false, wait boolean default true, tasks text default null,
    out outcome text, out expires_at timestamptz)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    lifetime interval := register_worker.ttl_ms * interval '1 ms';
    sorted_lanes text[] := array(select distinct l collate "C" from unnest(register_worker.lanes) l order by 1);
    skills text[];
    key int := flowfabric.worker_lock(register_worker.instance);
    listed jsonb := register_worker.tasks::jsonb;
    known record;
    old flowfabric.workers;
begin
    perform flowfabric._check_worker(register_worker.worker, register_worker.instance);
    perform flowfabric._check_lanes(register_worker.lanes);
    perform flowfabric._raise(flowfabric._capabilities_fault('capabilities', register_worker.capabilities::jsonb));
    perform flowfabric._raise(flowfabric._tasks_fault(listed, octet_length(register_worker.tasks)));
    if register_worker.ttl_ms is null or register_worker.ttl_ms not between 1000 and 600000 then
        perform flowfabric._refuse('invalid_limit', format(
            'ttl of %s ms is invalid; use 1,000 to 600,000 ms (ten minutes)', register_worker.ttl_ms));
    end if;
    skills := flowfabric._sorted_set(register_worker.capabilities::jsonb);
    expires_at := now + lifetime;
    select coalesce(jsonb_agg(t - 'schema' order by t ->> 'name', (t -> 'version')::int), '[]') as tasks,
           coalesce(jsonb_agg(t -> 'schema' order by t ->> 'name', (t -> 'version')::int), '[]') as schemas,
           coalesce(array_agg(flowfabric._version_word(t ->> 'name', (t -> 'version')::int)), '{}') as versions
    into known from jsonb_array_elements(listed) t;
    perform flowfabric._limit_waits(register_worker.wait);
    -- Insert first: if two calls register one instance at the same time, the second finds the first one's row.
    insert into flowfabric.workers (instance, worker, namespace, lanes, capabilities, ttl, registered_at, beat_at,
                                    expires_at)
    values (register_worker.instance, register_worker.worker, register_worker.namespace, sorted_lanes, skills, lifetime,
            now, now, register_worker.expires_at)
    on conflict do nothing;
    outcome := case when found then 'registered' else 'refreshed' end;
    select w.* into old from flowfabric.workers w where w.instance = register_worker.instance for update;
    if old.worker <> register_worker.worker then
        perform flowfabric._refuse('instance_reassigned', format(
            'instance %s already belongs to worker %s; use a new instance name for every process',
            flowfabric._shown(register_worker.instance), flowfabric._shown(old.worker)));
    end if;
    if old.expires_at <= now then
        outcome := 'registered';
    end if;
    update flowfabric.workers w
    set namespace = register_worker.namespace, lanes = sorted_lanes, capabilities = skills, ttl = lifetime,
        beat_at = now, expires_at = register_worker.expires_at,
        tasks = case when listed is not null then known.tasks end,
        schemas = case when listed is not null then known.schemas end, versions = known.versions,
        registered_at = case when outcome = 'registered' then now else w.registered_at end,
        lock_key = case when register_worker.holds_lock
                             and (w.lock_key is not null or key = any (flowfabric._held_locks())) then key end,
        lock_missing_since = null, lock_checked_at = null,
        -- A registered instance takes its lock again when it has lost the connection that held it.
        lock_retaken_at = case when register_worker.holds_lock and old.lock_key is not null then now
                               else w.lock_retaken_at end
    where w.instance = register_worker.instance;
    if outcome = 'registered'
       or (old.lanes, old.capabilities, old.namespace)
          is distinct from (sorted_lanes, skills, register_worker.namespace) then
        perform flowfabric._append('worker_registered', register_worker.instance, detail => jsonb_build_object(
            'worker', register_worker.worker, 'lanes', sorted_lanes, 'capabilities', skills,
            'namespace', register_worker.namespace));
    end if;
end $$;

-- Send heartbeats for instances, each extended by its own ttl. An expired entry is not revived: the instance must
-- register again. Never waits, because the same connection renews leases.
--
--   locks    the entries, in key order (skips locked ones)
--   returns  per instance, in the order given, 'refreshed' or 'locked' and when the entry expires, or 'not_registered'
create or replace function flowfabric.beat(instances text[])
returns table (instance text, outcome text, expires_at timestamptz)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    held text[] := array(
        select w.instance from flowfabric.workers w
        where w.instance = any (beat.instances) order by w.instance for update skip locked);
begin
    return query
    with beaten as (
        update flowfabric.workers w set beat_at = now, expires_at = now + w.ttl
        where w.instance = any (held) and w.expires_at > now
        returning w.instance, w.expires_at
    )
    select x.instance, case when b.instance is not null then 'refreshed' when w.instance is not null then 'locked'
                            else 'not_registered' end, coalesce(b.expires_at, w.expires_at)
    from unnest(beat.instances) with ordinality as x (instance, number)
    left join beaten b on b.instance = x.instance
    left join flowfabric.workers w on w.instance = x.instance and w.instance <> all (held) and w.expires_at > now
    order by x.number;
end $$;

-- Declare an instance dead: remove it and revoke every lease it holds. Leases that have already expired are skipped:
-- their sweep counts them as a reclaim, and a revocation would not.
--
--   moves    active → runnable: pending_reclaim_attempt
--   locks    the entry; the tickets of its leases, in key order
--   emits    worker_marked_dead, lease_revoked, reservation_released
--   refuses  invalid_worker, invalid_body
--   returns  'marked' and how many leases were revoked, or 'not_registered'; and the lanes that have work again
create or replace function flowfabric.mark_dead(
    instance text, by text, reason text default null, out outcome text, out revoked int, out lanes text[])
language plpgsql as $$
declare
    now timestamptz;
    held record;
begin
    perform flowfabric._check_worker(mark_dead.instance, mark_dead.instance);
    if octet_length(mark_dead.reason) > 256 or mark_dead.reason ~ '[\u0001-\u001f\u007f-\u009f]' then
        perform flowfabric._refuse('invalid_body',
            format('reason %s is invalid; use at most 256 bytes without control characters',
                   flowfabric._shown(mark_dead.reason)),
            '{"field": "reason"}');
    end if;
    perform flowfabric._check_by(mark_dead.by);
    revoked := 0;
    perform from flowfabric.workers w where w.instance = mark_dead.instance for update;
    if not found then
        outcome := 'not_registered';
        return;
    end if;
    delete from flowfabric.workers w where w.instance = mark_dead.instance;
    perform from flowfabric.tickets t where t.phase = 'active' and t.instance = mark_dead.instance
    order by t.partition, t.id for update;
    now := flowfabric.clock();
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(distinct t.lane) as lanes into held
    from flowfabric.tickets t
    where t.phase = 'active' and t.instance = mark_dead.instance and t.expires_at > now;
    if held.ids is not null then
        perform flowfabric._end_leases(held.partitions, held.ids, 'revoked', mark_dead.by, mark_dead.reason);
        revoked := cardinality(held.ids);
        lanes := held.lanes;
    end if;
    perform flowfabric._append('worker_marked_dead', mark_dead.instance, mark_dead.by,
                               jsonb_build_object('reason', mark_dead.reason, 'revoked', revoked));
    outcome := 'marked';
end $$;

-- List the registered instances by name (keyset pagination).
--
--   refuses  invalid_limit
--   returns  a row per instance, with the number of leases it holds, the number of its tasks and the names of the
--            first 20; with `expired` also expired entries that no sweep has removed yet
create or replace function flowfabric.list_workers(
    namespace text default null, lane text default null, expired boolean default false, after text default null,
    take int default 50)
returns table (worker text, instance text, lanes text[], capabilities text[], namespace_name text,
               registered_at timestamptz, beat_at timestamptz, expires_at timestamptz, active_count bigint,
               tasks text[], task_count int)
language plpgsql stable as $$
begin
    return query
    select w.worker, w.instance, w.lanes, w.capabilities, w.namespace, w.registered_at, w.beat_at, w.expires_at,
           (select count(*) from flowfabric.tickets t where t.phase = 'active' and t.instance = w.instance),
           array(select x.task ->> 'name' from jsonb_array_elements(w.tasks) with ordinality as x (task, number)
                 order by x.number limit 20),
           jsonb_array_length(w.tasks)
    from flowfabric.workers w
    where (list_workers.namespace is null or w.namespace is null or w.namespace = list_workers.namespace)
      and (list_workers.lane is null or list_workers.lane = any (w.lanes))
      and (list_workers.expired or w.expires_at > flowfabric.clock())
      and w.instance > coalesce(list_workers.after, '')
    order by w.instance
    limit flowfabric._page(list_workers.take);
end $$;

-- Describe a registered instance: what it serves, and its tasks with the schemas of their arguments.
--
--   returns  the entry as list_workers has it, and all tasks as {name, version, lane, schema}, null if unknown; null if
--            it is not registered or its entry has expired
create or replace function flowfabric.describe_worker(instance text)
returns text
language sql stable as $$
    select (jsonb_build_object(
        'worker', w.worker, 'instance', w.instance, 'lanes', w.lanes, 'capabilities', w.capabilities,
        'namespace', w.namespace, 'registered_at', w.registered_at, 'beat_at', w.beat_at, 'expires_at', w.expires_at,
        'active_count', (
            select count(*) from flowfabric.tickets t where t.phase = 'active' and t.instance = w.instance),
        'task_count', jsonb_array_length(w.tasks),
        'tasks', (
            select case when w.tasks is not null then coalesce(jsonb_agg(
                x.task || jsonb_build_object('schema', nullif(x.schema, 'null')) order by x.number), '[]') end
            from rows from (jsonb_array_elements(w.tasks), jsonb_array_elements(w.schemas))
                 with ordinality as x (task, schema, number))))::text
    from flowfabric.workers w
    where w.instance = describe_worker.instance and w.expires_at > flowfabric.clock()
$$;

-- Sweep: remove instances whose registration has expired. Their leases expire separately.
--
--   locks    the entries it removes, skipping locked ones
--   emits    worker_expired
--   returns  how many were removed
create or replace function flowfabric.expire_workers(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    gone text;
begin
    moved := 0;
    for gone in
        select w.instance from flowfabric.workers w where w.expires_at <= flowfabric.clock()
        order by w.expires_at limit expire_workers.take offset expire_workers.passing for update skip locked
    loop
        delete from flowfabric.workers w where w.instance = gone;
        perform flowfabric._append('worker_expired', gone);
        moved := moved + 1;
    end loop;
end $$;

-- End the leases of dead instances, and remove the instances. If another transaction has locked a ticket or a budget
-- of its reservations, the lease and its instance are left for the next pass. A flow member over its reclaim cap would
-- end; that is left to expire_leases, which locks the flow first.
--
--   moves    active → runnable: pending_reclaim_attempt; over the cap → ended: failed
--   locks    the tickets it moves, in key order (skips locked ones); the budgets of their reservations, in key order
--   emits    worker_expired
--   returns  how many instances were removed, the lanes that have work again, the executions that ended
create or replace function flowfabric._remove_orphans(
    instances text[], out moved int, out lanes text[], out ended text[])
language plpgsql as $$
declare
    lost record;
    removed text[];
begin
    select array_agg(x.partition) as partitions, array_agg(x.id) as ids into lost
    from (
        select t.partition, t.id from flowfabric.tickets t
        where t.phase = 'active' and t.instance = any (_remove_orphans.instances)
          and (t.flow is null or not flowfabric._is_last_reclaim(t))
        order by t.partition, t.id
        for update skip locked) x;
    lost := flowfabric._with_free_budgets(lost.partitions, lost.ids, '{}');
    if lost.ids is not null then
        select l.lanes, l.ended into lanes, ended from flowfabric._end_expired_leases(lost.partitions, lost.ids) l;
    end if;
    with gone as (
        delete from flowfabric.workers w
        where w.instance = any (_remove_orphans.instances) and not exists (
            select from flowfabric.tickets t
            where t.phase = 'active' and t.instance = w.instance
              and (t.flow is null or not flowfabric._is_last_reclaim(t)))
        returning w.instance
    )
    select array_agg(g.instance order by g.instance) into removed from gone g;
    perform flowfabric._append('worker_expired', d.instance, detail => '{"reason": "connection_lost"}')
    from unnest(removed) with ordinality as d (instance, number) order by d.number;
    moved := coalesce(cardinality(removed), 0);
end $$;

-- End the leases of instances that promised to hold their advisory lock and have not held it for the grace below: the
-- process is gone. Only time in which the lock was checked counts: between two checks the server
-- itself may have been away, so at most half the grace is counted there.
--
--   moves    active → runnable: pending_reclaim_attempt; over the cap → ended: failed
--   locks    the entries it changes, then the tickets of lost leases, in key order (skips locked ones)
--   emits    worker_expired, lease_expired, execution_failed, edge_group_impossible, edge_group_satisfied,
--            execution_cancelled, execution_skipped, reservation_released, waitpoint_closed
--   returns  how many instances were removed as dead and how many could not be, the lanes that have work again, the
--            executions that ended
create or replace function flowfabric.return_orphans(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    held int[] := flowfabric._held_locks();
    missing record;
    entry record;
    dead text[] := '{}';
begin
    moved := 0;
    -- A missing lock usually means that a process has died: a live worker that lost its connection registers again
    -- within 800 ms. If more than half of all instances have lost their lock in the last 15 s, including those that
    -- hold it again, the server or the network was gone, and every instance has 15 s to register again.
    select coalesce(bool_or(x.is_missing or x.lock_missing_since is not null), false) as is_any,
           case when 2 * count(*) filter (where x.is_missing or x.lock_retaken_at > now - interval '15 s') > count(*)
                then interval '15 s' else interval '800 ms' end as grace
    into missing
    from (
        select w.lock_missing_since, w.lock_retaken_at, h.key is null as is_missing
        from flowfabric.workers w
        left join (select distinct k as key from unnest(held) k) h on h.key = w.lock_key
        where w.lock_key is not null) x;
    if not missing.is_any then
        return;
    end if;
    for entry in
        select w.instance, w.lock_key = any (held) as is_held,
               coalesce(w.lock_missing_since
                        + greatest(now - w.lock_checked_at - missing.grace / 2, interval '0'), now) as since
        from flowfabric.workers w
        where w.lock_key is not null
          and case when w.lock_key = any (held) then w.lock_missing_since is not null
                   else w.lock_missing_since is null or w.lock_missing_since <= now - missing.grace
                        or w.lock_checked_at <= now - missing.grace / 5 end
        order by w.instance offset return_orphans.passing for update of w skip locked
    loop
        if entry.is_held then
            update flowfabric.workers w set lock_missing_since = null, lock_checked_at = null, lock_retaken_at = now
            where w.instance = entry.instance;
        elsif entry.since <= now - missing.grace and cardinality(dead) < return_orphans.take then
            dead := dead || entry.instance;
        else
            update flowfabric.workers w set lock_missing_since = entry.since, lock_checked_at = now
            where w.instance = entry.instance;
        end if;
    end loop;
    if dead <> '{}' then
        held := flowfabric._held_locks(); -- an instance may have taken its lock meanwhile
        dead := array(select d from unnest(dead) d where flowfabric.worker_lock(d) <> all (held));
        select r.moved, r.lanes, r.ended into moved, lanes, ended from flowfabric._remove_orphans(dead) r;
        locked := cardinality(dead) - moved;
    end if;
end $$;

-- Unregister an instance that is shutting down. It has released its leases before; any others expire.
--
--   emits    worker_expired
--   returns  'unregistered', or 'not_registered'
create or replace function flowfabric.unregister_worker(instance text)
returns text
language plpgsql as $$
begin
    delete from flowfabric.workers w where w.instance = unregister_worker.instance;
    if not found then
        return 'not_registered';
    end if;
    perform flowfabric._append('worker_expired', unregister_worker.instance, detail => '{"reason": "stopped"}');
    return 'unregistered';
end $$;
