-- Submitting: one piece of work or thousands, in a transaction of our own or of the caller's.

-- Read the options that submissions have in common: what to run, where, under which policy. Read once per call, however
-- many items share them.
--
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, as a value
--   returns  the options as they are stored, with their route if it is known; or the fault
create or replace function flowfabric._read_options(
    given jsonb, out task text, out lane text, out namespace text, out needs jsonb, out budgets uuid[], out quotas uuid[], out encoding text,
    out creator text, out policy jsonb, out dedup_window interval, out route int, out fault jsonb)
language plpgsql stable as $$
#variable_conflict use_column
declare
    words_of_budgets jsonb;
    words_of_quotas jsonb;
    lane_state flowfabric.lane_state;
begin
    given := jsonb_strip_nulls(given);
    fault := flowfabric._options_fault(given);
    if fault is not null then
        return;
    end if;

    task := given ->> 'task';
    lane := coalesce(given ->> 'lane', 'default');
    namespace := coalesce(given ->> 'namespace', 'default');
    needs := coalesce(given -> 'needs', '[]');
    encoding := given ->> 'encoding';
    creator := given ->> 'creator';
    policy := nullif(given -> 'policy', '{}');
    dedup_window := coalesce((policy ->> 'dedup_window_ms')::bigint, 86400000) * interval '1 ms';
    words_of_budgets := coalesce(given -> 'budgets', '[]');
    words_of_quotas := coalesce(given -> 'quotas', '[]');
    fault := flowfabric._words_fault(lane, namespace, needs, words_of_budgets, words_of_quotas);
    if fault is not null then
        return;
    end if;

    budgets := flowfabric._budget_ids(namespace, words_of_budgets);
    quotas := flowfabric._quota_ids(namespace, words_of_quotas);
    -- A route is made after its lane, so where there is no lane there is no route.
    select l.state, r.id into lane_state, route
    from flowfabric.lanes l
    left join flowfabric.routes r on r.lane = l.name and r.namespace = _read_options.namespace
        and r.digest = md5(array_to_string(flowfabric._sorted_set(_read_options.needs), ',')) and r.budgets = _read_options.budgets
        and r.quotas = _read_options.quotas
    where l.name = _read_options.lane;
    if lane_state = 'draining' then
        route := null;
        fault := flowfabric._draining_fault(lane);
    end if;
end $$;

-- What is wrong with options, besides the words of their route. Plain expressions, so that good options cost next to nothing.
--
--   refuses  invalid_body, invalid_name, invalid_policy, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._options_fault(given jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    unknown constant jsonb := given - '{task,namespace,lane,needs,budgets,quotas,policy,encoding,creator}'::text[];
    field text;
begin
    if unknown <> '{}' then
        field := (select min(f.name) from jsonb_object_keys(unknown) f (name));
        return flowfabric._fault('invalid_body', format('%s: there is no such field; leave it out', flowfabric._shown(field)),
                                 jsonb_build_object('field', field));
    end if;
    foreach field in array '{task,namespace,lane,encoding,creator}'::text[] loop
        if jsonb_typeof(given -> field) <> 'string' then
            return flowfabric._fault('invalid_body', format('%s %s: give a text', field, flowfabric._shown((given -> field)::text)),
                                     jsonb_build_object('field', field));
        end if;
    end loop;
    if coalesce(octet_length(given ->> 'task'), 0) not between 1 and 256 then
        return flowfabric._fault('invalid_name', format('task %s: a task is 1 to 256 bytes', flowfabric._shown(given ->> 'task')));
    elsif octet_length(given ->> 'encoding') not between 1 and 64 then
        return flowfabric._fault('invalid_body', format('encoding %s: an encoding is 1 to 64 bytes', flowfabric._shown(given ->> 'encoding')),
                                 '{"field": "encoding"}');
    elsif octet_length(given ->> 'creator') > 256 then
        return flowfabric._fault('invalid_body', format('creator %s: a creator is at most 256 bytes', flowfabric._shown(given ->> 'creator')),
                                 '{"field": "creator"}');
    elsif given ? 'policy' then
        return flowfabric._policy_fault(given -> 'policy');
    end if;
    return null;
end $$;

-- What is wrong with one submission besides its options.
--
--   refuses  invalid_body, payload_too_large, invalid_time, invalid_tag_key, invalid_tag, as a value
--   returns  the fault, or null when it is good
create or replace function flowfabric._submission_fault(
    key text, payload_bytes int, payload_limit int, delay_ms bigint, delay_until timestamptz, deadline_ms bigint,
    deadline_at timestamptz, tags text, now timestamptz)
returns jsonb
language sql stable as $$
    select case
        when octet_length(key) > 256 then
            flowfabric._fault('invalid_body', format('key %s: a key is at most 256 bytes', flowfabric._shown(key)), '{"field": "key"}')
        when payload_bytes > payload_limit then
            flowfabric._fault('payload_too_large',
                format('the payload has %s bytes and may have %s; keep large data elsewhere and pass a reference', payload_bytes, payload_limit),
                jsonb_build_object('limit', payload_limit))
        when delay_ms not between 0 and 315360000000 or delay_until > now + interval '10 years' then
            flowfabric._fault('invalid_time',
                format('delay %s: give a span from 0, or a moment, at most ten years ahead', coalesce(delay_ms::text || ' ms', delay_until::text)))
        when deadline_ms not between 1 and 315360000000 or deadline_at <= now or deadline_at > now + interval '10 years' then
            flowfabric._fault('invalid_time',
                format('deadline %s: give a moment ahead of now (%s), at most ten years', coalesce(deadline_ms::text || ' ms', deadline_at::text), now))
        when tags is not null then flowfabric._tags_fault(tags::jsonb)
    end
$$;

-- Whether a payload is over the limit.
--
--   returns  true or false
create or replace function flowfabric._are_large(payloads bytea[], payload_limit int)
returns boolean
language plpgsql immutable as $$
declare
    payload bytea;
begin
    if payloads is not null then
        foreach payload in array payloads loop
            if octet_length(payload) > payload_limit then
                return true;
            end if;
        end loop;
    end if;
    return false;
end $$;

-- Take idempotency keys for executions, each where it is free. A key is taken for its window and for as long as its
-- execution is unfinished. Waits for another transaction that is taking the same key. The keys given are distinct.
--
--   locks    the keys, in key order
--   returns  the id of the execution that has it, per key; null where it was free and is taken now
create or replace function flowfabric._take_keys(
    partitions int[], namespaces text[], keys text[], execution_partitions int[], executions uuid[], expiries timestamptz[])
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    held int;
    taken bigint[] := '{}';
    fresh bigint[];
begin
    loop
        with wanted as (
            select w.* from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys, _take_keys.execution_partitions,
                                   _take_keys.executions, _take_keys.expiries)
                            with ordinality as w (partition, namespace, key, execution_partition, execution, expires_at, number)
        ), inserted as (
            insert into flowfabric.idempotency_keys (partition, namespace, key, execution_partition, execution, expires_at)
            select w.partition, w.namespace, w.key, w.execution_partition, w.execution, w.expires_at
            from wanted w order by w.partition, w.namespace collate "C", w.key collate "C"
            on conflict do nothing
            returning partition, namespace, key
        )
        select array_agg(w.number) into fresh
        from wanted w join inserted i on i.partition = w.partition and i.namespace = w.namespace and i.key = w.key;
        taken := taken || coalesce(fresh, '{}');
        if cardinality(taken) = cardinality(_take_keys.keys) then
            return array_fill(null::text, array[cardinality(taken)]);
        end if;

        perform from (
            select w.* from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys) as w (partition, namespace, key)
            order by w.partition, w.namespace collate "C", w.key collate "C") w
        cross join lateral (
            select from flowfabric.idempotency_keys k
            where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key
            for update) k;
        get diagnostics held = row_count;
        -- Fewer, when the sweep has just forgotten one that the insert still ran into.
        exit when held = cardinality(_take_keys.keys);
    end loop;

    -- A statement after the lock: only now can it be seen whether the execution that has the key is unfinished.
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
                where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key and k.expires_at <= flowfabric.clock()
                offset 0) h
            left join lateral (
                select t.id from flowfabric.tickets t where t.partition = h.execution_partition and t.id = h.execution offset 0) t on true
            where not w.number = any (taken) and t.id is null
            limit cardinality(_take_keys.keys)) w
        where k.ctid = w.place
        returning w.number
    )
    select taken || coalesce(array_agg(m.number), '{}') into taken from moved m;

    return (
        select array_agg(case when not w.number = any (taken) then flowfabric._id(k.execution_partition, k.execution) end order by w.number)
        from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys) with ordinality as w (partition, namespace, key, number)
        cross join lateral (
            select k.execution_partition, k.execution from flowfabric.idempotency_keys k
            where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key offset 0) k);
end $$;

-- Which items of a batch stand for an execution that exists already: by their id, by their key, or because an item
-- before them made it. Only called when some item has a key; without one the insert itself finds what exists.
--
--   locks    the keys, in key order
--   returns  the owner's id per item, in order; null where the item stands for itself
create or replace function flowfabric._find_owners(
    partitions int[], ids uuid[], keys text[], key_partitions int[], namespaces text[], expiries timestamptz[], refused boolean[])
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    it record;
    made boolean[]; -- by the first item with that id
    takers int[]; -- by the first item with that key
    strays int[] := '{}';
    stray int;
    owners text[] := array_fill(null::text, array[cardinality(_find_owners.ids)]);
begin
    for it in
        with items as (
            select x.*, first_value(x.item) over (partition by x.partition, x.id order by x.item)::int as same_id, e.id is not null as known
            from unnest(_find_owners.partitions, _find_owners.ids, _find_owners.keys, _find_owners.key_partitions,
                        _find_owners.namespaces, _find_owners.expiries, _find_owners.refused)
                 with ordinality as x (partition, id, key, key_partition, namespace, expires_at, refused, item)
            left join lateral (
                select e.id from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e on true
            where not x.refused
        ), firsts as (
            select distinct on (i.namespace, i.key) i.* from items i
            where i.key is not null and not i.known
            order by i.namespace, i.key, i.item
        ), held as (
            select h.* from (
                select array_agg(f.key_partition) as key_partitions, array_agg(f.namespace) as namespaces, array_agg(f.key) as keys,
                       array_agg(f.partition) as partitions, array_agg(f.id) as ids, array_agg(f.expires_at) as expiries,
                       array_agg(f.item::int) as items
                from firsts f) a
            cross join lateral unnest(a.items, a.namespaces, a.keys, flowfabric._take_keys(
                a.key_partitions, a.namespaces, a.keys, a.partitions, a.ids, a.expiries)) as h (item, namespace, key, owner)
            where a.keys is not null
        )
        select i.item::int, flowfabric._id(i.partition, i.id) as own_id, i.same_id, i.known, h.item as same_key, h.owner
        from items i left join held h on h.namespace = i.namespace and h.key = i.key
        order by i.item
    loop
        owners[it.item] := case
            when it.known or made[it.same_id] then it.own_id
            else coalesce(it.owner, flowfabric._id(partitions[takers[it.same_key]], ids[takers[it.same_key]])) end;
        if owners[it.item] is null then
            made[it.same_id] := true;
            if it.same_key is not null then
                takers[it.same_key] := it.item;
            end if;
        elsif it.item = it.same_key and it.owner is null then
            strays := strays || it.item;
        end if;
    end loop;

    -- Taken for an item whose id an earlier one turned out to have made: it is the next one's, or nobody's.
    foreach stray in array strays loop
        delete from flowfabric.idempotency_keys k
        where k.partition = _find_owners.key_partitions[stray] and k.namespace = _find_owners.namespaces[stray]
          and k.key = _find_owners.keys[stray];
        insert into flowfabric.idempotency_keys (partition, namespace, key, execution_partition, execution, expires_at)
        select _find_owners.key_partitions[stray], _find_owners.namespaces[stray], _find_owners.keys[stray], _find_owners.partitions[t.item],
               _find_owners.ids[t.item], _find_owners.expiries[t.item]
        from (select takers[stray] as item) t where t.item is not null;
    end loop;
    return owners;
end $$;

-- The execution that an id or a key stands for already. A submission whose reply was lost is repeated later, when its lane may
-- be draining or its deadline over: it must still be told that it was taken.
--
--   returns  the execution's id, or null when there is none
create or replace function flowfabric._standing_owner(partition int, id uuid, key_partition int, namespace text, key text, now timestamptz)
returns text
language sql stable as $$
    select coalesce(
        (select flowfabric._id(e.partition, e.id) from flowfabric.executions e
         where e.partition = _standing_owner.partition and e.id = _standing_owner.id),
        (select flowfabric._id(k.execution_partition, k.execution) from flowfabric.idempotency_keys k
         where k.partition = _standing_owner.key_partition and k.namespace = _standing_owner.namespace and k.key = _standing_owner.key
           and (k.expires_at > _standing_owner.now
                or exists (select from flowfabric.tickets t where t.partition = k.execution_partition and t.id = k.execution))))
$$;

-- Which items of a batch, refused because their lane is draining, their deadline is over or their flow is, stand for one that
-- exists already; but not only since a later item of the same call.
--
--   returns  the owner's id per item, in order; null where there is none
create or replace function flowfabric._late_owners(
    partitions int[], ids uuid[], keys text[], key_partitions int[], namespaces text[], deadlines_at timestamptz[], faults jsonb[],
    made boolean[], now timestamptz)
returns text[]
language plpgsql stable as $$
begin
    return array(
        select case when x.owner <> all (array(
            select flowfabric._id(partitions[i], ids[i]) from generate_series(x.item + 1, cardinality(ids)) i where made[i])) then x.owner end
        from (select i as item, case
                  when faults[i] ->> 'code' in ('lane_draining', 'flow_not_found', 'flow_already_terminal', 'flow_too_large') or faults[i] ->> 'code' = 'invalid_time' and deadlines_at[i] <= now then
                      flowfabric._standing_owner(partitions[i], ids[i], key_partitions[i], namespaces[i], keys[i], now) end as owner
              from generate_series(1, cardinality(ids)) i) x
        order by x.item);
end $$;

-- Write records and tickets for the items of a call, with their tags and their lines in the log, save those to be passed
-- over. An id that is in use, or comes a second time, is passed over too. Each item is a microsecond younger than the one
-- before: order within a call is age, and the age says which item a record is of.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  whether it was written, per item; null when all were
create or replace function flowfabric._write_submissions(
    options_of int[], partitions int[], ids uuid[], payloads bytea[], priorities int[], dues timestamptz[], deadlines timestamptz[],
    tags jsonb[], passed boolean[], routes int[], lanes text[], tasks text[], encodings text[], creators text[], policies jsonb[],
    now timestamptz, flows uuid[])
returns boolean[]
language plpgsql as $$
#variable_conflict use_column
declare
    total constant int := cardinality(ids);
    ages timestamptz[];
    made boolean[];
    fresh record;
begin
    with recorded as (
        insert into flowfabric.executions (partition, id, route, task, payload, encoding, creator, tags, policy, created_at)
        select partitions[x.item], ids[x.item], routes[x.option], tasks[x.option], payloads[x.item], encodings[x.option], creators[x.option],
               tags[x.item], policies[x.option], now + x.item * interval '1 microsecond'
        from (select i as item, options_of[i] as option from generate_series(1, total) i where passed[i] is not true) x
        -- By id, so that two batches with the same ids cannot deadlock. Minted ids are ordered by time, and so grow with the ages.
        order by 2, 1, x.item
        on conflict do nothing
        returning created_at
    )
    select array_agg(r.created_at) into ages from recorded r;
    if cardinality(ages) = cardinality(array_positions(passed, false)) then
        made := array(select not p from unnest(passed) p);
    elsif cardinality(ages) = total is not true then
        made := array(select now + i * interval '1 microsecond' = any (ages) is true from generate_series(1, total) i);
    end if;

    insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, deadline_at, bytes, eligibility, reason)
    select partitions[x.item], ids[x.item], routes[x.option], lanes[x.option], least(greatest(coalesce(priorities[x.item], 0), 0), 9000),
           now + x.item * interval '1 microsecond', x.due_at, deadlines[x.item], flowfabric._large(octet_length(payloads[x.item])),
           case when x.due_at is null then 'eligible_now'::flowfabric.eligibility else 'not_eligible_until_time' end,
           case when x.due_at is null then 'waiting_for_worker'::flowfabric.reason else 'waiting_for_delay' end
    from (select i as item, options_of[i] as option, dues[i] as due_at from generate_series(1, total) i where made is null or made[i]) x;
    if tags is not null then
        insert into flowfabric.tags (partition, execution, key, value, created_at)
        select partitions[i], ids[i], t.key, t.value, now + i * interval '1 microsecond'
        from generate_series(1, total) i cross join lateral jsonb_each_text(tags[i]) t
        where made is null or made[i];
    end if;

    if made is null and cardinality(tasks) = 1 then
        perform flowfabric._append_each('execution_submitted', partitions::smallint[], ids, array_fill(routes[1], array[total]), tags,
                                        array_fill(jsonb_build_object('task', tasks[1]), array[total]), flows => flows);
    elsif ages is not null then
        select array_agg(partitions[i]::smallint) as partitions, array_agg(ids[i]) as ids, array_agg(routes[options_of[i]]) as routes,
               array_agg(tags[i]) as tags, array_agg(jsonb_build_object('task', tasks[options_of[i]])) as details, array_agg(flows[i]) as flows
        into fresh from generate_series(1, total) i where made is null or made[i];
        perform flowfabric._append_each('execution_submitted', fresh.partitions, fresh.ids, fresh.routes, fresh.tags, fresh.details,
                                        flows => fresh.flows);
    end if;
    return made;
end $$;

-- Read all options of a call.
--
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, as a value
--   returns  a column each, in the order given
create or replace function flowfabric._read_all_options(
    given text[], out tasks text[], out lanes text[], out namespaces text[], out needs jsonb[], out budgets text[], out quotas text[],
    out encodings text[], out creators text[], out policies jsonb[], out windows interval[], out routes int[], out faults jsonb[])
language plpgsql stable as $$
declare
    option record;
begin
    for number in 1 .. cardinality(given) loop
        option := flowfabric._read_options(given[number]::jsonb);
        tasks[number] := option.task;
        lanes[number] := option.lane;
        namespaces[number] := option.namespace;
        needs[number] := option.needs;
        budgets[number] := option.budgets;
        quotas[number] := option.quotas;
        encodings[number] := option.encoding;
        creators[number] := option.creator;
        policies[number] := option.policy;
        windows[number] := option.dedup_window;
        routes[number] := option.route;
        faults[number] := option.fault;
    end loop;
end $$;

-- What fresh work of some routes looks like to people: a budget or a quota may keep it waiting. Routes without pay nothing.
--
--   returns  one of the words of the state vector each, in the order given; null for routes that have neither
create or replace function flowfabric._fresh_states(routes int[], budgets text[], quotas text[], now timestamptz)
returns text[]
language plpgsql stable as $$
declare
    states text[] := '{}';
begin
    for number in 1 .. coalesce(cardinality(routes), 0) loop
        if routes[number] is not null and (budgets[number] <> '{}' or quotas[number] <> '{}') then
            states[number] := case when flowfabric._admission(routes[number], now) in ('blocked_by_budget', 'blocked_by_quota')
                then 'rate_limited' else 'waiting' end;
        end if;
    end loop;
    return states;
end $$;

-- Write record and ticket of a call's only item, one without tags and times: what most calls are, in as few statements as
-- can be.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  whether it was written: not when its id is in use
create or replace function flowfabric._write_plain(
    partition int, id uuid, route int, lane text, task text, payload bytea, encoding text, creator text, policy jsonb, priority int,
    created_at timestamptz)
returns boolean
language plpgsql as $$
#variable_conflict use_variable
begin
    perform flowfabric._lock_log();
    with recorded as (
        insert into flowfabric.executions (partition, id, route, task, payload, encoding, creator, policy, created_at)
        values (partition, id, route, task, payload, encoding, creator, policy, created_at)
        on conflict do nothing
        returning 1
    ), ticketed as (
        insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, bytes, eligibility, reason)
        select partition, id, route, lane, least(greatest(coalesce(priority, 0), 0), 9000), created_at, flowfabric._large(octet_length(payload)),
               'eligible_now', 'waiting_for_worker'
        from recorded
    )
    insert into flowfabric.events (at, kind, partition, execution, route, detail)
    select flowfabric.clock(), 'execution_submitted', partition, id, route, jsonb_build_object('task', task) from recorded;
    return found;
end $$;

-- What is wrong with the items of a call, and when they are due. A column is null when no item has anything in it.
--
--   refuses  invalid_body, payload_too_large, invalid_time, invalid_tag_key, invalid_tag, as a value
--   returns  faults, those of their options first; and of items that are good the moments they are due and must be over, and tags
create or replace function flowfabric._judge_submissions(
    options_of int[], option_faults jsonb[], payloads bytea[], payload_limit int, keys text[], delays_ms bigint[], delays_until timestamptz[],
    deadlines_ms bigint[], deadlines_at timestamptz[], tags text[], now timestamptz, out faults jsonb[], out dues timestamptz[],
    out deadlines timestamptz[], out labels jsonb[])
language plpgsql stable as $$
#variable_conflict use_column
begin
    select array_agg(coalesce(option_faults[options_of[x.item]], x.fault)),
           array_agg(case when x.fault is null then
               nullif(greatest(coalesce(delays_until[x.item], now + delays_ms[x.item] * interval '1 ms'), now), now) end),
           array_agg(case when x.fault is null then coalesce(deadlines_at[x.item], now + deadlines_ms[x.item] * interval '1 ms') end),
           array_agg(case when x.fault is null then tags[x.item]::jsonb end)
    into faults, dues, deadlines, labels
    from (select i as item, flowfabric._submission_fault(keys[i], octet_length(payloads[i]), payload_limit, delays_ms[i],
                                delays_until[i], deadlines_ms[i], deadlines_at[i], tags[i], now) as fault
          from generate_series(1, cardinality(options_of)) i offset 0) x;
    if array_remove(faults, null) = '{}' then
        faults := null;
    end if;
    if tags is null then
        labels := null;
    end if;
end $$;

-- Take work in, many items at once: as if one after the other, and one bad item harms no other. `options` holds what
-- items have in common, once each; `options_of` says which of them an item has, from 1, and may be null where there is
-- one. A lane or a route that is new is made only for an item that is written. Ages are counted from now, or from the
-- moment given, which keeps the order of a call that goes in several statements side by side.
--
--   moves    – → runnable: eligible_now, or not_eligible_until_time if it is due later; lane – → active, when it is new
--   locks    the flows it gives members, in key order; idempotency keys, in key order
--   emits    execution_submitted; lane_registered, when a lane is new; flow_member_added, for members
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, flow_not_found, flow_already_terminal, wrong_partition, flow_too_large, per item; invalid_limit over
--            1 000 items
--   returns  per item 'created' {public_state}, 'duplicate' {execution_id}, or its refusal
create or replace function flowfabric.submit(
    options text[], options_of int[], partitions int[], ids uuid[], payloads bytea[] default null, keys text[] default null,
    key_partitions int[] default null, priorities int[] default null, delays_ms bigint[] default null,
    delays_until timestamptz[] default null, deadlines_ms bigint[] default null, deadlines_at timestamptz[] default null,
    tags text[] default null, payload_limit int default 1048576, counted_from timestamptz default null, flows uuid[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    is_bare constant boolean := num_nonnulls(keys, delays_ms, delays_until, deadlines_ms, deadlines_at, tags, flows) = 0;
    option record;
    faults jsonb[]; -- null when there is none
    dues timestamptz[];
    deadlines timestamptz[];
    labels jsonb[];
    owners text[];
    routes int[];
    passed boolean[];
    made boolean[]; -- null when all are
    late text[];
    states text[];
begin
    if cardinality(ids) > 1000 then
        perform flowfabric._refuse('invalid_limit', format('%s items in one call; send at most 1 000', cardinality(ids)));
    elsif is_bare and cardinality(ids) = 1 then
        option := flowfabric._read_options(options[coalesce(options_of[1], 1)]::jsonb);
        if option.route is not null and not coalesce(octet_length(payloads[1]) > payload_limit, false) and flowfabric._write_plain(
            partitions[1], ids[1], option.route, option.lane, option.task, payloads[1], option.encoding, option.creator, option.policy, priorities[1],
            coalesce(counted_from, now) + interval '1 microsecond') then
            states := flowfabric._fresh_states(array[option.route], array[option.budgets::text], array[option.quotas::text], now);
            return query values (1, 'created', null::text, '{"public_state": "' || coalesce(states[1], 'waiting') || '"}');
            return;
        end if;
    end if;

    option := flowfabric._read_all_options(options);
    routes := option.routes;
    options_of := coalesce(options_of, array_fill(1, array[cardinality(ids)]));
    if not is_bare or array_remove(option.faults, null) <> '{}' or flowfabric._are_large(payloads, payload_limit) then
        select j.* into faults, dues, deadlines, labels from flowfabric._judge_submissions(
            options_of, option.faults, payloads, payload_limit, keys, delays_ms, delays_until, deadlines_ms, deadlines_at, tags, now) j;
    end if;
    if flows is not null then
        faults := flowfabric._joining_faults(faults, partitions, ids, flows);
    end if;
    if keys is not null then
        owners := flowfabric._find_owners(partitions, ids, keys, key_partitions, array(select option.namespaces[t] from unnest(options_of) t),
            array(select now + option.windows[t] from unnest(options_of) t), array(select faults[i] is not null from generate_series(1, cardinality(ids)) i));
    end if;
    if array_position(routes, null) is not null then
        routes := flowfabric._make_routes(routes, option.lanes, option.namespaces, option.needs, option.budgets, option.quotas, array(
            select distinct on (x.partition, x.id) x.option
            from unnest(submit.options_of, submit.partitions, submit.ids, faults, owners)
                 with ordinality as x (option, partition, id, fault, owner, item)
            left join lateral (
                select e.id from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e on true
            where x.fault is null and x.owner is null and e.id is null
            order by x.partition, x.id, x.item));
    end if;

    if faults is not null or owners is not null or array_position(routes, null) is not null then
        passed := array(select faults[i] is not null or owners[i] is not null or routes[options_of[i]] is null
                        from generate_series(1, cardinality(ids)) i);
    end if;
    made := flowfabric._write_submissions(
        options_of, partitions, ids, payloads, priorities, dues, deadlines, labels, passed, routes, option.lanes, option.tasks, option.encodings,
        option.creators, option.policies, coalesce(counted_from, now), flows);
    if flows is not null then
        perform flowfabric._join_flows(partitions, ids, flows, made);
    end if;

    if faults is not null then
        late := flowfabric._late_owners(partitions, ids, keys, key_partitions, array(select option.namespaces[t] from unnest(options_of) t),
                                        deadlines_at, faults, made, now);
        faults := array(select case when late[i] is null then faults[i] end from generate_series(1, cardinality(ids)) i);
        owners := array(select coalesce(late[i], owners[i]) from generate_series(1, cardinality(ids)) i);
    end if;

    states := flowfabric._fresh_states(routes, option.budgets, option.quotas, now);
    return query
    select i, case when faults[i] is not null then null when made is null or made[i] then 'created' else 'duplicate' end, faults[i] ->> 'code',
           case when faults[i] is not null then (faults[i] - 'code')::text
                when not made[i] then jsonb_build_object('execution_id', coalesce(owners[i], flowfabric._id(partitions[i], ids[i])))::text
                when dues[i] is not null then '{"public_state": "delayed"}'
                else '{"public_state": "' || coalesce(states[options_of[i]], 'waiting') || '"}' end
    from generate_series(1, cardinality(ids)) i;
end $$;
