-- Signals: messages to a waitpoint, from whoever holds its token. The token is judged before anything else is looked at.

-- Signals as they are given to whoever waited for them.
--
--   returns  a JSON list in order of arrival; payloads in base64
create or replace function flowfabric._signals_text(partition int, execution uuid, ids uuid[])
returns text
language plpgsql stable as $$
#variable_conflict use_column
begin
    return (select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
        'signal_id', s.id, 'waitpoint_id', s.waitpoint, 'name', s.name, 'category', s.category, 'source_type', s.source_type,
        'source_identity', s.source_identity, 'at', s.at, 'correlation_id', s.correlation_id, 'encoding', coalesce(s.encoding, 'json'),
        'payload', translate(encode(s.payload, 'base64'), E'\n', ''))) order by s.number), '[]')::text
    from unnest(_signals_text.ids) as x (id)
    cross join lateral flowfabric._signal(_signals_text.partition, _signals_text.execution, x.id) s);
end $$;

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
        from flowfabric.waitpoints w
        join flowfabric.signals s on s.waitpoint = w.id
        where w.suspension = suspension.id
          and (not suspension.bind or s.digest = suspension.about_digest));
end $$;

-- What is wrong with the shape of a signal, whoever sends it.
--
--   refuses  invalid_signal, payload_too_large, as a value
--   returns  the fault, or null when it is good
create or replace function flowfabric._signal_fault(given flowfabric.signals)
returns jsonb
language plpgsql immutable as $$
declare
    field text := case
        when coalesce(octet_length(given.name), 0) not between 1 and 128 then 'name'
        when coalesce(octet_length(given.category), 0) not between 1 and 64 then 'category'
        when coalesce(octet_length(given.source_type), 0) not between 1 and 64 then 'source_type'
        when coalesce(octet_length(given.source_identity), 0) not between 1 and 256 then 'source_identity'
        when octet_length(given.correlation_id) > 256 then 'correlation_id'
        when octet_length(given.idempotency_key) > 256 then 'idempotency_key'
        when octet_length(given.digest) <> 32 then 'digest'
        when octet_length(given.encoding) not between 1 and 64 then 'encoding' end;
begin
    if field is not null then
        return flowfabric._fault('invalid_signal', format('%s %s: give %s', field, flowfabric._shown(to_jsonb(given) ->> field),
            case field when 'name' then '1 to 128 bytes' when 'source_identity' then '1 to 256 bytes' when 'digest' then 'the 32 bytes of a SHA-256'
                       when 'correlation_id' then 'at most 256 bytes' when 'idempotency_key' then 'at most 256 bytes' else '1 to 64 bytes' end),
            jsonb_build_object('field', field));
    end if;
    return case when octet_length(given.payload) > 65536 then flowfabric._oversize_fault('signal payload', octet_length(given.payload), 65536) end;
end $$;

-- Judge the token of a signal, before any state is looked at. The answers tell a caller without a good token nothing:
-- neither whether the execution or the waitpoint exists, nor how they stand. `signer` is the key that the token names and
-- `point_kid` the one the waitpoint was made with, where there are such.
--
--   refuses  missing_token, invalid_token, token_expired, as a value
--   returns  the fault, or null when the token is good
create or replace function flowfabric._token_fault(message text, token text, point_kid text, signer flowfabric.keys, now timestamptz)
returns jsonb
language plpgsql immutable as $$
declare
    expected text;
begin
    if coalesce(token, '') = '' then
        return flowfabric._fault('missing_token', 'a signal needs the token of its waitpoint');
    end if;
    -- Hashed also where nothing was found, so that the time tells no more than the answer.
    expected := flowfabric._hmac(case when signer.kid is null then row('', now, now, '', '', '')::flowfabric.keys else signer end, message);
    if signer.kid is null or point_kid is distinct from signer.kid
       or not flowfabric._is_same_digest(signer.kid || ':' || expected, token) then
        return flowfabric._fault('invalid_token', 'the token is not good for this waitpoint');
    end if;
    if signer.expires_at <= now then
        return flowfabric._fault('token_expired', 'the key that signed the token has been retired; ask for a new one');
    end if;
    return null;
end $$;

-- The signal that this one repeats: the same id on its execution, or the same key on its waitpoint within 24 hours. What
-- authenticated people decide has keys of its own, so that no holder of a token can take theirs beforehand.
--
--   returns  its id, or null when there is none
create or replace function flowfabric._first_delivery(given flowfabric.signals, now timestamptz)
returns uuid
language plpgsql stable as $$
#variable_conflict use_column
declare
    first_id uuid;
begin
    select s.id into first_id from flowfabric.signals s
    where s.partition = given.partition and s.execution = given.execution and s.id = given.id;
    if first_id is null and given.idempotency_key is not null then
        select s.id into first_id from flowfabric.signals s
        where s.waitpoint = given.waitpoint and s.idempotency_key = given.idempotency_key
          and s.at > now - interval '24 hours' and (s.source_type = 'operator') = (given.source_type = 'operator')
        order by s.number limit 1;
    end if;
    return first_id;
end $$;

-- Why a signal whose sender may send it cannot be taken now. `known` is what `_weigh` has read.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the fault, or null when it can
create or replace function flowfabric._delivery_fault(given flowfabric.signals, known record, now timestamptz)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
begin
    if known.lane is null then
        return flowfabric._fault('target_not_signalable', format('the execution has ended: %s', flowfabric._ended_state(known.outcome)),
                                 jsonb_build_object('outcome', known.outcome));
    end if;
    if known.state = 'closed' or known.expires_at <= now then
        return flowfabric._fault('waitpoint_closed', format('waitpoint %s takes no more signals', known.key));
    end if;
    -- The engine's own do not count: ends of children, and times that have come.
    if known.last_number >= known.most and known.last_number - known.most >= (
        select count(*) from flowfabric.signals s
        where s.partition = given.partition and s.execution = given.execution and s.source_type = 'system') then
        return flowfabric._fault('signal_limit_exceeded', format('the execution has had as many signals as it may have (%s)', known.most));
    end if;
    if known.state = 'pending' and 1000 <= (
        select count(*) from (select from flowfabric.signals s where s.waitpoint = given.waitpoint limit 1000) s) then
        return flowfabric._fault('signal_limit_exceeded', 'the waitpoint has 1 000 signals that nobody has waited for yet; let the execution suspend first');
    end if;
    if (known.suspension).bind and given.digest is distinct from (known.suspension).about_digest then
        return flowfabric._fault('approval_digest_mismatch',
            'what was decided on is not what is asked now: read the request again and send its digest with the decision');
    end if;
    return null;
end $$;

-- Whether an execution goes on once this wait is over: it is in that suspension, and waits for nothing else.
--
--   returns  true also for a suspension that is no part of another
create or replace function flowfabric._is_last(wait flowfabric.suspensions)
returns boolean
language plpgsql stable as $$
#variable_conflict use_column
begin
    if wait.within is null then
        return true;
    end if;
    return exists (select from flowfabric.tickets t where t.partition = wait.partition and t.id = wait.execution
                   and t.phase = 'suspended' and t.suspension = wait.within)
       and not exists (
           select from flowfabric.suspensions s
           where s.partition = wait.partition and s.execution = wait.execution and s.ended_at is null and s.within = wait.within
             and s.id <> wait.id and s.choice is distinct from coalesce(wait.choice, -1));
end $$;

-- Find out what a signal does. The caller holds the ticket and has judged the token.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the signal with its number and effect; or the id of the one it repeats; or the fault; with the kid of its
--            waitpoint, the digest of what was asked, the lane, what satisfied the condition when it holds now, and the wait
--            that this ends when it is one of several
create or replace function flowfabric._weigh(
    given flowfabric.signals, now timestamptz,
    out signal flowfabric.signals, out first_id uuid, out fault jsonb, out kid text, out digest bytea, out lane text, out satisfiers uuid[],
    out part uuid)
language plpgsql stable as $$
#variable_conflict use_column
declare
    known record;
    judged record;
begin
    first_id := flowfabric._first_delivery(given, now);
    if first_id is not null then
        return;
    end if;
    select e.outcome, t.lane, w.state, w.key, w.kid, w.expires_at, s as suspension, coalesce((e.policy ->> 'max_signals')::int, 10000) as most,
           (select coalesce(max(g.number), 0) from flowfabric.signals g where g.partition = given.partition and g.execution = given.execution) as last_number
    into known
    from flowfabric.executions e
    join flowfabric.waitpoints w on w.partition = e.partition and w.execution = e.id
    left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
    left join flowfabric.suspensions s on s.partition = w.partition and s.execution = w.execution and s.id = w.suspension
    where e.partition = given.partition and e.id = given.execution and w.id = given.waitpoint;
    fault := flowfabric._delivery_fault(given, known, now);
    if fault is not null then
        return;
    end if;

    signal := given;
    signal.number := known.last_number + 1;
    signal.effect := 'buffered_for_pending_waitpoint';
    kid := known.kid;
    lane := known.lane;
    digest := coalesce(given.digest, (known.suspension).about_digest);
    if known.state = 'active' then
        judged := flowfabric._judge((known.suspension).condition,
            case when known.last_number = 0 then '[]' else flowfabric._arrived(known.suspension) end || flowfabric._as_judged(given.id, known.key, given.name, given.source_type, given.source_identity));
        signal.effect := flowfabric._effect((known.suspension).condition, known.key, given.name, given.source_type,
                                            judged.holds and flowfabric._is_last(known.suspension), given.id::text = any (judged.counted));
        satisfiers := case when judged.holds then judged.satisfiers::uuid[] end;
        part := case when (known.suspension).within is not null then (known.suspension).id end;
    end if;
end $$;

-- Record signals whose senders may send them, and let them take effect, as if one after the other. They meet a suspension
-- of the same execution on the ticket: neither can miss the other.
--
--   moves    suspended → runnable, when a condition holds now
--   locks    the tickets, in key order
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  per signal 'accepted' with its effect and the lane with work again, 'duplicate' with the id of the first, or the fault
create or replace function flowfabric._accept_signals(given flowfabric.signals[], now timestamptz, by text default null, note text default null)
returns table (item int, outcome text, signal_id uuid, effect text, lane text, fault jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    rounds int[];
    weighed record;
    resumed record;
begin
    perform t.id from unnest(_accept_signals.given) g join flowfabric.tickets t on t.partition = g.partition and t.id = g.execution
    order by t.partition, t.id for update of t;
    rounds := flowfabric._rounds(array(select g.partition::int from unnest(_accept_signals.given) g), array(select g.execution from unnest(_accept_signals.given) g));
    for round in 1 .. (select coalesce(max(r), 0) from unnest(rounds) r) loop
        -- A statement of its own: one that began before the lock does not see what the lock waited for.
        select array_agg(x.item::int) as items, array_agg(w.first_id) as firsts, array_agg(w.fault) as faults, array_agg(w.lane) as lanes,
               array_agg(w.signal) as signals, array_agg(w.kid) as kids, array_agg(w.digest) as digests, array_agg(w.satisfiers::text) as satisfiers,
               array_agg(w.part) as parts
        into weighed
        from (select g as signal, row_number() over () as item from unnest(_accept_signals.given) g) x
        cross join lateral flowfabric._weigh(x.signal, _accept_signals.now) w
        where rounds[x.item] = round;
        insert into flowfabric.signals select s.* from unnest(weighed.signals) s where s.id is not null;
        perform flowfabric._note_signals(weighed.signals, weighed.kids, weighed.digests, _accept_signals.by, _accept_signals.note);
        for resumed in
            select s.part is not null as is_part, array_agg(s.partition) as partitions, array_agg(s.execution) as ids,
                   array_agg(s.satisfiers) as satisfiers, array_agg(s.part) as parts
            from rows from (unnest(weighed.satisfiers), unnest(weighed.parts), unnest(weighed.signals)) as s (satisfiers, part)
            where s.satisfiers is not null group by 1
        loop
            if resumed.is_part then
                perform flowfabric._end_waits(resumed.partitions, resumed.ids, resumed.parts, 'signal', resumed.satisfiers);
                perform flowfabric._go_on(resumed.partitions, resumed.ids, 'signal');
            else
                perform flowfabric._resume(resumed.partitions, resumed.ids, 'signal', resumed.satisfiers);
            end if;
        end loop;
        return query
        select s.item, case when s.first_id is not null then 'duplicate' when s.fault is null then 'accepted' end, coalesce(s.first_id, s.id), s.effect,
               case when s.effect = 'resume_condition_satisfied' then s.lane end, s.fault
        from rows from (unnest(weighed.items), unnest(weighed.firsts), unnest(weighed.faults), unnest(weighed.lanes),
                        unnest(weighed.signals)) as s (item, first_id, fault, lane);
    end loop;
end $$;

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
    join flowfabric.executions e on e.partition = s.partition and e.id = s.execution;
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
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    judged record;
begin
    select array_agg(x.item) as items, array_agg(x.fault) as faults, array_agg(x.signal) filter (where x.fault is null) as good,
           array_agg(x.item) filter (where x.fault is null) as good_items
    into judged
    from (
        select g.item::int, g.signal, coalesce(
                   flowfabric._signal_fault(g.signal),
                   case when (g.signal).source_type in ('operator', 'system') then flowfabric._fault('invalid_signal',
                       format('source_type %s is not for senders to use', (g.signal).source_type), '{"field": "source_type"}') end,
                   flowfabric._token_fault(flowfabric._id((g.signal).partition, (g.signal).execution) || ':' || (g.signal).waitpoint, g.token, w.kid, k, now))
               as fault
        from (
            select i.item, i.token, row(i.partition, 0, now, i.execution, i.id, i.waitpoint, i.name, coalesce(i.category, 'signal'), i.source_type,
                                        i.source_identity, '', i.correlation_id, nullif(i.idempotency_key, ''), i.digest, i.encoding,
                                        i.payload)::flowfabric.signals as signal
            from unnest(partitions, executions, waitpoints, tokens, names, ids, source_types, source_identities, categories, payloads,
                        encodings, correlation_ids, idempotency_keys, digests)
                 with ordinality as i (partition, execution, waitpoint, token, name, id, source_type, source_identity, category, payload,
                                       encoding, correlation_id, idempotency_key, digest, item)
            offset 0) g
        left join flowfabric.waitpoints w
            on w.partition = (g.signal).partition and w.execution = (g.signal).execution and w.id = (g.signal).waitpoint
        left join flowfabric.keys k on k.kid = split_part(g.token, ':', 1)
        offset 0) x; -- judged once each, not once for every array

    return query
    select f.item, null, f.fault ->> 'code', (f.fault - 'code')::text
    from unnest(judged.items, judged.faults) as f (item, fault) where f.fault is not null
    union all
    select judged.good_items[a.item], a.outcome, a.fault ->> 'code', coalesce((a.fault - 'code')::text,
           jsonb_strip_nulls(jsonb_build_object('signal_id', a.signal_id, 'effect', a.effect, 'lane', a.lane))::text)
    from flowfabric._accept_signals(judged.good, now) a;
end $$;
