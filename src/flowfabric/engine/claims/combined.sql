-- Operations that also claim: a process that runs a worker leases what it submits or resumes in the same call.

-- Claim up to `take` executions for the free slots of a worker, as `claim` does when it does not wait. `slots` is
-- {worker, instance, lanes, capabilities, namespace, lease_ms, after_route, request, repeated, free}.
--
--   refuses  invalid_limit
--   returns  what the worker needs to run them; no rows if there is nothing to take
create or replace function flowfabric._fill_slots(slots jsonb, take bigint)
returns setof flowfabric.claimed
language plpgsql as $$
begin
    if (_fill_slots.slots ->> 'free') is null then
        perform flowfabric._refuse('invalid_limit', 'slots without free are invalid; use 0 or more');
    end if;
    _fill_slots.take := least(_fill_slots.take, (_fill_slots.slots ->> 'free')::int);
    if _fill_slots.take > 0 then
        return query
        select c.* from flowfabric.claim(
            worker => _fill_slots.slots ->> 'worker', instance => _fill_slots.slots ->> 'instance',
            lanes => array(select jsonb_array_elements_text(_fill_slots.slots -> 'lanes')),
            capabilities => (_fill_slots.slots -> 'capabilities')::text, take => _fill_slots.take::int,
            lease_ms => (_fill_slots.slots ->> 'lease_ms')::bigint,
            after_route => (_fill_slots.slots ->> 'after_route')::int, namespace => _fill_slots.slots ->> 'namespace',
            request => (_fill_slots.slots ->> 'request')::uuid,
            repeated => (_fill_slots.slots ->> 'repeated')::boolean, wait => false,
            slots => (_fill_slots.slots ->> 'free')::int) c;
    end if;
end $$;

-- Submit as `submit` does, and in the same transaction claim as many executions as were created, but no more than the
-- worker has free slots. The claim is an ordinary one: by priority, in turns, and within budgets and quotas, so it may
-- return other executions. If the reply is lost, repeat the call with the same ids and `slots`, with `repeated`.
--
--   moves    – → runnable, as submit; runnable → active, as claim; past its deadline → ended
--   locks    as submit, then as claim
--   emits    execution_submitted, lane_registered, flow_member_added; lease_acquired, execution_expired, grant_expired,
--            edge_group_impossible, edge_group_satisfied, execution_cancelled, execution_skipped, reservation_released,
--            waitpoint_closed
--   refuses  of the whole call: invalid_worker, invalid_capabilities, invalid_lane, invalid_lease, invalid_limit; per
--            item as submit: invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag, flow_not_found, flow_already_terminal, wrong_partition, flow_too_large,
--            key_conflict
--   returns  per item the answer of submit; then, without an item, what the worker needs to run what it has claimed
create or replace function flowfabric.submit_and_claim(
    slots text, options text[], options_of int[], partitions int[], ids uuid[], payloads bytea[] default null,
    keys text[] default null, key_partitions int[] default null, priorities int[] default null,
    delays_ms bigint[] default null, delays_until timestamptz[] default null, deadlines_ms bigint[] default null,
    deadlines_at timestamptz[] default null, tags text[] default null, flows uuid[] default null,
    payload_limit int default 1048576, counted_from timestamptz default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text, claimed flowfabric.claimed)
language plpgsql as $$
declare
    answered record;
begin
    perform flowfabric._limit_waits(submit_and_claim.wait);
    select array_agg(s.item) as items, array_agg(s.outcome) as outcomes, array_agg(s.refusal) as refusals,
           array_agg(s.detail) as details, count(*) filter (where s.outcome = 'created') as created into answered
    from flowfabric.submit(
        submit_and_claim.options, submit_and_claim.options_of, submit_and_claim.partitions, submit_and_claim.ids,
        submit_and_claim.payloads, submit_and_claim.keys, submit_and_claim.key_partitions, submit_and_claim.priorities,
        submit_and_claim.delays_ms, submit_and_claim.delays_until, submit_and_claim.deadlines_ms,
        submit_and_claim.deadlines_at, submit_and_claim.tags, submit_and_claim.payload_limit,
        submit_and_claim.counted_from, submit_and_claim.flows, submit_and_claim.wait) s;
    return query
    select a.item, a.outcome, a.refusal, a.detail, null::flowfabric.claimed
    from unnest(answered.items, answered.outcomes, answered.refusals, answered.details)
         as a (item, outcome, refusal, detail);
    return query
    select null::int, null::text, null::text, null::text, c
    from flowfabric._fill_slots(
        submit_and_claim.slots::jsonb,
        case when (submit_and_claim.slots::jsonb ->> 'repeated')::boolean then cardinality(submit_and_claim.ids)
             else answered.created end) c;
end $$;

-- Deliver signals as `deliver_signal` does, and in the same transaction claim as many executions as the signals have
-- resumed in the lanes of the worker, but no more than it has free slots. The claim is an ordinary one, as in
-- submit_and_claim. If the reply is lost, repeat the claim alone, with the request of `slots`.
--
--   moves    suspended → runnable, as deliver_signal; runnable → active, as claim; past its deadline → ended
--   locks    as deliver_signal, then as claim
--   emits    signal_delivered, execution_resumed, lease_acquired, execution_expired, grant_expired,
--            edge_group_impossible, edge_group_satisfied, execution_cancelled, execution_skipped, reservation_released,
--            waitpoint_closed
--   refuses  of the whole call: invalid_worker, invalid_capabilities, invalid_lane, invalid_lease, invalid_limit; per
--            item invalid_signal, payload_too_large, missing_token, invalid_token, token_expired,
--            target_not_signalable, waitpoint_closed, signal_limit_exceeded, approval_digest_mismatch
--   returns  per item the answer of deliver_signal; then, without an item, what the worker needs to run what it has
--            claimed
create or replace function flowfabric.signal_and_claim(
    slots text, partitions int[], executions uuid[], waitpoints uuid[], tokens text[], names text[], ids uuid[],
    source_types text[], source_identities text[], categories text[] default null, payloads bytea[] default null,
    encodings text[] default null, correlation_ids text[] default null, idempotency_keys text[] default null,
    digests bytea[] default null, keys text[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text, claimed flowfabric.claimed)
language plpgsql as $$
declare
    answered record;
begin
    perform flowfabric._limit_waits(signal_and_claim.wait);
    select array_agg(d.item) as items, array_agg(d.outcome) as outcomes, array_agg(d.refusal) as refusals,
           array_agg(d.detail) as details, count(*) filter (where signal_and_claim.slots::jsonb -> 'lanes'
                                                                  ? (d.detail::jsonb ->> 'lane')) as resumed
    into answered
    from flowfabric.deliver_signal(
        signal_and_claim.partitions, signal_and_claim.executions, signal_and_claim.waitpoints, signal_and_claim.tokens,
        signal_and_claim.names, signal_and_claim.ids, signal_and_claim.source_types, signal_and_claim.source_identities,
        signal_and_claim.categories, signal_and_claim.payloads, signal_and_claim.encodings,
        signal_and_claim.correlation_ids, signal_and_claim.idempotency_keys, signal_and_claim.digests,
        signal_and_claim.wait, signal_and_claim.keys) d;
    return query
    select a.item, a.outcome, a.refusal, a.detail, null::flowfabric.claimed
    from unnest(answered.items, answered.outcomes, answered.refusals, answered.details)
         as a (item, outcome, refusal, detail);
    return query
    select null::int, null::text, null::text, null::text, c
    from flowfabric._fill_slots(signal_and_claim.slots::jsonb, answered.resumed) c;
end $$;
