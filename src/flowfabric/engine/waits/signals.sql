-- Signals: messages to a waitpoint, from whoever holds its token; the token is judged before anything else is looked at.

-- Signals as they are given to whoever waited for them.
--
--   returns  a JSON list in order of arrival; payloads in base64
create or replace function flowfabric._signals_text(partition int, execution uuid, ids uuid[])
returns text
language sql stable as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
        'signal_id', s.id, 'waitpoint_id', s.waitpoint, 'name', s.name, 'category', s.category, 'source_type', s.source_type,
        'source_identity', s.source_identity, 'at', s.at, 'correlation_id', s.correlation_id, 'encoding', coalesce(s.encoding, 'json'),
        'payload', translate(encode(s.payload, 'base64'), E'\n', ''))) order by s.number), '[]')::text
    from flowfabric.signals s
    where s.partition = _signals_text.partition and s.execution = _signals_text.execution and s.id = any (_signals_text.ids)
$$;

-- Whether the condition of a suspension holds over what has arrived at its waitpoints.
--
--   returns  whether it holds; the signals that count; those that made it hold
create or replace function flowfabric._judge_suspension(
    partition int, execution uuid, suspension uuid, out holds boolean, out counted uuid[], out satisfiers uuid[])
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    asked flowfabric.suspensions;
    arrived jsonb;
    judged record;
begin
    select s.* into asked from flowfabric.suspensions s
    where s.partition = _judge_suspension.partition and s.execution = _judge_suspension.execution and s.id = _judge_suspension.suspension;
    select coalesce(jsonb_agg(jsonb_build_object('id', s.id, 'waitpoint', w.key, 'name', s.name, 'source_type', s.source_type,
                                                 'source_identity', s.source_identity) order by s.number), '[]')
    into arrived
    from flowfabric.waitpoints w
    join flowfabric.signals s on s.partition = w.partition and s.execution = w.execution and s.waitpoint = w.id
    where w.partition = _judge_suspension.partition and w.execution = _judge_suspension.execution and w.suspension = _judge_suspension.suspension
      and (not asked.bind or s.digest = asked.about_digest);
    judged := flowfabric._judge(asked.condition, arrived);
    holds := judged.holds;
    counted := judged.counted::uuid[];
    satisfiers := judged.satisfiers::uuid[];
end $$;

-- What is wrong with the shape of a signal, whoever sends it.
--
--   refuses  invalid_signal, payload_too_large, as a value
--   returns  the fault, or null when it is good
create or replace function flowfabric._signal_fault(
    name text, category text, source_type text, source_identity text, correlation_id text, idempotency_key text, encoding text, payload_bytes int)
returns jsonb
language sql immutable as $$
    select case when f.field is not null then
            flowfabric._fault('invalid_signal', format('%s %s: %s', f.field, flowfabric._shown(f.value), f.remedy), jsonb_build_object('field', f.field))
        when payload_bytes > 65536 then flowfabric._oversize_fault('signal payload', payload_bytes, 65536) end
    from (select 1) one left join lateral (
        select x.field, x.value, x.remedy from (values
            ('name', name, 'give 1 to 128 bytes', octet_length(name) between 1 and 128),
            ('category', category, 'give 1 to 64 bytes', octet_length(category) between 1 and 64),
            ('source_type', source_type, 'give 1 to 64 bytes', octet_length(source_type) between 1 and 64),
            ('source_identity', source_identity, 'give 1 to 256 bytes', octet_length(source_identity) between 1 and 256),
            ('correlation_id', correlation_id, 'give at most 256 bytes', coalesce(octet_length(correlation_id), 0) <= 256),
            ('idempotency_key', idempotency_key, 'give at most 256 bytes', coalesce(octet_length(idempotency_key), 0) <= 256),
            ('encoding', encoding, 'give 1 to 64 bytes', coalesce(octet_length(encoding), 1) between 1 and 64)
        ) x (field, value, remedy, is_good) where x.is_good is not true limit 1) f on true
$$;

-- Judge the token of a signal, before any state is looked at. The answers tell a caller without a good token nothing:
-- neither whether the execution or the waitpoint exists, nor how they stand.
--
--   refuses  missing_token, invalid_token, token_expired, as a value
--   returns  the fault, or null when the token is good
create or replace function flowfabric._token_fault(partition int, execution uuid, waitpoint uuid, token text, now timestamptz)
returns jsonb
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    signer flowfabric.keys;
    point flowfabric.waitpoints;
    expected text;
begin
    if coalesce(token, '') = '' then
        return flowfabric._fault('missing_token', 'a signal needs the token of its waitpoint');
    end if;
    select w.* into point from flowfabric.waitpoints w
    where w.partition = _token_fault.partition and w.execution = _token_fault.execution and w.id = _token_fault.waitpoint;
    select k.* into signer from flowfabric.keys k where k.kid = split_part(token, ':', 1);
    -- Hashed also where nothing was found, so that the time tells no more than the answer.
    expected := flowfabric._hmac(coalesce(signer, row('', now, now, '', '', '')::flowfabric.keys),
                                 flowfabric._id(_token_fault.partition, _token_fault.execution) || ':' || _token_fault.waitpoint);
    if signer.kid is null or point.kid is distinct from signer.kid
       or not flowfabric._is_same_digest(expected, flowfabric._digest_part(token)) then
        return flowfabric._fault('invalid_token', 'the token is not good for this waitpoint');
    end if;
    if signer.expires_at <= now then
        return flowfabric._fault('token_expired', 'the key that signed the token has been retired; ask for a new one');
    end if;
    return null;
end $$;

-- Record a signal whose sender may send it, and let it take effect. Meets a suspension of the same execution on the
-- ticket: neither can miss the other.
--
--   moves    suspended → runnable, when its condition holds now
--   locks    the ticket
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  'accepted' {signal_id, effect}, 'duplicate' {signal_id of the first}, or the fault; and the lane with work again
create or replace function flowfabric._accept_signal(
    given flowfabric.signals, now timestamptz, out outcome text, out signal_id uuid, out effect text, out fault jsonb, out lane text)
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    ticket flowfabric.tickets;
    point flowfabric.waitpoints;
    holds boolean := false;
    counted uuid[];
    satisfiers uuid[];
begin
    select t.* into ticket from flowfabric.tickets t where t.partition = given.partition and t.id = given.execution for update;
    select s.id into signal_id from flowfabric.signals s
    where s.partition = given.partition and (s.execution = given.execution and s.id = given.id
       or s.waitpoint = given.waitpoint and s.idempotency_key = given.idempotency_key and s.at > now - interval '24 hours')
    order by s.number limit 1;
    if found then
        outcome := 'duplicate';
        return;
    end if;
    select w.* into point from flowfabric.waitpoints w
    where w.partition = given.partition and w.execution = given.execution and w.id = given.waitpoint;
    fault := flowfabric._delivery_fault(given, ticket, point, now);
    if fault is not null then
        return;
    end if;

    outcome := 'accepted';
    signal_id := given.id;
    given.at := now;
    given.number := (select coalesce(max(s.number), 0) + 1 from flowfabric.signals s where s.partition = given.partition and s.execution = given.execution);
    given.effect := 'buffered_for_pending_waitpoint';
    insert into flowfabric.signals select given.*;
    effect := given.effect;
    if point.state = 'active' then
        select j.holds, j.counted, j.satisfiers into holds, counted, satisfiers
        from flowfabric._judge_suspension(given.partition, given.execution, point.suspension) j;
        effect := flowfabric._effect(given, point, holds, counted);
        update flowfabric.signals s set effect = _accept_signal.effect
        where s.partition = given.partition and s.execution = given.execution and s.id = given.id;
    end if;
    perform flowfabric._append_about('signal_delivered', given.partition, given.execution,
        case when given.source_type = 'operator' then given.source_identity end, jsonb_build_object(
        'signal_id', given.id, 'waitpoint_id', given.waitpoint, 'name', given.name, 'source_type', given.source_type,
        'source_identity', given.source_identity, 'effect', effect, 'digest', encode(given.digest, 'hex'), 'kid', point.kid));
    if holds then
        perform flowfabric._resume(array[given.partition], array[given.execution], 'signal', satisfiers);
        lane := ticket.lane;
    end if;
end $$;

-- Why a signal with a good token cannot be delivered.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the fault, or null when it can
create or replace function flowfabric._delivery_fault(
    given flowfabric.signals, ticket flowfabric.tickets, point flowfabric.waitpoints, now timestamptz)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
declare
    asked flowfabric.suspensions;
    most int;
    ended flowfabric.outcome;
begin
    if ticket.id is null then
        select e.outcome into ended from flowfabric.executions e where e.partition = given.partition and e.id = given.execution;
        return flowfabric._fault('target_not_signalable', format('the execution has ended: %s', flowfabric._ended_state(ended)),
                                 jsonb_build_object('outcome', ended));
    end if;
    if point.state = 'closed' or point.expires_at <= now then
        return flowfabric._fault('waitpoint_closed', format('waitpoint %s takes no more signals', point.key));
    end if;
    select least(coalesce((e.policy ->> 'max_signals')::int, 10000), 10000) into most
    from flowfabric.executions e where e.partition = given.partition and e.id = given.execution;
    if (select coalesce(max(s.number), 0) from flowfabric.signals s where s.partition = given.partition and s.execution = given.execution) >= most
       or point.state = 'pending' and (select count(*) from flowfabric.signals s
           where s.partition = given.partition and s.execution = given.execution and s.waitpoint = point.id) >= 1000 then
        return flowfabric._fault('signal_limit_exceeded', format('the execution has had as many signals as it may have (%s)', most));
    end if;
    select s.* into asked from flowfabric.suspensions s
    where s.partition = point.partition and s.execution = point.execution and s.id = point.suspension;
    if asked.bind and given.digest is distinct from asked.about_digest and given.source_type = 'operator' then
        return flowfabric._fault('approval_digest_mismatch',
            'what was decided on is not what is asked now: read the request again and send its digest with the decision');
    end if;
    return null;
end $$;

-- What a signal did.
--
--   returns  the word for it
create or replace function flowfabric._effect(given flowfabric.signals, point flowfabric.waitpoints, holds boolean, counted uuid[])
returns text
language plpgsql stable as $$
#variable_conflict use_column
declare
    condition jsonb;
begin
    select s.condition into condition from flowfabric.suspensions s
    where s.partition = point.partition and s.execution = point.execution and s.id = point.suspension;
    return case
        when condition ->> 'kind' in ('operator_only', 'timeout_only') then 'no_op'
        when holds then 'resume_condition_satisfied'
        when given.id = any (counted) then 'appended_to_waitpoint'
        when not point.key = any (flowfabric._named_keys(condition)) then 'signal_ignored_not_in_condition'
        when exists (
            select from flowfabric._nodes(condition) n
            where (n.node ->> 'waitpoint' = point.key or n.node -> 'waitpoints' ? point.key)
              and coalesce(n.node ->> 'name', given.name) = given.name
              and coalesce(n.node ->> 'source_type', given.source_type) = given.source_type) then 'appended_to_waitpoint_duplicate'
        else 'signal_ignored_matcher_failed'
    end;
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
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    x record;
    given flowfabric.signals;
    fault jsonb;
    answer record;
begin
    for x in
        select * from unnest(partitions, executions, waitpoints, tokens, names, ids, source_types, source_identities, categories, payloads,
                             encodings, correlation_ids, idempotency_keys, digests)
                      with ordinality as i (partition, execution, waitpoint, token, name, id, source_type, source_identity, category, payload,
                                            encoding, correlation_id, idempotency_key, digest, item)
        order by i.partition, i.execution, i.item
    loop
        item := x.item;
        given := row(x.partition, 0, now, x.execution, x.id, x.waitpoint, x.name, coalesce(x.category, 'signal'), x.source_type, x.source_identity,
                     '', x.correlation_id, nullif(x.idempotency_key, ''), x.digest, x.encoding, x.payload)::flowfabric.signals;
        fault := coalesce(
            flowfabric._signal_fault(given.name, given.category, given.source_type, given.source_identity, given.correlation_id, given.idempotency_key,
                                     given.encoding, octet_length(given.payload)),
            case when given.source_type in ('operator', 'system') then flowfabric._fault('invalid_signal',
                format('source_type %s is not for senders to use', given.source_type), '{"field": "source_type"}') end,
            flowfabric._token_fault(x.partition, x.execution, x.waitpoint, x.token, now));
        outcome := null;
        if fault is null then
            answer := flowfabric._accept_signal(given, now);
            fault := answer.fault;
            outcome := answer.outcome;
            detail := jsonb_strip_nulls(jsonb_build_object('signal_id', answer.signal_id, 'effect', answer.effect, 'lane', answer.lane))::text;
        end if;
        if fault is not null then
            detail := (fault - 'code')::text;
        end if;
        refusal := fault ->> 'code';
        return next;
    end loop;
end $$;
