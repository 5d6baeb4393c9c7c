-- Submitting: one piece of work or thousands, in a transaction of our own or of the caller's.

-- Read the terms that submissions have in common: what to run, where, under which policy. Read once per call, however
-- many items share them.
--
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, as a value
--   returns  the terms as they are stored, with their route if it is known; or the fault
create or replace function flowfabric._read_terms(
    given jsonb, out kind text, out lane text, out namespace text, out needs jsonb, out budgets uuid[], out quotas uuid[], out encoding text,
    out creator text, out policy jsonb, out dedup_window interval, out route int, out fault jsonb)
language plpgsql stable as $$
#variable_conflict use_column
begin
    given := jsonb_strip_nulls(given);
    fault := flowfabric._terms_fault(given);
    if fault is not null then
        return;
    end if;

    kind := given ->> 'kind';
    lane := coalesce(given ->> 'lane', 'default');
    namespace := coalesce(given ->> 'namespace', 'default');
    needs := coalesce(given -> 'needs', '[]');
    encoding := given ->> 'encoding';
    creator := given ->> 'creator';
    policy := nullif(given -> 'policy', '{}');
    dedup_window := coalesce((policy ->> 'dedup_window_ms')::bigint, 86400000) * interval '1 ms';
    fault := flowfabric._route_fault(lane, namespace, needs, coalesce(given -> 'budgets', '[]'), coalesce(given -> 'quotas', '[]'));
    if fault is null then
        budgets := flowfabric._budget_ids(namespace, coalesce(given -> 'budgets', '[]'));
        quotas := flowfabric._quota_ids(namespace, coalesce(given -> 'quotas', '[]'));
        route := flowfabric._known_route(lane, namespace, flowfabric._sorted_set(needs), budgets, quotas);
    end if;
end $$;

-- What is wrong with terms, besides the words of their route. Plain expressions, so that good terms cost next to nothing.
--
--   refuses  invalid_body, invalid_name, invalid_policy, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._terms_fault(given jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    unknown constant jsonb := given - '{kind,namespace,lane,needs,budgets,quotas,policy,encoding,creator}'::text[];
    field text;
begin
    if unknown <> '{}' then
        field := (select min(f.name) from jsonb_object_keys(unknown) f (name));
        return flowfabric._fault('invalid_body', format('%s: there is no such field; leave it out', flowfabric._shown(field)),
                                 jsonb_build_object('field', field));
    end if;
    foreach field in array '{kind,namespace,lane,encoding,creator}'::text[] loop
        if jsonb_typeof(given -> field) <> 'string' then
            return flowfabric._fault('invalid_body', format('%s %s: give a text', field, flowfabric._shown((given -> field)::text)),
                                     jsonb_build_object('field', field));
        end if;
    end loop;
    if coalesce(octet_length(given ->> 'kind'), 0) not between 1 and 256 then
        return flowfabric._fault('invalid_name', format('kind %s: a kind is 1 to 256 bytes', flowfabric._shown(given ->> 'kind')));
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

-- What is wrong with one submission besides its terms.
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

        perform from flowfabric.idempotency_keys k
        join unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys) as w (partition, namespace, key)
          on k.partition = w.partition and k.namespace = w.namespace and k.key = w.key
        order by k.partition, k.namespace, k.key
        for update of k;
        get diagnostics held = row_count;
        -- Fewer, when the sweep has just forgotten one that the insert still ran into.
        exit when held = cardinality(_take_keys.keys);
    end loop;

    -- A statement after the lock: only now can it be seen whether the execution that has the key is unfinished.
    with moved as (
        update flowfabric.idempotency_keys k
        set execution_partition = w.execution_partition, execution = w.execution, expires_at = w.expires_at
        from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys, _take_keys.execution_partitions,
                    _take_keys.executions, _take_keys.expiries)
             with ordinality as w (partition, namespace, key, execution_partition, execution, expires_at, number)
        where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key
          and not w.number = any (taken) and k.expires_at <= flowfabric.clock()
          and not exists (select from flowfabric.tickets t where t.partition = k.execution_partition and t.id = k.execution)
        returning w.number
    )
    select taken || coalesce(array_agg(m.number), '{}') into taken from moved m;

    return (
        select array_agg(case when not w.number = any (taken) then flowfabric._id(k.execution_partition, k.execution) end order by w.number)
        from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys) with ordinality as w (partition, namespace, key, number)
        join flowfabric.idempotency_keys k on k.partition = w.partition and k.namespace = w.namespace and k.key = w.key);
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
            select x.*, first_value(x.item) over (partition by x.partition, x.id order by x.item)::int as same_id,
                   exists (select from flowfabric.executions e where e.partition = x.partition and e.id = x.id) as known
            from unnest(_find_owners.partitions, _find_owners.ids, _find_owners.keys, _find_owners.key_partitions,
                        _find_owners.namespaces, _find_owners.expiries, _find_owners.refused)
                 with ordinality as x (partition, id, key, key_partition, namespace, expires_at, refused, item)
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

-- Write records and tickets for these items, with their tags and their line in the log. An id that is in use, or comes a
-- second time, is passed over. Each item is a microsecond younger than the one before: order within a call is age, and
-- the age says which item a record is of.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  the numbers of the items that were written
create or replace function flowfabric._write_submissions(
    items int[], partitions int[], ids uuid[], routes int[], lanes text[], kinds text[], payloads bytea[], encodings text[],
    creators text[], policies jsonb[], priorities int[], dues timestamptz[], deadlines timestamptz[], tags jsonb[], now timestamptz)
returns int[]
language plpgsql as $$
#variable_conflict use_column
declare
    ages timestamptz[];
    fresh record;
begin
    with recorded as (
        insert into flowfabric.executions (partition, id, route, kind, payload, encoding, creator, tags, policy, created_at)
        select x.partition, x.id, x.route, x.kind, x.payload, x.encoding, x.creator, x.tags, x.policy,
               _write_submissions.now + x.item * interval '1 microsecond'
        from unnest(items, partitions, ids, routes, kinds, payloads, encodings, creators, _write_submissions.tags, policies)
             as x (item, partition, id, route, kind, payload, encoding, creator, tags, policy)
        order by x.partition, x.id, x.item -- by key, so that two batches with the same ids cannot deadlock
        on conflict do nothing
        returning created_at
    )
    select array_agg(r.created_at) into ages from recorded r;

    with mine as (
        select x.*, _write_submissions.now + x.item * interval '1 microsecond' as created_at
        from unnest(items, partitions, ids, routes, lanes, kinds, priorities, dues, deadlines, _write_submissions.tags)
             as x (item, partition, id, route, lane, kind, priority, due_at, deadline_at, tags)
        where cardinality(ages) = cardinality(items) or _write_submissions.now + x.item * interval '1 microsecond' = any (ages)
    ), ticketed as (
        insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, deadline_at, eligibility, reason)
        select m.partition, m.id, m.route, m.lane, least(greatest(coalesce(m.priority, 0), 0), 9000), m.created_at, m.due_at, m.deadline_at,
               case when m.due_at is null then 'eligible_now'::flowfabric.eligibility else 'not_eligible_until_time' end,
               case when m.due_at is null then 'waiting_for_worker'::flowfabric.reason else 'waiting_for_delay' end
        from mine m
    ), tagged as (
        insert into flowfabric.tags (partition, execution, key, value, created_at)
        select m.partition, m.id, t.key, t.value, m.created_at from mine m cross join lateral jsonb_each_text(m.tags) t
        where m.tags is not null
    )
    select array_agg(m.item) as items, array_agg(m.partition::smallint) as partitions, array_agg(m.id) as ids,
           array_agg(m.route) as routes, array_agg(m.tags) as tags, array_agg(jsonb_build_object('kind', m.kind)) as details
    into fresh from mine m;

    if fresh.items is not null then
        perform flowfabric._append_each('execution_submitted', fresh.partitions, fresh.ids, fresh.routes, fresh.tags, fresh.details);
    end if;
    return coalesce(fresh.items, '{}');
end $$;

-- Read all terms of a call.
--
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, as a value
--   returns  a column each, in the order given
create or replace function flowfabric._read_all_terms(
    given text[], out kinds text[], out lanes text[], out namespaces text[], out needs jsonb[], out budgets text[], out quotas text[],
    out encodings text[], out creators text[], out policies jsonb[], out windows interval[], out routes int[], out faults jsonb[])
language plpgsql stable as $$
declare
    term record;
begin
    for number in 1 .. cardinality(given) loop
        term := flowfabric._read_terms(given[number]::jsonb);
        kinds[number] := term.kind;
        lanes[number] := term.lane;
        namespaces[number] := term.namespace;
        needs[number] := term.needs;
        budgets[number] := term.budgets;
        quotas[number] := term.quotas;
        encodings[number] := term.encoding;
        creators[number] := term.creator;
        policies[number] := term.policy;
        windows[number] := term.dedup_window;
        routes[number] := term.route;
        faults[number] := term.fault;
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

-- Take work in, many items at once: as if one after the other, and one bad item harms no other. `terms` holds what
-- items have in common, once each; `term_of` says which of them an item has, from 1, and may be null where there is
-- one. A lane or a route that is new is made only for an item that is written. Ages are counted from now, or from the
-- moment given, which keeps the order of a call that goes in several statements side by side.
--
--   moves    – → runnable: eligible_now, or not_eligible_until_time if it is due later; lane – → active, when it is new
--   locks    idempotency keys, in key order
--   emits    execution_submitted; lane_registered, when a lane is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, per item; invalid_limit over 1 000 items
--   returns  per item 'created' {public_state}, 'duplicate' {execution_id}, or its refusal
create or replace function flowfabric.submit(
    terms text[], term_of int[], partitions int[], ids uuid[], payloads bytea[] default null, keys text[] default null,
    key_partitions int[] default null, priorities int[] default null, delays_ms bigint[] default null,
    delays_until timestamptz[] default null, deadlines_ms bigint[] default null, deadlines_at timestamptz[] default null,
    tags text[] default null, payload_limit int default 1048576, counted_from timestamptz default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    term record := flowfabric._read_all_terms(submit.terms);
    faults jsonb[];
    dues timestamptz[];
    deadlines timestamptz[];
    owners text[];
    routes int[] := term.routes;
    written int[];
    states text[];
    late record;
begin
    if cardinality(ids) > 1000 then
        perform flowfabric._refuse('invalid_limit', format('%s items in one call; send at most 1 000', cardinality(ids)));
    end if;
    term_of := coalesce(term_of, array_fill(1, array[cardinality(ids)]));

    select array_agg(coalesce(term.faults[x.term], f.fault) order by x.item),
           array_agg(case when f.fault is null then nullif(greatest(coalesce(x.delay_until, now + x.delay_ms * interval '1 ms'), now), now) end order by x.item),
           array_agg(case when f.fault is null then coalesce(x.deadline_at, now + x.deadline_ms * interval '1 ms') end order by x.item)
    into faults, dues, deadlines
    from unnest(submit.term_of, submit.payloads, submit.keys, submit.delays_ms, submit.delays_until, submit.deadlines_ms,
                submit.deadlines_at, submit.tags)
         with ordinality as x (term, payload, key, delay_ms, delay_until, deadline_ms, deadline_at, tags, item)
    cross join lateral (select flowfabric._submission_fault(
        x.key, octet_length(x.payload), submit.payload_limit, x.delay_ms, x.delay_until, x.deadline_ms, x.deadline_at, x.tags, now)) f (fault);

    if submit.keys is not null then
        select flowfabric._find_owners(submit.partitions, submit.ids, submit.keys, submit.key_partitions,
            array_agg(term.namespaces[x.term] order by x.item), array_agg(now + term.windows[x.term] order by x.item),
            array_agg(faults[x.item] is not null order by x.item))
        into owners from unnest(submit.term_of) with ordinality as x (term, item);
    end if;

    if array_position(routes, null) is not null then
        routes := flowfabric._make_routes(routes, term.lanes, term.namespaces, term.needs, term.budgets, term.quotas, array(
            select distinct on (x.partition, x.id) x.term
            from unnest(submit.term_of, submit.partitions, submit.ids, faults, owners)
                 with ordinality as x (term, partition, id, fault, owner, item)
            where x.fault is null and x.owner is null
              and not exists (select from flowfabric.executions e where e.partition = x.partition and e.id = x.id)
            order by x.partition, x.id, x.item));
    end if;

    select flowfabric._write_submissions(
        array_agg(x.item::int), array_agg(x.partition), array_agg(x.id), array_agg(routes[x.term]), array_agg(term.lanes[x.term]),
        array_agg(term.kinds[x.term]), array_agg(x.payload), array_agg(term.encodings[x.term]), array_agg(term.creators[x.term]), array_agg(term.policies[x.term]),
        array_agg(x.priority), array_agg(x.due_at), array_agg(x.deadline_at), array_agg(x.tags::jsonb),
        coalesce(counted_from, now))
    into written
    from unnest(submit.term_of, submit.partitions, submit.ids, submit.payloads, submit.priorities, dues, deadlines, submit.tags, faults, owners)
         with ordinality as x (term, partition, id, payload, priority, due_at, deadline_at, tags, fault, owner, item)
    where x.fault is null and x.owner is null and routes[x.term] is not null;

    for late in
        select x.item, flowfabric._standing_owner(x.partition, x.id, x.key_partition, term.namespaces[x.term], x.key, now) as owner
        from unnest(submit.term_of, submit.partitions, submit.ids, submit.keys, submit.key_partitions, submit.deadlines_at, faults)
             with ordinality as x (term, partition, id, key, key_partition, deadline_at, fault, item)
        where x.fault ->> 'code' = 'lane_draining' or x.fault ->> 'code' = 'invalid_time' and x.deadline_at <= now
    loop
        -- Unless it stands only since a later item of this call.
        if late.owner is not null and late.owner <> all (array(select flowfabric._id(partitions[w], ids[w]) from unnest(written) w where w > late.item)) then
            faults[late.item] := null;
            owners := coalesce(owners, array_fill(null::text, array[cardinality(ids)]));
            owners[late.item] := late.owner;
        end if;
    end loop;

    states := flowfabric._fresh_states(routes, term.budgets, term.quotas, now);
    return query
    select x.item::int,
           case when x.fault is not null then null when x.made then 'created' else 'duplicate' end,
           x.fault ->> 'code',
           case when x.fault is not null then (x.fault - 'code')::text
                when not x.made then jsonb_build_object('execution_id', coalesce(x.owner, flowfabric._id(x.partition, x.id)))::text
                when x.due_at is not null then '{"public_state": "delayed"}'
                else format('{"public_state": "%s"}', coalesce(states[x.term], 'waiting')) end
    from (select x.*, cardinality(written) = cardinality(ids) or x.item = any (written) as made
          from unnest(submit.term_of, submit.partitions, submit.ids, dues, faults, owners)
               with ordinality as x (term, partition, id, due_at, fault, owner, item)) x
    order by x.item;
end $$;
