-- Signals: messages to a waitpoint, sent by anyone who holds its token. The token is checked before anything else.

-- Signals as JSON, for the handler that waited for them.
--
--   returns  a JSON list in the order of their ids; payloads in base64
create or replace function flowfabric._signals_text(partition int, execution uuid, ids uuid[])
returns text
language plpgsql stable as $$
begin
    if coalesce(cardinality(_signals_text.ids), 0) = 0 then
        return '[]';
    end if;
    return (select '[' || coalesce(string_agg(flowfabric._signal_text(s), ','), '') || ']'
            from unnest(_signals_text.ids) as x (id)
            cross join lateral flowfabric._signal(_signals_text.partition, _signals_text.execution, x.id) s);
end $$;

-- One signal as JSON, for the handler that waited for it. Concatenated as text: json_build_object takes twice as long.
--
--   returns  its fields as JSON, the payload in base64
create or replace function flowfabric._signal_text(signal flowfabric.signals)
returns text
language sql stable as $$
    select '{"signal_id":"' || (_signal_text.signal).id::text
        || '","name":' || to_json((_signal_text.signal).name)::text
        || ',"category":' || to_json((_signal_text.signal).category)::text
        || ',"source_type":' || to_json((_signal_text.signal).source_type)::text
        || ',"source_identity":' || to_json((_signal_text.signal).source_identity)::text
        || ',"at":' || to_json((_signal_text.signal).at)::text
        || coalesce(',"waitpoint_id":"' || (_signal_text.signal).waitpoint::text || '"', '')
        || coalesce(',"correlation_id":' || to_json((_signal_text.signal).correlation_id)::text, '')
        || coalesce(',"encoding":' || to_json((_signal_text.signal).encoding)::text, '')
        || coalesce(',"payload":"' || replace(encode((_signal_text.signal).payload, 'base64'), E'\n', '') || '"', '')
        || '}'
$$;

-- The size of one signal as JSON: the payload in base64, and the other fields.
--
--   returns  about how many bytes
create or replace function flowfabric._signal_bytes(payload int)
returns int
language sql immutable as $$
    select coalesce(_signal_bytes.payload, 0) / 3 * 4 + 500
$$;

-- The size of signals as JSON. Only their lengths are read, not their payloads.
--
--   returns  about how many bytes
create or replace function flowfabric._signals_bytes(partition int, execution uuid, ids uuid[])
returns bigint
language plpgsql stable as $$
begin
    if coalesce(cardinality(_signals_bytes.ids), 0) = 0 then
        return 0;
    end if;
    return (select coalesce(sum(flowfabric._signal_bytes(octet_length(s.payload))), 0)
            from unnest(_signals_bytes.ids) as x (id)
            cross join lateral flowfabric._signal(_signals_bytes.partition, _signals_bytes.execution, x.id) s);
end $$;

-- Read the signals that ended a wait, in pages of 1 MiB: those that neither a claim nor a page of the journal can hold.
-- The suspension of a single wait has the id of that wait.
--
--   returns  {signals, following}: the number of signals read so far, null if these are the last
create or replace function flowfabric.read_signals(partition int, id uuid, suspension uuid, following int default 0)
returns text
language plpgsql stable as $$
declare
    most constant int := 2000; -- more do not fit into a page
    ids uuid[];
    taken int;
begin
    select w.satisfiers[greatest(read_signals.following, 0) + 1 :] into ids from flowfabric.waits w
    where w.partition = read_signals.partition and w.execution = read_signals.id and w.id = read_signals.suspension;
    select coalesce(max(x.place) filter (where x.size <= 1048576 or x.place = 1), 0) into taken from (
        select x.place, sum(flowfabric._signal_bytes(octet_length(s.payload))) over (order by x.place) as size
        from unnest(ids[: most]) with ordinality as x (id, place)
        cross join lateral flowfabric._signal(read_signals.partition, read_signals.id, x.id) s) x;
    return '{"signals":' || flowfabric._signals_text(read_signals.partition, read_signals.id, ids[: taken])
        || case when taken < cardinality(ids)
                then ',"following":' || (greatest(read_signals.following, 0) + taken)::text else '' end || '}';
end $$;

-- Read one signal of an execution with a row comparison and `limit 1`. With equality, the planner may instead search
-- all signals of the execution, of which there may be thousands.
create or replace function flowfabric._signal(partition int, execution uuid, id uuid)
returns setof flowfabric.signals
language sql stable rows 1 as $$
    select f.* from (
        select s.* from flowfabric.signals s
        where (s.partition, s.execution, s.id) >= (_signal.partition::smallint, _signal.execution, _signal.id)
        order by s.partition, s.execution, s.id limit 1) f
    where f.id = _signal.id and f.execution = _signal.execution
$$;

-- A signal in the form that `_judge` takes.
--
--   returns  {id, waitpoint, name, source_type, source_identity}
create or replace function flowfabric._signal_to_judge(
    id uuid, key text, name text, source_type text, source_identity text)
returns jsonb
language sql immutable as $$
    select jsonb_build_object(
        'id', _signal_to_judge.id, 'waitpoint', _signal_to_judge.key, 'name', _signal_to_judge.name,
        'source_type', _signal_to_judge.source_type, 'source_identity', _signal_to_judge.source_identity)
$$;

-- The signals that have arrived at the waitpoints of an open wait. A decision of an authenticated person counts if it
-- was made on this question, or before any question and not about something else. If the wait is bound, only the
-- signals that carry the digest of its `about` count.
--
--   returns  a row per signal
create or replace function flowfabric._arrived_signals(wait flowfabric.waits)
returns table (number int, id uuid, key text, name text, source_type text, source_identity text)
language plpgsql stable as $$
begin
    return query
    select s.number, s.id, p.key::text, s.name, s.source_type, s.source_identity
    from unnest(wait.waitpoints) as g (id)
    cross join lateral (select p.id, p.key from flowfabric.waitpoints p where p.id = g.id offset 0) p
    cross join lateral (
        select s.id, s.number, s.name, s.source_type, s.source_identity, s.digest, s.question
        from flowfabric.signals s where s.waitpoint = p.id offset 0) s
    where (not wait.bind or s.digest = wait.about_digest)
      and (s.source_type <> 'operator' or s.question = flowfabric._question(wait.id, wait.about_digest)
           or s.question is null and coalesce(s.digest = wait.about_digest, true));
end $$;

-- The signals that have arrived at the waitpoints of an open wait, in the form that `_judge` takes.
--
--   returns  the signals, in order of arrival
create or replace function flowfabric._signals_to_judge(wait flowfabric.waits)
returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(
        flowfabric._signal_to_judge(a.id, a.key, a.name, a.source_type, a.source_identity) order by a.number), '[]')
    from flowfabric._arrived_signals(_signals_to_judge.wait) a
$$;

-- Count the signals that have arrived for an open wait: by leaf of its condition, how many distinct values the matching
-- signals have. `_count_signal` then counts later signals without reading these again. `sources` are the sources of the
-- later signals; `values` lists no others.
--
--   returns  {leaf: {count, values}}
create or replace function flowfabric._tally(wait flowfabric.waits, sources text[])
returns jsonb
language plpgsql stable as $$
begin
    return (
        with arrived as materialized (select a.* from flowfabric._arrived_signals(_tally.wait) a)
        select jsonb_object_agg(l.leaf::text, jsonb_build_object('count', c.count, 'values', c.values))
        from (select distinct n.node as leaf from flowfabric._nodes(wait.condition) n
              where n.node ->> 'kind' in ('single', 'count')) l
        cross join lateral (
            select count(distinct v.value) + count(*) filter (where v.value is null) as count,
                   coalesce(jsonb_agg(distinct v.value) filter (
                       where v.value is not null and (l.leaf ->> 'of' <> 'distinct_sources'
                                                      or a.source_identity = any (_tally.sources))), '[]') as values
            from arrived a
            cross join lateral flowfabric._value(l.leaf, a.key, a.source_type, a.source_identity) v (value)
            where flowfabric._matches(l.leaf, a.key, a.name, a.source_type)) c);
end $$;

-- Check the fields of a signal, from any sender.
--
--   refuses  invalid_signal, as a value
--   returns  the fault, or null if they are valid
create or replace function flowfabric._signal_fault(
    name text, category text, source_type text, source_identity text, correlation_id text, idempotency_key text,
    digest bytea, encoding text, payload bytea)
returns jsonb
language plpgsql immutable as $$
declare
    field text := case
        when coalesce(octet_length(_signal_fault.name), 0) not between 1 and 128 then 'name'
        when coalesce(octet_length(_signal_fault.category), 0) not between 1 and 64 then 'category'
        when coalesce(octet_length(_signal_fault.source_type), 0) not between 1 and 64 then 'source_type'
        when coalesce(octet_length(_signal_fault.source_identity), 0) not between 1 and 256 then 'source_identity'
        when octet_length(_signal_fault.correlation_id) > 256 then 'correlation_id'
        when octet_length(_signal_fault.idempotency_key) > 256 then 'idempotency_key'
        when octet_length(_signal_fault.digest) <> 32 then 'digest'
        when octet_length(_signal_fault.encoding) not between 1 and 64 then 'encoding' end;
begin
    if field is not null then
        return flowfabric._fault('invalid_signal', format('%s %s is invalid; use %s', field, flowfabric._shown(
            case field when 'name' then _signal_fault.name when 'category' then _signal_fault.category
                       when 'source_type' then _signal_fault.source_type
                       when 'source_identity' then _signal_fault.source_identity
                       when 'correlation_id' then _signal_fault.correlation_id
                       when 'idempotency_key' then _signal_fault.idempotency_key
                       when 'digest' then _signal_fault.digest::text else _signal_fault.encoding end),
            case field when 'name' then '1 to 128 bytes' when 'source_identity' then '1 to 256 bytes'
                       when 'digest' then 'the 32 bytes of a SHA-256'
                       when 'correlation_id' then 'at most 256 bytes' when 'idempotency_key' then 'at most 256 bytes'
                       else '1 to 64 bytes' end),
            jsonb_build_object('field', field));
    end if;
    if octet_length(_signal_fault.payload) > 65536 then
        return flowfabric._oversize_fault('signal payload', octet_length(_signal_fault.payload), 65536);
    end if;
    return null;
end $$;

-- Check the token of a signal, before any state is read. To a caller without a valid token the answer reveals nothing:
-- neither whether the execution or the waitpoint exists, nor their states. `signer` is the signing key that the token
-- names, `point_kid` the kid of the waitpoint; each is null if it does not exist.
--
--   refuses  missing_token, invalid_token, token_expired, as a value
--   returns  the fault, or null if the token is valid
create or replace function flowfabric._token_fault(
    message text, token text, point_kid text, signer flowfabric.keys, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    is_known boolean := signer.kid is not null;
begin
    if coalesce(_token_fault.token, '') = '' then
        return flowfabric._fault('missing_token', 'the signal has no token; pass the token of its waitpoint');
    end if;
    if not is_known then
        _token_fault.signer := row('', _token_fault.now, _token_fault.now, '', '', '')::flowfabric.keys;
    end if;
    -- The digest is computed even if nothing was found, so that the response time reveals no more than the answer.
    if not flowfabric._is_same_digest(
           signer.kid || ':' || flowfabric._hmac(_token_fault.signer, _token_fault.message), _token_fault.token)
       or not is_known or _token_fault.point_kid is distinct from signer.kid then
        return flowfabric._fault('invalid_token',
            'the token is invalid for this waitpoint; use the token that the execution received for it');
    end if;
    if signer.expires_at <= _token_fault.now then
        return flowfabric._fault('token_expired',
            'the token has expired because its signing key was retired; request a new token');
    end if;
    return null;
end $$;

-- Deliver signals to waitpoints, each with the token of its waitpoint, as if one after the other. A signal names its
-- waitpoint by its id, or if that is null, by its key: the newest one, the only one that can be open. A refused signal
-- does not affect the others. Without a valid token nothing is written and nothing is revealed.
--
--   moves    suspended → runnable, if the condition now holds
--   locks    the tickets, in key order
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  per item invalid_signal, payload_too_large, missing_token, invalid_token, token_expired,
--            target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch
--   returns  per item 'accepted' {signal_id, effect, lane?}, 'duplicate' {signal_id of the first}, or its refusal
create or replace function flowfabric.deliver_signal(
    partitions int[], executions uuid[], waitpoints uuid[], tokens text[], names text[], ids uuid[],
    source_types text[], source_identities text[], categories text[] default null, payloads bytea[] default null,
    encodings text[] default null, correlation_ids text[] default null, idempotency_keys text[] default null,
    digests bytea[] default null, wait boolean default true, keys text[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set enable_memoize = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    now timestamptz := flowfabric.clock();
    judged record;
    done record;
begin
    perform flowfabric._limit_waits(deliver_signal.wait);
    if deliver_signal.keys is not null then
        deliver_signal.waitpoints := array(
            select coalesce(x.waitpoint, flowfabric._newest_waitpoint(x.partition, x.execution, x.key))
            from unnest(deliver_signal.partitions, deliver_signal.executions, deliver_signal.waitpoints,
                        deliver_signal.keys) with ordinality as x (partition, execution, waitpoint, key, item)
            order by x.item);
    end if;
    select array_agg(x.item) filter (where x.fault is null) as good,
           array_agg(x.item) filter (where x.fault is not null) as bad,
           array_agg(x.fault) filter (where x.fault is not null) as faults
    into judged
    from (
        select i.item, coalesce(
                   flowfabric._signal_fault(
                       deliver_signal.names[i.item], coalesce(deliver_signal.categories[i.item], 'signal'),
                       deliver_signal.source_types[i.item], deliver_signal.source_identities[i.item],
                       deliver_signal.correlation_ids[i.item], deliver_signal.idempotency_keys[i.item],
                       deliver_signal.digests[i.item], deliver_signal.encodings[i.item],
                       deliver_signal.payloads[i.item]),
                   case when deliver_signal.source_types[i.item] in ('operator', 'system') then
                       flowfabric._fault('invalid_signal', format(
                           'source_type %s is invalid because it is reserved; use another, such as external',
                           flowfabric._shown(deliver_signal.source_types[i.item])), '{"field": "source_type"}') end,
                   flowfabric._token_fault(
                       flowfabric._tagged_id(deliver_signal.partitions[i.item], deliver_signal.executions[i.item])
                           || ':' || coalesce(deliver_signal.waitpoints[i.item]::text, ''),
                       deliver_signal.tokens[i.item], w.kid, k, now)) as fault
        from generate_series(1, cardinality(deliver_signal.ids)) as i (item)
        left join lateral (
            select w.kid, w.partition, w.execution from flowfabric.waitpoints w
            where w.id = deliver_signal.waitpoints[i.item] offset 0) w
            on w.partition = deliver_signal.partitions[i.item] and w.execution = deliver_signal.executions[i.item]
        left join flowfabric.keys k on k.kid = split_part(deliver_signal.tokens[i.item], ':', 1)
        offset 0) x; -- `offset 0`: evaluate each fault once, not once per aggregate
    if judged.bad is not null then
        return query
        select f.item, null, f.fault ->> 'code', (f.fault - 'code')::text
        from unnest(judged.bad, judged.faults) as f (item, fault);
    end if;
    if judged.good is not null then
        done := flowfabric._accept_signals(array(
            select row(i, deliver_signal.partitions[i], deliver_signal.executions[i], deliver_signal.waitpoints[i],
                       deliver_signal.names[i], deliver_signal.ids[i], deliver_signal.source_types[i],
                       deliver_signal.source_identities[i], deliver_signal.categories[i], deliver_signal.payloads[i],
                       deliver_signal.encodings[i], deliver_signal.correlation_ids[i],
                       deliver_signal.idempotency_keys[i], deliver_signal.digests[i])::flowfabric.given_signal
            from unnest(judged.good) i), now);
        if done.effects[1] is not null and cardinality(done.places) = 1 then
            item := done.places[1];
            outcome := 'accepted';
            detail := json_build_object(
                'signal_id', done.signals[1], 'effect', done.effects[1], 'lane', done.lanes[1])::text;
            return next;
            return;
        end if;
        return query
        select a.item, case when a.effect is not null then 'accepted' when a.fault is null then 'duplicate' end,
               a.fault ->> 'code',
               coalesce((a.fault - 'code')::text,
                        json_build_object('signal_id', a.signal, 'effect', a.effect, 'lane', a.lane)::text)
        from unnest(done.places, done.signals, done.effects, done.lanes, done.faults)
             as a (item, signal, effect, lane, fault);
    end if;
end $$;
