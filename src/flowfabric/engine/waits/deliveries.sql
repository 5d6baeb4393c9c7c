-- Deliveries: apply the signals of authorised senders to the waits that they reach.

-- Identify what a wait asks, so that a decision counts for the question that it was made on: the digest of `about`, or
-- the wait itself if it has none. The same waitpoint may be waited on again, about something else.
--
--   returns  the identity, or null if there is no wait
create or replace function flowfabric._question(wait uuid, about_digest bytea)
returns bytea
language sql immutable as $$
    select coalesce(_question.about_digest, uuid_send(_question.wait))
$$;

-- Find the signal that this one duplicates: the same id on its execution, or the same idempotency key on its waitpoint
-- within 24 hours. Decisions of authenticated people (source_type `operator`) have idempotency keys of their own, so
-- that the holder of a token cannot use them up first. A decision duplicates only one that counts for the same question
-- and carries the same digest; `assumed` is the digest of a decision that carries none.
--
--   returns  its id, or null if there is none
create or replace function flowfabric._first_delivery(
    given flowfabric.given_signal, question bytea, assumed bytea, now timestamptz)
returns uuid
language plpgsql stable as $$
declare
    first_id uuid;
begin
    select s.id into first_id from flowfabric.signals s
    where s.partition = given.partition and s.execution = given.execution and s.id = given.id;
    if first_id is null and given.idempotency_key <> '' then
        select s.id into first_id from flowfabric.signals s
        where s.waitpoint = given.waitpoint and s.idempotency_key = given.idempotency_key
          and s.at > _first_delivery.now - interval '24 hours'
          and (s.source_type = 'operator') = (given.source_type = 'operator')
          and (given.source_type <> 'operator'
               or (s.question is null or s.question = _first_delivery.question)
                  and coalesce(s.digest, _first_delivery.assumed)
                      is not distinct from coalesce(given.digest, _first_delivery.assumed))
        order by s.number limit 1;
    end if;
    return first_id;
end $$;

-- Check whether a signal from an authorised sender can be accepted now, as number `number` of its execution. `most` is
-- the signal limit of the execution.
--
--   refuses  target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch, as a value
--   returns  the fault, or null if it can be accepted
create or replace function flowfabric._delivery_fault(
    given flowfabric.given_signal, number int, has_ended boolean, point flowfabric.waitpoints, wait flowfabric.waits,
    most int, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    outcome flowfabric.outcome;
begin
    if _delivery_fault.has_ended then
        select e.outcome into outcome from flowfabric.executions e
        where e.partition = given.partition and e.id = given.execution;
        return flowfabric._fault(
            'target_not_signalable', format('execution %s has ended: %s; it accepts no more signals',
                                            flowfabric._id(given.partition, given.execution),
                                            flowfabric._ended_state(outcome)),
            jsonb_build_object('outcome', outcome));
    end if;
    if point.state = 'closed' or point.expires_at <= _delivery_fault.now then
        return flowfabric._fault('waitpoint_closed', format(
            'waitpoint %s is closed and accepts no more signals; use an open waitpoint', flowfabric._shown(point.key)));
    end if;
    -- Signals of the engine itself (ends of children, timeouts) do not count.
    if _delivery_fault.number > _delivery_fault.most and _delivery_fault.number - 1 - _delivery_fault.most >= (
        select count(*) from flowfabric.signals s
        where s.partition = given.partition and s.execution = given.execution and s.source_type = 'system') then
        return flowfabric._fault(
            'signal_limit_exceeded',
            format('the execution has reached its limit of %s signals (policy max_signals); submit a new one',
                   flowfabric._number(_delivery_fault.most)));
    end if;
    if point.state = 'pending' and _delivery_fault.number > 1000 and 1000 <= (
        select count(*) from (select from flowfabric.signals s where s.waitpoint = given.waitpoint limit 1000) s) then
        return flowfabric._fault(
            'signal_limit_exceeded',
            'the waitpoint has reached its limit of 1,000 buffered signals; wait until the execution suspends on it');
    end if;
    if wait.bind and given.digest is distinct from wait.about_digest then
        return flowfabric._fault(
            'approval_digest_mismatch',
            'the digest does not match the current request; read the request again and use its digest');
    end if;
    return null;
end $$;

-- Find the effect of a signal, for any kind of wait. `number` is the number that the signal would get. `tallies` holds,
-- by wait, what earlier signals of this call have counted, and `sources` the sources of all of them. The caller has
-- locked the ticket and checked the token.
--
--   returns  the id of the signal that it duplicates; or the fault; or its effect, with the signals that satisfied the
--            condition if it now holds, and the wait that then ends unless it is the only one; the tally with it
create or replace function flowfabric._find_effect(
    given flowfabric.given_signal, number int, question bytea, has_ended boolean, most int, now timestamptz,
    tallies jsonb, sources text[],
    out first_id uuid, out fault jsonb, out effect text, out satisfiers uuid[], out part uuid, out tally jsonb)
language plpgsql stable as $$
declare
    point flowfabric.waitpoints;
    wait flowfabric.waits;
    counted record;
    is_last boolean := false;
begin
    select p.* into point from flowfabric.waitpoints p where p.id = given.waitpoint;
    select w.* into wait from flowfabric.waits w
    where w.partition = given.partition and w.execution = given.execution and w.id = point.wait;
    if _find_effect.number > 1 then
        first_id := flowfabric._first_delivery(
            _find_effect.given, _find_effect.question, case when wait.bind is not true then _find_effect.question end,
            _find_effect.now);
    end if;
    if first_id is not null then
        return;
    end if;
    fault := flowfabric._delivery_fault(
        _find_effect.given, _find_effect.number, _find_effect.has_ended, point, wait, _find_effect.most,
        _find_effect.now);
    if fault is not null then
        return;
    end if;
    if point.state <> 'active' then
        effect := 'buffered_for_pending_waitpoint';
        return;
    end if;
    -- An open wait is not satisfied yet. If no leaf can count this signal, that does not change, and the signals that
    -- have arrived, maybe thousands, need not be read.
    effect := flowfabric._signal_effect(
        wait.condition, point.key, given.name, given.source_type, false, false);
    if effect <> 'appended_to_waitpoint_duplicate' then
        return;
    end if;
    -- Signals that have arrived are read once per call, and again to find the satisfiers.
    counted := flowfabric._count_signal(
        coalesce(_find_effect.tallies -> wait.id::text, flowfabric._tally(wait, _find_effect.sources)),
        point.key, given.name, given.source_type, given.source_identity);
    tally := counted.tally;
    if flowfabric._is_satisfied(wait.condition, tally) then
        -- It resumes if this is the only open wait of its suspension but for alternatives. The cast to text makes the
        -- planner use the primary key and no index on the phase.
        is_last := exists (
                select from flowfabric.tickets t where t.partition = wait.partition and t.id = wait.execution
                and t.phase::text = 'suspended' and t.suspension = wait.suspension)
            and not exists (
                select from flowfabric.waits w
                where w.partition = wait.partition and w.execution = wait.execution and w.ended_at is null
                  and w.id <> wait.id and w.choice is distinct from coalesce(wait.choice, -1));
        satisfiers := flowfabric._judge(
            wait.condition, flowfabric._signals_to_judge(wait) || flowfabric._signal_to_judge(
                given.id, point.key, given.name, given.source_type, given.source_identity))::uuid[];
    end if;
    effect := flowfabric._signal_effect(
        wait.condition, point.key, given.name, given.source_type, is_last, counted.is_counted);
    part := case when not is_last or wait.choice is not null then wait.id end;
end $$;

-- Record signals from authorised senders and apply them, as if one after the other. A signal and a suspension of the
-- same execution both lock its ticket: neither can miss the other.
--
--   moves    suspended → runnable, if the condition now holds
--   locks    the tickets, in key order
--   refuses  target_not_signalable, as a value
--   returns  per item its signal with its effect and the lane to wake; without an effect, the signal that it duplicates
--            or the fault
create or replace function flowfabric._accept_signals(
    given flowfabric.given_signal[], now timestamptz, by text default null, note text default null,
    out places int[], out signals uuid[], out effects text[], out lanes text[], out faults jsonb[])
language plpgsql as $$
declare
    sources constant text[] := array(select g.source_identity from unnest(_accept_signals.given) g);
    rounds int[] := '{1}';
    turn flowfabric.given_signal[] := _accept_signals.given;
    tallies jsonb := '{}';
    missing record;
    done record;
begin
    perform t.id from (select g.partition, g.execution as id from unnest(_accept_signals.given) g order by 1, 2) x
    cross join lateral (
        select t.id from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;
    if cardinality(sources) > 1 then
        rounds := flowfabric._rounds(array(select g.partition::int from unnest(_accept_signals.given) g),
                                     array(select g.execution from unnest(_accept_signals.given) g));
    end if;
    for round in 1 .. cardinality(sources) loop
        exit when round <> all (rounds);
        if 2 = any (rounds) then
            turn := array(select _accept_signals.given[i] from generate_series(1, cardinality(rounds)) i
                          where rounds[i] = round);
        end if;
        done := flowfabric._accept_round(
            turn, sources, _accept_signals.now, _accept_signals.by, _accept_signals.note, tallies);
        tallies := done.tallies;
        places := places || done.places;
        signals := signals || done.signals;
        effects := effects || done.effects;
        lanes := lanes || done.lanes;
        faults := faults || done.faults;
    end loop;
    -- The execution may have ended and been removed after the caller found its waitpoint.
    if coalesce(cardinality(places), 0) < cardinality(sources) then
        for missing in select g.item, g.partition, g.execution from unnest(_accept_signals.given) g
                       where g.item <> all (coalesce(places, '{}')) loop
            places := array_append(places, missing.item);
            signals := array_append(signals, null);
            effects := array_append(effects, null);
            lanes := array_append(lanes, null);
            faults := array_append(faults, flowfabric._fault('target_not_signalable', format(
                'execution %s has ended and was removed; it accepts no more signals',
                flowfabric._id(missing.partition, missing.execution))));
        end loop;
    end if;
end $$;

-- Find the effects of signals, at most one per execution. `tallies` and `sources` as in `_find_effect`. The caller has
-- locked the tickets and checked the tokens.
-- Fast path: a plain wait that this signal alone satisfies (`_is_met`). `_find_effect` handles all other signals.
--
--   returns  per signal its execution, the number it gets, and its effect with the signals that satisfied the condition
--            if it now holds; or the id of the signal that it duplicates; or the fault
create or replace function flowfabric._find_effects(
    given flowfabric.given_signal[], sources text[], now timestamptz, tallies jsonb)
returns table (
    signal flowfabric.given_signal, route int, tags jsonb, flow uuid, lane text, kid text, number int, first_id uuid,
    fault jsonb, part uuid, digest bytea, question bytea, effect text, satisfiers text, wait uuid, tally jsonb)
language sql stable as $$
    select g, e.route, e.tags, e.flow, t.lane, w.kid, l.number, f.first_id, f.fault, f.part,
           coalesce(g.digest, s.about_digest) as digest, q.question,
           case when f.first_id is null and f.fault is null
                then coalesce(f.effect, 'resume_condition_satisfied') end as effect,
           case when f.effect is not null then f.satisfiers::text else '{' || g.id::text || '}' end as satisfiers,
           w.wait, f.tally
    from unnest(_find_effects.given) g
    cross join lateral (
        select e.partition, e.id, e.route, e.tags, e.flow, coalesce((e.policy ->> 'max_signals')::int, 10000) as most
        from flowfabric.executions e where e.partition = g.partition and e.id = g.execution offset 0) e
    cross join lateral (
        select p.kid, p.key, p.wait, p.question, p.state = 'active' and p.expires_at is null as is_plain
        from flowfabric.waitpoints p where p.id = g.waitpoint offset 0) w
    left join lateral (
        select t.lane, t.suspension from flowfabric.tickets t
        where t.partition = e.partition and t.id = e.id offset 0) t on true
    left join lateral (
        -- The only wait of its suspension.
        select s.condition, s.about_digest, s.id = t.suspension and not s.bind and s.choice is null as is_plain
        from flowfabric.waits s
        where s.partition = e.partition and s.execution = e.id and s.id = w.wait offset 0) s on true
    cross join lateral (select coalesce(max(r.number), 0) + 1 as number from flowfabric.signals r
                        where r.partition = e.partition and r.execution = e.id) l
    cross join lateral (
        select case when g.source_type <> 'operator' then null
                    when w.wait is null then w.question
                    else flowfabric._question(w.wait, s.about_digest) end as question) q
    left join lateral (
        select f.* from flowfabric._find_effect(
            g, l.number, q.question, t.lane is null, e.most, _find_effects.now, _find_effects.tallies,
            _find_effects.sources) f
        where not (t.lane is not null and w.is_plain and s.is_plain and l.number <= e.most
                   and flowfabric._is_met(s.condition, w.key, g.name, g.source_type)
                   and (l.number = 1
                        or flowfabric._first_delivery(g, q.question, q.question, _find_effects.now) is null)) is true
        offset 0) f on true -- called only if the fast path does not apply
$$;

-- Record signals, at most one per execution, and apply them. `tallies` and `sources` as in `_find_effect`. The caller
-- has locked the tickets.
--
--   moves    suspended → runnable, if the condition now holds
--   emits    signal_delivered
--   returns  per item its signal with its effect and the lane to wake; without an effect, the signal that it duplicates
--            or the fault. The tallies with these signals
create or replace function flowfabric._accept_round(
    given flowfabric.given_signal[], sources text[], now timestamptz, by text, note text, inout tallies jsonb,
    out places int[], out signals uuid[], out effects text[], out lanes text[], out faults jsonb[])
language plpgsql as $$
declare
    kept text := case when _accept_round.note is not null then flowfabric._kept_text(_accept_round.note) end;
    applied record;
begin
    perform flowfabric._lock_log();
    with weighed as materialized (
        select (w.signal).*, w.route, w.tags, w.flow, w.lane, w.kid, w.number, w.first_id, w.fault, w.part, w.question,
               w.effect, w.satisfiers, w.wait, w.tally, w.digest as shown_digest
        from flowfabric._find_effects(
            _accept_round.given, _accept_round.sources, _accept_round.now, _accept_round.tallies) w
    ), written as (
        insert into flowfabric.signals (
            partition, execution, id, number, at, waitpoint, name, category, source_type, source_identity, effect,
            correlation_id, idempotency_key, digest, encoding, payload, question)
        select x.partition, x.execution, x.id, x.number, _accept_round.now, x.waitpoint, x.name,
               coalesce(x.category, 'signal'), x.source_type, x.source_identity, x.effect, x.correlation_id,
               nullif(x.idempotency_key, ''), x.digest, x.encoding, x.payload, x.question
        from weighed x where x.effect is not null
    ), noted as (
        insert into flowfabric.events (at, kind, by, partition, execution, route, tags, flow, detail)
        select _accept_round.now, 'signal_delivered', _accept_round.by, x.partition, x.execution, x.route, x.tags,
               x.flow, jsonb_object(
                   array['signal_id', x.id::text, 'waitpoint_id', x.waitpoint::text, 'name', x.name,
                         'source_type', x.source_type, 'source_identity', x.source_identity, 'effect', x.effect,
                         'kid', x.kid])
               || case when x.shown_digest is null and kept is null then '{}' else jsonb_strip_nulls(
                      jsonb_build_object('digest', encode(x.shown_digest, 'hex'), 'note', kept)) end
        from weighed x where x.effect is not null
    )
    select array_agg(x.item) as items, array_agg(coalesce(x.first_id, x.id)) as signals,
           array_agg(x.effect) as effects,
           array_agg(case when x.effect = 'resume_condition_satisfied' then x.lane end) as lanes,
           array_agg(x.fault) as faults,
           array_agg(x.partition) filter (where x.effect is not null) as partitions,
           array_agg(x.execution) filter (where x.effect is not null) as executions,
           array_agg(x.satisfiers) filter (where x.effect is not null) as satisfiers,
           array_agg(x.part) filter (where x.effect is not null) as parts,
           jsonb_object_agg(x.wait, x.tally) filter (where x.tally is not null) as tallies
    into applied from weighed x;
    if applied.executions is not null then
        perform flowfabric._resume_satisfied(applied.partitions, applied.executions, applied.satisfiers, applied.parts);
    end if;
    tallies := tallies || coalesce(applied.tallies, '{}');
    places := applied.items;
    signals := applied.signals;
    effects := applied.effects;
    lanes := applied.lanes;
    faults := applied.faults;
end $$;

-- Resume executions whose waits are satisfied. `satisfiers` holds the satisfying signals of each execution, null if its
-- condition does not hold. `parts` holds the wait that ends, if it is one of several. The caller has locked the
-- tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
create or replace function flowfabric._resume_satisfied(
    partitions smallint[], executions uuid[], satisfiers text[], parts uuid[])
returns void
language plpgsql as $$
declare
    resumed record;
begin
    if array_position(_resume_satisfied.satisfiers, null) is null
       and array_remove(_resume_satisfied.parts, null) = '{}' then
        perform flowfabric._resume(
            _resume_satisfied.partitions, _resume_satisfied.executions, 'signal', _resume_satisfied.satisfiers);
        return;
    end if;
    for resumed in
        select s.part is not null as is_part, array_agg(s.partition) as partitions, array_agg(s.execution) as ids,
               array_agg(s.satisfiers) as satisfiers, array_agg(s.part) as parts
        from unnest(_resume_satisfied.partitions, _resume_satisfied.executions, _resume_satisfied.satisfiers,
                    _resume_satisfied.parts)
             as s (partition, execution, satisfiers, part)
        where s.satisfiers is not null group by 1 order by 1
    loop
        if resumed.is_part then
            perform flowfabric._end_waits(
                resumed.partitions, resumed.ids, resumed.parts, 'signal', flowfabric.clock(), resumed.satisfiers);
            perform flowfabric._resume_finished(resumed.partitions, resumed.ids, 'signal');
        else
            perform flowfabric._resume(resumed.partitions, resumed.ids, 'signal', resumed.satisfiers);
        end if;
    end loop;
end $$;
