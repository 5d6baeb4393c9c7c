-- Submitting: from what was asked to a record and a ticket, many at once.

-- Read the terms that submissions have in common: what to run, where, under which policy. Read once per call, however
-- many items share them.
--
--   moves    lane – → active, when it is new
--   emits    lane_registered, when it is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, as a value
--   returns  the terms as they are stored, or the fault
create or replace function flowfabric._read_terms(
    given jsonb, out kind text, out namespace text, out encoding text, out creator text, out policy jsonb, out dedup_window interval,
    out route int, out fault jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    unknown text;
begin
    given := jsonb_strip_nulls(given);
    kind := given ->> 'kind';
    encoding := given ->> 'encoding';
    creator := given ->> 'creator';
    namespace := coalesce(given ->> 'namespace', 'default');
    policy := nullif(given -> 'policy', '{}');
    select f.name into unknown from jsonb_object_keys(given) f (name)
    where f.name not in ('kind', 'namespace', 'lane', 'needs', 'budgets', 'quotas', 'policy', 'encoding', 'creator');

    fault := case
        when unknown is not null then
            flowfabric._fault('invalid_body', format('%s: there is no such field; leave it out', unknown), jsonb_build_object('field', unknown))
        when coalesce(octet_length(kind), 0) not between 1 and 256 then
            flowfabric._fault('invalid_name', format('kind %s: a kind is 1 to 256 bytes', flowfabric._shown(kind)))
        when octet_length(encoding) not between 1 and 64 then
            flowfabric._fault('invalid_body', format('encoding %s: an encoding is 1 to 64 bytes', flowfabric._shown(encoding)), '{"field": "encoding"}')
        when octet_length(creator) > 256 then
            flowfabric._fault('invalid_body', format('creator %s: a creator is at most 256 bytes', flowfabric._shown(creator)), '{"field": "creator"}')
        else flowfabric._policy_fault(policy)
    end;
    if fault is null then
        select a.route, a.fault into route, fault
        from flowfabric._accept_route(
            coalesce(given ->> 'lane', 'default'), namespace,
            coalesce(given -> 'needs', '[]'), coalesce(given -> 'budgets', '[]'), coalesce(given -> 'quotas', '[]')) a;
    end if;
    dedup_window := make_interval(secs => coalesce((policy ->> 'dedup_window_ms')::numeric, 86400000)::double precision / 1000);
end $$;

-- What is wrong with one submission besides its terms.
--
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

-- Which execution each idempotency key stands for: the one given here where the key is free, else the one that has it.
-- A key is taken for its window and for as long as its execution is unfinished. Waits for another transaction that is
-- taking the same key. The keys given are distinct.
--
--   locks    the keys, in key order
--   returns  the execution of each key
create or replace function flowfabric._take_keys(
    partitions int[], namespaces text[], keys text[], execution_partitions int[], executions uuid[], expiries timestamptz[])
returns table (namespace text, key text, execution_partition smallint, execution uuid)
language plpgsql as $$
#variable_conflict use_column
declare
    held int;
begin
    loop
        insert into flowfabric.idempotency_keys (partition, namespace, key, execution_partition, execution, expires_at)
        select w.* from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys,
                               _take_keys.execution_partitions, _take_keys.executions, _take_keys.expiries)
                        as w (partition, namespace, key, execution_partition, execution, expires_at)
        order by w.partition, w.namespace, w.key
        on conflict do nothing;

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
    update flowfabric.idempotency_keys k
    set execution_partition = w.execution_partition, execution = w.execution, expires_at = w.expires_at
    from unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys, _take_keys.execution_partitions,
                _take_keys.executions, _take_keys.expiries)
         as w (partition, namespace, key, execution_partition, execution, expires_at)
    where k.partition = w.partition and k.namespace = w.namespace and k.key = w.key
      and k.expires_at <= flowfabric.clock() and (k.execution_partition, k.execution) <> (w.execution_partition, w.execution)
      and not exists (select from flowfabric.tickets t where t.partition = k.execution_partition and t.id = k.execution);

    return query
    select k.namespace, k.key, k.execution_partition, k.execution
    from flowfabric.idempotency_keys k
    join unnest(_take_keys.partitions, _take_keys.namespaces, _take_keys.keys) as w (partition, namespace, key)
      on k.partition = w.partition and k.namespace = w.namespace and k.key = w.key;
end $$;

-- Which items of a batch stand for an execution that exists already: by their id, by an earlier item, or by their key.
-- Only called when some item has a key; without one the insert itself finds what exists.
--
--   locks    the keys, in key order
--   returns  the owner's id per item, in order; null where the item stands for itself
create or replace function flowfabric._find_owners(
    partitions int[], ids uuid[], keys text[], key_partitions int[], namespaces text[], expiries timestamptz[], refused boolean[])
returns text[]
language sql as $$
    with items as (
        select x.*, count(*) filter (where not x.refused) over (partition by x.partition, x.id order by x.item) > 1
                    or exists (select from flowfabric.executions e where e.partition = x.partition and e.id = x.id) as known
        from unnest(_find_owners.partitions, _find_owners.ids, _find_owners.keys, _find_owners.key_partitions,
                    _find_owners.namespaces, _find_owners.expiries, _find_owners.refused)
             with ordinality as x (partition, id, key, key_partition, namespace, expires_at, refused, item)
    ), firsts as (
        select distinct on (i.namespace, i.key) i.* from items i
        where i.key is not null and not i.refused and not i.known
        order by i.namespace, i.key, i.item
    ), owned as (
        select k.* from (
            select array_agg(f.key_partition) as key_partitions, array_agg(f.namespace) as namespaces, array_agg(f.key) as keys,
                   array_agg(f.partition) as partitions, array_agg(f.id) as ids, array_agg(f.expires_at) as expiries
            from firsts f) a
        cross join lateral flowfabric._take_keys(a.key_partitions, a.namespaces, a.keys, a.partitions, a.ids, a.expiries) k
        where a.keys is not null
    )
    select array_agg(case
        when i.refused then null
        when i.known then flowfabric._id(i.partition, i.id)
        when (o.execution_partition, o.execution) <> (i.partition, i.id) then flowfabric._id(o.execution_partition, o.execution)
    end order by i.item)
    from items i left join owned o on o.namespace = i.namespace and o.key = i.key and not i.known
$$;

-- Write records and tickets for these items, with their tags and their line in the log. An id that is in use, or comes a
-- second time, is passed over. Each item is a microsecond younger than the one before: order within a call is age.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  the numbers of the items that were written
create or replace function flowfabric._write_submissions(
    items int[], partitions int[], ids uuid[], routes int[], kinds text[], payloads bytea[], encodings text[], creators text[],
    policies jsonb[], priorities int[], dues timestamptz[], deadlines timestamptz[], tags jsonb[], now timestamptz)
returns int[]
language plpgsql as $$
#variable_conflict use_column
declare
    fresh record;
begin
    with asked as (
        select x.*, _write_submissions.now + x.item * interval '1 microsecond' as created_at
        from unnest(_write_submissions.items, partitions, ids, routes, kinds, payloads, encodings, creators, policies,
                    priorities, dues, deadlines, _write_submissions.tags)
             as x (item, partition, id, route, kind, payload, encoding, creator, policy, priority, due_at, deadline_at, tags)
    ), recorded as (
        insert into flowfabric.executions (partition, id, route, kind, payload, encoding, creator, tags, policy, created_at)
        select a.partition, a.id, a.route, a.kind, a.payload, a.encoding, a.creator, a.tags, a.policy, a.created_at
        from asked a order by a.item
        on conflict do nothing
        returning partition, id
    ), mine as (
        select distinct on (a.partition, a.id) a.* from asked a join recorded r on r.partition = a.partition and r.id = a.id
        order by a.partition, a.id, a.item
    ), ticketed as (
        insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, deadline_at, eligibility, reason)
        select m.partition, m.id, m.route, r.lane, least(greatest(coalesce(m.priority, 0), 0), 9000), m.created_at, m.due_at, m.deadline_at,
               case when m.due_at is null then 'eligible_now' else 'not_eligible_until_time' end::flowfabric.eligibility,
               case when m.due_at is null then 'waiting_for_worker' else 'waiting_for_delay' end::flowfabric.reason
        from mine m join flowfabric.routes r on r.id = m.route
    ), tagged as (
        insert into flowfabric.tags (partition, execution, key, value, created_at)
        select m.partition, m.id, t.key, t.value, m.created_at from mine m cross join lateral jsonb_each_text(m.tags) t
        where m.tags is not null
    )
    select array_agg(m.item order by m.item) as items, array_agg(m.partition::smallint order by m.item) as partitions,
           array_agg(m.id order by m.item) as ids, array_agg(m.route order by m.item) as routes,
           array_agg(m.tags order by m.item) as tags,
           array_agg(jsonb_build_object('kind', m.kind) order by m.item) as details
    into fresh from mine m;

    if fresh.items is not null then
        perform flowfabric._append_each('execution_submitted', fresh.partitions, fresh.ids, fresh.routes, fresh.tags, fresh.details);
    end if;
    return coalesce(fresh.items, '{}');
end $$;

-- Take work in, many items at once: as if one after the other, and one bad item harms no other. `terms` holds what
-- items have in common, once each; `term_of` says which of them an item has, from 1.
--
--   moves    – → runnable: eligible_now, or not_eligible_until_time if it is due later
--   locks    idempotency keys, in key order
--   emits    execution_submitted
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, per item; invalid_limit over 1 000 items
--   returns  per item 'created' {public_state}, 'duplicate' {execution_id}, or its refusal
create or replace function flowfabric.submit(
    terms text[], term_of int[], partitions int[], ids uuid[], payloads bytea[] default null, keys text[] default null,
    key_partitions int[] default null, priorities int[] default null, delays_ms bigint[] default null,
    delays_until timestamptz[] default null, deadlines_ms bigint[] default null, deadlines_at timestamptz[] default null,
    tags text[] default null, payload_limit int default 1048576)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    term record;
    faults jsonb[];
    dues timestamptz[];
    deadlines timestamptz[];
    owners text[];
    written int[];
begin
    if cardinality(ids) > 1000 then
        perform flowfabric._refuse('invalid_limit', format('%s items in one call; send at most 1 000', cardinality(ids)));
    end if;

    select array_agg(t.kind order by g.number) as kinds, array_agg(t.namespace order by g.number) as namespaces,
           array_agg(t.encoding order by g.number) as encodings, array_agg(t.creator order by g.number) as creators,
           array_agg(t.policy order by g.number) as policies, array_agg(t.dedup_window order by g.number) as windows,
           array_agg(t.route order by g.number) as routes, array_agg(t.fault order by g.number) as faults
    into term
    from unnest(submit.terms) with ordinality as g (given, number) cross join lateral flowfabric._read_terms(g.given::jsonb) t;

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

    select flowfabric._write_submissions(
        array_agg(x.item::int), array_agg(x.partition), array_agg(x.id), array_agg(term.routes[x.term]), array_agg(term.kinds[x.term]),
        array_agg(x.payload), array_agg(term.encodings[x.term]), array_agg(term.creators[x.term]), array_agg(term.policies[x.term]),
        array_agg(x.priority), array_agg(x.due_at), array_agg(x.deadline_at), array_agg(x.tags::jsonb), now)
    into written
    from unnest(submit.term_of, submit.partitions, submit.ids, submit.payloads, submit.priorities, dues, deadlines, submit.tags, faults, owners)
         with ordinality as x (term, partition, id, payload, priority, due_at, deadline_at, tags, fault, owner, item)
    where x.fault is null and x.owner is null;

    return query
    select x.item::int,
           case when x.fault is not null then null when w.item is not null then 'created' else 'duplicate' end,
           x.fault ->> 'code',
           case when x.fault is not null then (x.fault - 'code')::text
                when w.item is null then jsonb_build_object('execution_id', coalesce(x.owner, flowfabric._id(x.partition, x.id)))::text
                when x.due_at is null then '{"public_state": "waiting"}' else '{"public_state": "delayed"}' end
    from unnest(submit.partitions, submit.ids, dues, faults, owners) with ordinality as x (partition, id, due_at, fault, owner, item)
    left join unnest(written) w (item) on w.item = x.item
    order by x.item;
end $$;
