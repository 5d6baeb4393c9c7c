-- Signals: messages to a waitpoint, from whoever holds its token. The token is judged before anything else is looked at.

-- Signals as they are given to whoever waited for them.
--
--   returns  a JSON list in the order of their ids; payloads in base64
create or replace function flowfabric._signals_text(partition int, execution uuid, ids uuid[])
returns text
language plpgsql stable as $$
#variable_conflict use_column
begin
    if coalesce(cardinality(_signals_text.ids), 0) = 0 then
        return '[]';
    end if;
    return (select '[' || coalesce(string_agg(flowfabric._signal_text(s), ','), '') || ']'
            from unnest(_signals_text.ids) as x (id) cross join lateral flowfabric._signal(_signals_text.partition, _signals_text.execution, x.id) s);
end $$;

-- One signal as it is given to whoever waited for it. Put together as text: that takes half as long as by json_build_object.
--
--   returns  its fields as JSON, the payload in base64
create or replace function flowfabric._signal_text(signal flowfabric.signals)
returns text
language sql stable as $$
    select '{"signal_id":"' || (signal).id::text || '","name":' || to_json((signal).name)::text || ',"category":' || to_json((signal).category)::text
        || ',"source_type":' || to_json((signal).source_type)::text || ',"source_identity":' || to_json((signal).source_identity)::text
        || ',"at":' || to_json((signal).at)::text || coalesce(',"waitpoint_id":"' || (signal).waitpoint::text || '"', '')
        || coalesce(',"correlation_id":' || to_json((signal).correlation_id)::text, '')
        || coalesce(',"encoding":' || to_json((signal).encoding)::text, '')
        || coalesce(',"payload":"' || replace(encode((signal).payload, 'base64'), E'\n', '') || '"', '') || '}'
$$;

-- One signal of an execution. Written as the first behind a place: asked for by equality, the planner may look for it among
-- all that the execution has got, which may be thousands.
--
--   returns  the signal
create or replace function flowfabric._signal(partition int, execution uuid, id uuid)
returns setof flowfabric.signals
language sql stable rows 1 as $$
    select f.* from (
        select s.* from flowfabric.signals s
        where (s.partition, s.execution, s.id) >= (_signal.partition::smallint, _signal.execution, _signal.id)
        order by s.partition, s.execution, s.id limit 1) f
    where f.id = _signal.id and f.execution = _signal.execution
$$;

-- A signal as a condition looks at it.
--
--   returns  {id, waitpoint, name, source_type, source_identity}
create or replace function flowfabric._as_judged(id uuid, key text, name text, source_type text, source_identity text)
returns jsonb
language sql immutable as $$
    select jsonb_build_object('id', _as_judged.id, 'waitpoint', _as_judged.key, 'name', _as_judged.name,
                              'source_type', _as_judged.source_type, 'source_identity', _as_judged.source_identity)
$$;

-- What has arrived at the waitpoints of an open suspension. When it is bound, only what carries the digest of what was asked.
--
--   returns  the signals as a condition looks at them, in order of arrival
create or replace function flowfabric._arrived(suspension flowfabric.suspensions)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
begin
    return (
        select coalesce(jsonb_agg(flowfabric._as_judged(s.id, w.key, s.name, s.source_type, s.source_identity) order by s.number), '[]')
        from (select w.id, w.key from flowfabric.waitpoints w where w.suspension = suspension.id offset 0) w
        cross join lateral (
            select s.id, s.number, s.name, s.source_type, s.source_identity, s.digest
            from flowfabric.signals s where s.waitpoint = w.id offset 0) s
        where not suspension.bind or s.digest = suspension.about_digest);
end $$;

-- What is wrong with the shape of a signal, whoever sends it.
--
--   refuses  invalid_signal, payload_too_large, as a value
--   returns  the fault, or null when it is good
create or replace function flowfabric._signal_fault(
    name text, category text, source_type text, source_identity text, correlation_id text, idempotency_key text, digest bytea, encoding text,
    payload bytea)
returns jsonb
language plpgsql immutable as $$
declare
    field text := case
        when coalesce(octet_length(name), 0) not between 1 and 128 then 'name'
        when coalesce(octet_length(category), 0) not between 1 and 64 then 'category'
        when coalesce(octet_length(source_type), 0) not between 1 and 64 then 'source_type'
        when coalesce(octet_length(source_identity), 0) not between 1 and 256 then 'source_identity'
        when octet_length(correlation_id) > 256 then 'correlation_id'
        when octet_length(idempotency_key) > 256 then 'idempotency_key'
        when octet_length(digest) <> 32 then 'digest'
        when octet_length(encoding) not between 1 and 64 then 'encoding' end;
begin
    if field is not null then
        return flowfabric._fault('invalid_signal', format('%s %s: give %s', field, flowfabric._shown(
            case field when 'name' then name when 'category' then category when 'source_type' then source_type
                       when 'source_identity' then source_identity when 'correlation_id' then correlation_id
                       when 'idempotency_key' then idempotency_key when 'digest' then digest::text else encoding end),
            case field when 'name' then '1 to 128 bytes' when 'source_identity' then '1 to 256 bytes' when 'digest' then 'the 32 bytes of a SHA-256'
                       when 'correlation_id' then 'at most 256 bytes' when 'idempotency_key' then 'at most 256 bytes' else '1 to 64 bytes' end),
            jsonb_build_object('field', field));
    end if;
    if octet_length(payload) > 65536 then
        return flowfabric._oversize_fault('signal payload', octet_length(payload), 65536);
    end if;
    return null;
end $$;

-- Judge the token of a signal, before any state is looked at. The answers tell a caller without a good token nothing:
-- neither whether the execution or the waitpoint exists, nor how they stand. `signer` is the key that the token names and
-- `point_kid` the one the waitpoint was made with, where there are such.
--
--   refuses  missing_token, invalid_token, token_expired, as a value
--   returns  the fault, or null when the token is good
create or replace function flowfabric._token_fault(message text, token text, point_kid text, signer flowfabric.keys, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    is_known boolean := signer.kid is not null;
begin
    if coalesce(token, '') = '' then
        return flowfabric._fault('missing_token', 'a signal needs the token of its waitpoint');
    end if;
    if not is_known then
        signer := row('', now, now, '', '', '')::flowfabric.keys;
    end if;
    -- Hashed also where nothing was found, so that the time tells no more than the answer.
    if not flowfabric._is_same_digest(signer.kid || ':' || flowfabric._hmac(signer, message), token) or not is_known
       or point_kid is distinct from signer.kid then
        return flowfabric._fault('invalid_token', 'the token is not good for this waitpoint');
    end if;
    if signer.expires_at <= now then
        return flowfabric._fault('token_expired', 'the key that signed the token has been retired; ask for a new one');
    end if;
    return null;
end $$;

-- What the log says about a signal that has come.
--
--   returns  the detail of its event
create or replace function flowfabric._signal_note(
    signal uuid, waitpoint uuid, name text, source_type text, source_identity text, effect text, kid text, digest bytea, note text)
returns jsonb
language sql stable as $$
    select jsonb_object(array['signal_id', signal::text, 'waitpoint_id', waitpoint::text, 'name', name, 'source_type', source_type,
                              'source_identity', source_identity, 'effect', effect, 'kid', kid])
        || case when digest is null and note is null then '{}'
                else jsonb_strip_nulls(jsonb_build_object('digest', encode(digest, 'hex'), 'note', note)) end
$$;

-- Say in the log which signals have come, and what each did.
--
--   emits    signal_delivered
create or replace function flowfabric._note_signals(signals flowfabric.signals[], kids text[], digests bytea[], by text, note text)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    noted record;
begin
    select array_agg(e.partition) as partitions, array_agg(e.id) as ids, array_agg(e.route) as routes, array_agg(e.tags) as tags, array_agg(e.flow) as flows,
           array_agg(jsonb_strip_nulls(jsonb_build_object(
               'signal_id', s.id, 'waitpoint_id', s.waitpoint, 'name', s.name, 'source_type', s.source_type, 'source_identity', s.source_identity,
               'effect', s.effect, 'kid', s.kid, 'digest', encode(s.asked_digest, 'hex'), 'note', flowfabric._kept_text(_note_signals.note)))) as details
    into noted
    from rows from (unnest(_note_signals.kids), unnest(_note_signals.digests), unnest(_note_signals.signals)) as s (kid, asked_digest)
    cross join lateral (
        select e.partition, e.id, e.route, e.tags, e.flow from flowfabric.executions e
        where e.partition = s.partition and e.id = s.execution offset 0) e;
    if noted.ids is not null then
        perform flowfabric._append_each('signal_delivered', noted.partitions, noted.ids, noted.routes, noted.tags, noted.details,
                                        _note_signals.by, noted.flows);
    end if;
end $$;

-- Send signals to waitpoints, each with the token of its own. As if one after the other; one that is refused harms no
-- other, and without a good token nothing is written and nothing is told.
--
--   moves    suspended → runnable, when a condition holds now
--   locks    the tickets, in key order
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  per item invalid_signal, payload_too_large, missing_token, invalid_token, token_expired, target_not_signalable,
--            waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch
--   returns  per item 'accepted' {signal_id, effect, lane?}, 'duplicate' {signal_id of the first}, or its refusal
create or replace function flowfabric.deliver_signal(
    partitions int[], executions uuid[], waitpoints uuid[], tokens text[], names text[], ids uuid[], source_types text[], source_identities text[],
    categories text[] default null, payloads bytea[] default null, encodings text[] default null, correlation_ids text[] default null,
    idempotency_keys text[] default null, digests bytea[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_memoize = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    judged record;
    done record;
begin
    select array_agg(x.item) filter (where x.fault is null) as good, array_agg(x.item) filter (where x.fault is not null) as bad,
           array_agg(x.fault) filter (where x.fault is not null) as faults
    into judged
    from (
        select i.item, coalesce(
                   flowfabric._signal_fault(names[i.item], coalesce(categories[i.item], 'signal'), source_types[i.item], source_identities[i.item],
                       correlation_ids[i.item], idempotency_keys[i.item], digests[i.item], encodings[i.item], payloads[i.item]),
                   case when source_types[i.item] in ('operator', 'system') then flowfabric._fault('invalid_signal',
                       format('source_type %s is not for senders to use', source_types[i.item]), '{"field": "source_type"}') end,
                   flowfabric._token_fault(flowfabric._id(partitions[i.item], executions[i.item]) || ':' || waitpoints[i.item]::text, tokens[i.item],
                       w.kid, k, now)) as fault
        from generate_series(1, cardinality(ids)) as i (item)
        left join lateral (
            select w.kid from flowfabric.waitpoints w
            where w.partition = partitions[i.item] and w.execution = executions[i.item] and w.id = waitpoints[i.item] offset 0) w on true
        left join flowfabric.keys k on k.kid = split_part(tokens[i.item], ':', 1)
        offset 0) x; -- judged once each, not once for every array
    if judged.bad is not null then
        return query
        select f.item, null, f.fault ->> 'code', (f.fault - 'code')::text from unnest(judged.bad, judged.faults) as f (item, fault);
    end if;
    if judged.good is not null then
        done := flowfabric._accept_signals(judged.good, partitions, executions, waitpoints, names, ids, source_types, source_identities, categories,
                                           payloads, encodings, correlation_ids, idempotency_keys, digests, now);
        if done.effects[1] is not null and cardinality(done.places) = 1 then
            item := done.places[1];
            outcome := 'accepted';
            detail := json_build_object('signal_id', done.signals[1], 'effect', done.effects[1], 'lane', done.lanes[1])::text;
            return next;
            return;
        end if;
        return query
        select a.item, case when a.effect is not null then 'accepted' when a.fault is null then 'duplicate' end, a.fault ->> 'code',
               coalesce((a.fault - 'code')::text, json_build_object('signal_id', a.signal, 'effect', a.effect, 'lane', a.lane)::text)
        from unnest(done.places, done.signals, done.effects, done.lanes, done.faults) as a (item, signal, effect, lane, fault);
    end if;
end $$;
