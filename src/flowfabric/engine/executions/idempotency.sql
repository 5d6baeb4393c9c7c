-- Idempotency: which submissions are duplicates, by id or by idempotency key.

-- Whether an execution keeps its idempotency key after the key's window: until it ends, and unless its policy chose the
-- window, for as long as its record exists. Volatile, because it must see what a lock has just waited for.
create or replace function flowfabric._keeps_key(partition int, id uuid)
returns boolean
language plpgsql as $$
begin
    return exists (
        select from flowfabric.executions e
        where e.partition = _keeps_key.partition and e.id = _keeps_key.id
          and (e.outcome is null or not coalesce(e.policy ? 'dedup_window_ms', false)));
end $$;

-- Whether two payloads are the same JSON value: the order of fields, spaces and ways to write a number do not matter.
-- What Postgres cannot read as JSON is compared byte by byte.
create or replace function flowfabric._same_payload(first bytea, second bytea)
returns boolean
language plpgsql immutable as $$
begin
    if _same_payload.first is not distinct from _same_payload.second then
        return true;
    end if;
    return coalesce(convert_from(_same_payload.first, 'UTF8')::jsonb
                    = convert_from(_same_payload.second, 'UTF8')::jsonb, false);
exception when data_exception or program_limit_exceeded then
    return false;
end $$;

-- Find the duplicates by idempotency key that are not repetitions: the execution that owns the key has another task or
-- payload. Options do not matter. Without a record there is nothing to compare.
--
--   refuses  key_conflict, as a value
--   returns  the fault per item; null if no item has one
create or replace function flowfabric._key_faults(
    owners text[], keys text[], key_partitions int[], payloads bytea[], options flowfabric.options[], options_of int[])
returns jsonb[]
language plpgsql volatile as $$
begin
    if _key_faults.keys is null or array_remove(_key_faults.owners, null) = '{}' then
        return null;
    end if;
    return (
        select case when count(o.fault) > 0 then array_agg(o.fault order by x.item) end
        from (
            select i as item, _key_faults.owners[i] as owner, _key_faults.keys[i] as key,
                   _key_faults.payloads[i] as payload, _key_faults.key_partitions[i] as key_partition,
                   ((_key_faults.options[_key_faults.options_of[i]]).route).namespace as namespace,
                   (_key_faults.options[_key_faults.options_of[i]]).task as task
            from generate_series(1, cardinality(_key_faults.keys)) i offset 0) x
        left join lateral (
            select flowfabric._fault('key_conflict', format(
                       'key %s belongs to execution %s of task %s%s; use another key, or the same task and arguments',
                       flowfabric._shown(x.key), x.owner, flowfabric._shown(e.task),
                       case when e.task = x.task then ', which has other arguments' else '' end),
                       jsonb_build_object('execution_id', x.owner)) as fault
            from flowfabric.idempotency_keys k
            cross join lateral (
                select e.task, e.payload from flowfabric.executions e
                where e.partition = k.execution_partition and e.id = k.execution offset 0) e
            where k.partition = x.key_partition and k.namespace = x.namespace and k.key = x.key
              and flowfabric._id(k.execution_partition, k.execution) = x.owner
              and not (e.task = x.task and flowfabric._same_payload(e.payload, x.payload))) o on true);
end $$;

-- Acquire idempotency keys for executions, each if it is free. An execution owns its key for the key's window, and
-- for as long as _keeps_key says. Waits for other transactions that are acquiring the same key. The keys given must be
-- distinct.
--
--   locks    the idempotency keys, in key order
--   returns  per key, the id of the execution that owns it, or null if the key was free and is acquired now
create or replace function flowfabric._take_keys(
    partitions int[], namespaces text[], keys text[], execution_partitions int[], executions uuid[],
    expiries timestamptz[])
returns text[]
language plpgsql as $$
declare
    taken bigint[];
begin
    -- The update never happens, but locks the keys that exist: one statement acquires all of them in key order.
    with wanted as (
        select w.* from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys,
                               _take_keys.execution_partitions, _take_keys.executions, _take_keys.expiries)
                        with ordinality
                        as w (partition, namespace, key, execution_partition, execution, expires_at, number)
    ), inserted as (
        insert into flowfabric.idempotency_keys as k (partition, namespace, key, execution_partition, execution,
                                                      expires_at)
        select w.partition, w.namespace, w.key, w.execution_partition, w.execution, w.expires_at
        from wanted w order by w.partition, w.namespace collate "C", w.key collate "C"
        on conflict (partition, namespace, key) do update set expires_at = k.expires_at where false
        returning k.partition, k.namespace, k.key
    )
    select coalesce(array_agg(w.number), '{}') into taken
    from wanted w join inserted i on i.partition = w.partition and i.namespace = w.namespace and i.key = w.key;
    if cardinality(taken) = cardinality(_take_keys.keys) then
        return array_fill(null::text, array[cardinality(taken)]);
    end if;

    -- A new statement after the lock, with a new snapshot: it sees whether the key's owner keeps it.
    with moved as (
        update flowfabric.idempotency_keys k
        set execution_partition = w.execution_partition, execution = w.execution, expires_at = w.expires_at
        from (
            select w.*, h.place
            from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys, _take_keys.execution_partitions,
                        _take_keys.executions, _take_keys.expiries)
                 with ordinality as w (partition, namespace, key, execution_partition, execution, expires_at, number)
            cross join lateral (
                select k.ctid as place, k.execution_partition, k.execution from flowfabric.idempotency_keys k
                where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key
                  and k.expires_at <= flowfabric.clock()
                offset 0) h
            where not w.number = any (taken) and not flowfabric._keeps_key(h.execution_partition, h.execution)
            limit cardinality(_take_keys.keys)) w
        where k.ctid = w.place
        returning w.number
    )
    select taken || coalesce(array_agg(m.number), '{}') into taken from moved m;

    return (
        select array_agg(case when not w.number = any (taken)
                              then flowfabric._id(k.execution_partition, k.execution) end order by w.number)
        from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys)
             with ordinality as w (partition, namespace, key, number)
        cross join lateral (
            select k.execution_partition, k.execution from flowfabric.idempotency_keys k
            where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key offset 0) k);
end $$;

-- Find the items of a batch that are duplicates of an existing execution: by their id, by their idempotency key, or
-- because an earlier item of the batch created it. Only called if an item has a key; otherwise the insert's conflict
-- detects duplicates.
--
--   returns  the existing execution's id per item, in order; null if the item is not a duplicate
create or replace function flowfabric._find_owners(
    partitions int[], ids uuid[], keys text[], key_partitions int[], namespaces text[], expiries timestamptz[],
    faults jsonb[])
returns text[]
language plpgsql as $$
declare
    it record;
    made boolean[]; -- indexed by the first item with that id
    takers int[]; -- indexed by the first item with that key
    strays int[] := '{}';
    stray int;
    owners text[] := array_fill(null::text, array[cardinality(_find_owners.ids)]);
begin
    for it in
        with items as (
            select x.*, first_value(x.item) over (partition by x.partition, x.id order by x.item)::int as same_id,
                   e.id is not null as known
            from unnest(_find_owners.partitions, _find_owners.ids, _find_owners.keys, _find_owners.key_partitions,
                        _find_owners.namespaces, _find_owners.expiries, _find_owners.faults)
                 with ordinality as x (partition, id, key, key_partition, namespace, expires_at, fault, item)
            left join lateral (
                select e.id from flowfabric.executions e
                where e.partition = x.partition and e.id = x.id offset 0) e on true
            where x.fault is null
        ), firsts as (
            select distinct on (i.namespace, i.key) i.* from items i
            where i.key is not null and not i.known
            order by i.namespace, i.key, i.item
        ), held as (
            select h.* from (
                select array_agg(f.key_partition) as key_partitions, array_agg(f.namespace) as namespaces,
                       array_agg(f.key) as keys, array_agg(f.partition) as partitions, array_agg(f.id) as ids,
                       array_agg(f.expires_at) as expiries, array_agg(f.item::int) as items
                from firsts f) a
            cross join lateral unnest(a.items, a.namespaces, a.keys, flowfabric._take_keys(
                a.key_partitions, a.namespaces, a.keys, a.partitions, a.ids, a.expiries))
                as h (item, namespace, key, owner)
            where a.keys is not null
        )
        select i.item::int, i.partition, i.id, i.same_id, i.known, h.item as same_key, h.owner
        from items i left join held h on h.namespace = i.namespace and h.key = i.key
        order by i.item
    loop
        owners[it.item] := case
            when it.known or made[it.same_id] then flowfabric._id(it.partition, it.id)
            else coalesce(it.owner, flowfabric._id(
                _find_owners.partitions[takers[it.same_key]], _find_owners.ids[takers[it.same_key]])) end;
        if owners[it.item] is null then
            made[it.same_id] := true;
            if it.same_key is not null then
                takers[it.same_key] := it.item;
            end if;
        elsif it.item = it.same_key and it.owner is null then
            strays := strays || it.item;
        end if;
    end loop;

    -- The key was acquired for an item that is a duplicate by its id: pass the key to the next item with it, or free
    -- it.
    foreach stray in array strays loop
        delete from flowfabric.idempotency_keys k
        where k.partition = _find_owners.key_partitions[stray] and k.namespace = _find_owners.namespaces[stray]
          and k.key = _find_owners.keys[stray];
        insert into flowfabric.idempotency_keys (partition, namespace, key, execution_partition, execution, expires_at)
        select _find_owners.key_partitions[stray], _find_owners.namespaces[stray], _find_owners.keys[stray],
               _find_owners.partitions[t.item], _find_owners.ids[t.item], _find_owners.expiries[t.item]
        from (select takers[stray] as item) t where t.item is not null;
    end loop;
    return owners;
end $$;

-- Add the duplicates among the items of a batch that were refused because of a draining lane, a past deadline or their
-- flow: a caller that lost the reply may repeat a submission after that, and the answer must still be `duplicate`. An
-- execution created by a later item of the same call does not count.
--
--   returns  the existing execution's id per item, in order; null if the item is not a duplicate
create or replace function flowfabric._add_late_owners(
    owners text[], partitions int[], ids uuid[], keys text[], key_partitions int[], options flowfabric.options[],
    options_of int[], deadlines_at timestamptz[], faults jsonb[], made boolean[], now timestamptz)
returns text[]
language plpgsql as $$
begin
    return array(
        select coalesce(
            case when o.owner <> all (array(
                select flowfabric._id(_add_late_owners.partitions[i], _add_late_owners.ids[i])
                from generate_series(x.item + 1, cardinality(_add_late_owners.ids)) i
                where _add_late_owners.made[i])) then o.owner end,
            _add_late_owners.owners[x.item])
        from (
            select i as item, _add_late_owners.faults[i] ->> 'code' as code
            from generate_series(1, cardinality(_add_late_owners.ids)) i) x
        left join lateral (
            select flowfabric._id(e.partition, e.id) as owner from flowfabric.executions e
            where e.partition = _add_late_owners.partitions[x.item] and e.id = _add_late_owners.ids[x.item]
            union all
            select flowfabric._id(k.execution_partition, k.execution) from flowfabric.idempotency_keys k
            where k.partition = _add_late_owners.key_partitions[x.item] and k.key = _add_late_owners.keys[x.item]
              and k.namespace = ((_add_late_owners.options[_add_late_owners.options_of[x.item]]).route).namespace
              and (k.expires_at > _add_late_owners.now
                   or flowfabric._keeps_key(k.execution_partition, k.execution))
            limit 1) o
            on x.code in ('lane_draining', 'flow_not_found', 'flow_already_terminal', 'flow_too_large')
               or x.code = 'invalid_time' and _add_late_owners.deadlines_at[x.item] <= _add_late_owners.now
        order by x.item);
end $$;
