-- Deliveries: what a signal does to the wait that it reaches, once its sender is known to be allowed to send it.

-- The signal that this one repeats: the same id on its execution, or the same key on its waitpoint within 24 hours. What
-- authenticated people decide has keys of its own, so that no holder of a token can take theirs beforehand.
--
--   returns  its id, or null when there is none
create or replace function flowfabric._first_delivery(
    partition int, execution uuid, id uuid, waitpoint uuid, idempotency_key text, source_type text, now timestamptz)
returns uuid
language plpgsql stable as $$
#variable_conflict use_column
declare
    first_id uuid;
begin
    select s.id into first_id from flowfabric.signals s
    where s.partition = _first_delivery.partition and s.execution = _first_delivery.execution and s.id = _first_delivery.id;
    if first_id is null and _first_delivery.idempotency_key is not null then
        select s.id into first_id from flowfabric.signals s
        where s.waitpoint = _first_delivery.waitpoint and s.idempotency_key = _first_delivery.idempotency_key
          and s.at > _first_delivery.now - interval '24 hours' and (s.source_type = 'operator') = (_first_delivery.source_type = 'operator')
        order by s.number limit 1;
    end if;
    return first_id;
end $$;

-- Why a signal whose sender may send it cannot be taken now. `most` is how many signals the execution may have.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the fault, or null when it can
create or replace function flowfabric._delivery_fault(
    given flowfabric.signals, has_ended boolean, point flowfabric.waitpoints, wait flowfabric.suspensions, most int, now timestamptz)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
declare
    outcome flowfabric.outcome;
begin
    if has_ended then
        select e.outcome into outcome from flowfabric.executions e where e.partition = given.partition and e.id = given.execution;
        return flowfabric._fault('target_not_signalable', format('the execution has ended: %s', flowfabric._ended_state(outcome)),
                                 jsonb_build_object('outcome', outcome));
    end if;
    if point.state = 'closed' or point.expires_at <= now then
        return flowfabric._fault('waitpoint_closed', format('waitpoint %s takes no more signals', point.key));
    end if;
    -- The engine's own do not count: ends of children, and times that have come.
    if given.number > most and given.number - 1 - most >= (
        select count(*) from flowfabric.signals s
        where s.partition = given.partition and s.execution = given.execution and s.source_type = 'system') then
        return flowfabric._fault('signal_limit_exceeded', format('the execution has had as many signals as it may have (%s)', most));
    end if;
    if point.state = 'pending' and given.number > 1000 and 1000 <= (
        select count(*) from (select from flowfabric.signals s where s.waitpoint = given.waitpoint limit 1000) s) then
        return flowfabric._fault('signal_limit_exceeded', 'the waitpoint has 1 000 signals that nobody has waited for yet; let the execution suspend first');
    end if;
    if wait.bind and given.digest is distinct from wait.about_digest then
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
    -- As a text: whatever its index, the ticket is looked up by its key.
    return exists (select from flowfabric.tickets t where t.partition = wait.partition and t.id = wait.execution
                   and t.phase::text = 'suspended' and t.suspension = wait.within)
       and not exists (
           select from flowfabric.suspensions s
           where s.partition = wait.partition and s.execution = wait.execution and s.ended_at is null and s.within = wait.within
             and s.id <> wait.id and s.choice is distinct from coalesce(wait.choice, -1));
end $$;

-- Find out what a signal does, whatever the wait it reaches. Its number is the one it would have. The caller holds the ticket and
-- has judged the token.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the id of the signal that it repeats; or the fault; or its effect, with what satisfied the condition when it holds
--            now, and the wait that this ends when it is one of several
create or replace function flowfabric._weigh(
    given flowfabric.signals, has_ended boolean, most int, now timestamptz,
    out first_id uuid, out fault jsonb, out effect text, out satisfiers uuid[], out part uuid)
language plpgsql stable as $$
#variable_conflict use_column
declare
    point flowfabric.waitpoints;
    wait flowfabric.suspensions;
    judged record;
begin
    if given.number > 1 then
        first_id := flowfabric._first_delivery(given.partition, given.execution, given.id, given.waitpoint, given.idempotency_key,
                                               given.source_type, now);
    end if;
    if first_id is not null then
        return;
    end if;
    select w.* into point from flowfabric.waitpoints w
    where w.partition = given.partition and w.execution = given.execution and w.id = given.waitpoint;
    select s.* into wait from flowfabric.suspensions s
    where s.partition = given.partition and s.execution = given.execution and s.id = point.suspension;
    fault := flowfabric._delivery_fault(given, has_ended, point, wait, most, now);
    if fault is not null then
        return;
    end if;
    if point.state <> 'active' then
        effect := 'buffered_for_pending_waitpoint';
        return;
    end if;
    judged := flowfabric._judge(wait.condition, case when given.number = 1 then '[]' else flowfabric._arrived(wait) end
        || flowfabric._as_judged(given.id, point.key, given.name, given.source_type, given.source_identity));
    effect := flowfabric._effect(wait.condition, point.key, given.name, given.source_type, judged.holds and flowfabric._is_last(wait),
                                 given.id::text = any (judged.counted));
    satisfiers := case when judged.holds then judged.satisfiers::uuid[] end;
    part := case when wait.within is not null then wait.id end;
end $$;

-- Record signals whose senders may send them, and let them take effect, as if one after the other: those that `items` names
-- among what is given. They meet a suspension of the same execution on the ticket: neither can miss the other.
--
--   moves    suspended → runnable, when a condition holds now
--   locks    the tickets, in key order
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  per item its signal with its effect and the lane with work again; without an effect the first one that it repeats,
--            or the fault
create or replace function flowfabric._accept_signals(
    items int[], partitions int[], executions uuid[], waitpoints uuid[], names text[], ids uuid[], source_types text[], source_identities text[],
    categories text[], payloads bytea[], encodings text[], correlation_ids text[], idempotency_keys text[], digests bytea[],
    now timestamptz, by text default null, note text default null,
    out places int[], out signals uuid[], out effects text[], out lanes text[], out faults jsonb[])
language plpgsql as $$
#variable_conflict use_column
declare
    rounds int[] := '{1}';
    turn int[] := items;
    done record;
begin
    perform t.id from (select partitions[i.item] as partition, executions[i.item] as id from unnest(items) as i (item) order by 1, 2) x
    cross join lateral (select t.id from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;
    if cardinality(items) > 1 then
        rounds := flowfabric._rounds(array(select partitions[i.item] from unnest(items) as i (item)),
                                     array(select executions[i.item] from unnest(items) as i (item)));
    end if;
    for round in 1 .. cardinality(items) loop
        exit when round <> all (rounds);
        if 2 = any (rounds) then
            turn := array(select i.item from unnest(items, rounds) as i (item, its_round) where i.its_round = round);
        end if;
        done := flowfabric._accept_round(
            turn, partitions, executions, waitpoints, names, ids, source_types, source_identities, categories, payloads, encodings,
            correlation_ids, idempotency_keys, digests, _accept_signals.now, _accept_signals.by, _accept_signals.note);
        places := places || done.places;
        signals := signals || done.signals;
        effects := effects || done.effects;
        lanes := lanes || done.lanes;
        faults := faults || done.faults;
    end loop;
end $$;

-- Find out what signals do, each to an execution of its own. The caller holds the tickets and has judged the tokens. A lone wait
-- that a signal satisfies by itself is answered at once; `_weigh` judges the rest.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  per item where it goes, the number it gets, and its effect with what satisfied the condition when it holds now; or
--            the id of the signal that it repeats; or the fault
create or replace function flowfabric._weighed(
    items int[], partitions int[], executions uuid[], waitpoints uuid[], names text[], ids uuid[], source_types text[], source_identities text[],
    idempotency_keys text[], digests bytea[], now timestamptz)
returns table (
    item int, partition smallint, execution uuid, route int, tags jsonb, flow uuid, lane text, kid text, number int, first_id uuid, fault jsonb,
    part uuid, digest bytea, effect text, satisfiers text)
language sql stable as $$
    select i.item, e.partition, e.id as execution, e.route, e.tags, e.flow, t.lane, w.kid, l.number, f.first_id, f.fault, f.part,
           coalesce(_weighed.digests[i.item], s.about_digest) as digest,
           case when f.first_id is null and f.fault is null then coalesce(f.effect, 'resume_condition_satisfied') end as effect,
           case when f.effect is not null then f.satisfiers::text else '{' || _weighed.ids[i.item]::text || '}' end as satisfiers
    from unnest(_weighed.items) as i (item)
    cross join lateral (
        select e.partition, e.id, e.route, e.tags, e.flow, coalesce((e.policy ->> 'max_signals')::int, 10000) as most from flowfabric.executions e
        where e.partition = _weighed.partitions[i.item] and e.id = _weighed.executions[i.item] offset 0) e
    cross join lateral (
        select w.kid, w.key, w.suspension, w.state = 'active' and w.expires_at is null as is_plain from flowfabric.waitpoints w
        where w.partition = e.partition and w.execution = e.id and w.id = _weighed.waitpoints[i.item] offset 0) w
    left join lateral (select t.lane from flowfabric.tickets t where t.partition = e.partition and t.id = e.id offset 0) t on true
    left join lateral (
        select s.condition, s.about_digest, s.within is null and not s.bind as is_plain from flowfabric.suspensions s
        where s.partition = e.partition and s.execution = e.id and s.id = w.suspension offset 0) s on true
    cross join lateral (select coalesce(max(g.number), 0) + 1 as number from flowfabric.signals g
                        where g.partition = e.partition and g.execution = e.id) l
    left join lateral (
        select f.* from flowfabric._weigh(
            row(e.partition, l.number, _weighed.now, e.id, _weighed.ids[i.item], _weighed.waitpoints[i.item], _weighed.names[i.item], '',
                _weighed.source_types[i.item], _weighed.source_identities[i.item], '', null, nullif(_weighed.idempotency_keys[i.item], ''),
                _weighed.digests[i.item], null, null)::flowfabric.signals, t.lane is null, e.most, _weighed.now) f
        where not (t.lane is not null and w.is_plain and s.is_plain and l.number <= e.most
                   and flowfabric._is_met(s.condition, w.key, _weighed.names[i.item], _weighed.source_types[i.item])
                   and (l.number = 1 or flowfabric._first_delivery(e.partition, e.id, _weighed.ids[i.item], _weighed.waitpoints[i.item],
                        nullif(_weighed.idempotency_keys[i.item], ''), _weighed.source_types[i.item], _weighed.now) is null)) is true
        offset 0) f on true -- asked only where the quick answer does not do
$$;

-- Record signals to executions that all differ, and let them take effect. The caller holds the tickets.
--
--   moves    suspended → runnable, when a condition holds now
--   emits    signal_delivered, execution_resumed, waitpoint_closed
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  per item its signal with its effect and the lane with work again; without an effect the first one that it repeats,
--            or the fault
create or replace function flowfabric._accept_round(
    items int[], partitions int[], executions uuid[], waitpoints uuid[], names text[], ids uuid[], source_types text[], source_identities text[],
    categories text[], payloads bytea[], encodings text[], correlation_ids text[], idempotency_keys text[], digests bytea[],
    now timestamptz, by text, note text,
    out places int[], out signals uuid[], out effects text[], out lanes text[], out faults jsonb[])
language plpgsql as $$
#variable_conflict use_column
declare
    kept text := case when _accept_round.note is not null then flowfabric._kept_text(_accept_round.note) end;
    told record;
begin
    perform flowfabric._lock_log();
    with weighed as materialized (
        select w.* from flowfabric._weighed(items, partitions, executions, waitpoints, names, ids, source_types, source_identities, idempotency_keys,
                                            digests, _accept_round.now) w
    ), written as (
        insert into flowfabric.signals (partition, execution, id, number, at, waitpoint, name, category, source_type, source_identity, effect,
                                        correlation_id, idempotency_key, digest, encoding, payload)
        select x.partition, x.execution, ids[x.item], x.number, _accept_round.now, waitpoints[x.item], names[x.item],
               coalesce(categories[x.item], 'signal'), source_types[x.item], source_identities[x.item], x.effect, correlation_ids[x.item],
               nullif(idempotency_keys[x.item], ''), digests[x.item], encodings[x.item], payloads[x.item]
        from weighed x where x.effect is not null
    ), noted as (
        insert into flowfabric.events (at, kind, by, partition, execution, route, tags, flow, detail)
        select _accept_round.now, 'signal_delivered', _accept_round.by, x.partition, x.execution, x.route, x.tags, x.flow,
               flowfabric._signal_note(ids[x.item], waitpoints[x.item], names[x.item], source_types[x.item], source_identities[x.item], x.effect,
                                       x.kid, x.digest, kept)
        from weighed x where x.effect is not null
    )
    select array_agg(x.item) as items, array_agg(coalesce(x.first_id, ids[x.item])) as signals, array_agg(x.effect) as effects,
           array_agg(case when x.effect = 'resume_condition_satisfied' then x.lane end) as lanes, array_agg(x.fault) as faults,
           array_agg(x.partition) filter (where x.effect is not null) as partitions,
           array_agg(x.execution) filter (where x.effect is not null) as executions,
           array_agg(x.satisfiers) filter (where x.effect is not null) as satisfiers, array_agg(x.part) filter (where x.effect is not null) as parts
    into told from weighed x;
    if told.executions is not null then
        perform flowfabric._go_on_with(told.partitions, told.executions, told.satisfiers, told.parts);
    end if;
    places := told.items;
    signals := told.signals;
    effects := told.effects;
    lanes := told.lanes;
    faults := told.faults;
end $$;

-- Let executions go on whose waits are satisfied: by these signals, a list for each, null where there is none. `parts` holds the
-- wait that this ends where it is one of several. The caller holds the tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   emits    execution_resumed, waitpoint_closed
create or replace function flowfabric._go_on_with(partitions smallint[], executions uuid[], satisfiers text[], parts uuid[])
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    resumed record;
begin
    if array_position(satisfiers, null) is null and array_remove(parts, null) = '{}' then
        perform flowfabric._resume(partitions, executions, 'signal', satisfiers);
        return;
    end if;
    for resumed in
        select s.part is not null as is_part, array_agg(s.partition) as partitions, array_agg(s.execution) as ids,
               array_agg(s.satisfiers) as satisfiers, array_agg(s.part) as parts
        from unnest(_go_on_with.partitions, _go_on_with.executions, _go_on_with.satisfiers, _go_on_with.parts)
             as s (partition, execution, satisfiers, part)
        where s.satisfiers is not null group by 1 order by 1
    loop
        if resumed.is_part then
            perform flowfabric._end_waits(resumed.partitions, resumed.ids, resumed.parts, 'signal', resumed.satisfiers);
            perform flowfabric._go_on(resumed.partitions, resumed.ids, 'signal');
        else
            perform flowfabric._resume(resumed.partitions, resumed.ids, 'signal', resumed.satisfiers);
        end if;
    end loop;
end $$;
