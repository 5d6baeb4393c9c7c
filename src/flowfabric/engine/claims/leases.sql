-- Leases: renew, expire and revoke them, and make their executions claimable again.

-- The steps that a worker reports as running, as they are stored: with the time at which they started.
--
--   returns  a list of {name, occurrence, number, started_at}, or null if there are none
create or replace function flowfabric._started_steps(reported jsonb, now timestamptz)
returns jsonb
language sql immutable as $$
    select jsonb_agg(jsonb_build_object(
        'name', r.name, 'occurrence', r.occurrence, 'number', r.number,
        'started_at', flowfabric._ago(r.elapsed_ms, _started_steps.now)) order by r.elapsed_ms desc)
    from (select x.* from jsonb_to_recordset(_started_steps.reported)
                 as x (name text, occurrence int, number int, elapsed_ms bigint)
          order by x.elapsed_ms desc limit 20) r
$$;

-- Extend leases, many in one call. A renewal never shortens a lease, and never waits: if another transaction has
-- locked a ticket, its lease is not extended, and the caller asks again for it. With `running`, it also tells which
-- steps each handler runs, as a list of {name, occurrence, number, elapsed_ms}, null for none.
--
--   locks    the tickets, in key order (skips locked ones)
--   emits    lease_renewed, for lanes that keep renewals
--   refuses  invalid_lease; per item fence_required, partial_fence, lease_lost, execution_not_active,
--            execution_not_found
--   returns  per item 'renewed' or 'locked' {expires_at}, or its refusal
create or replace function flowfabric.renew(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], lease_ms bigint default 30000,
    running text[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    rounds int[] := flowfabric._rounds(renew.partitions, renew.ids);
    checked record;
begin
    perform flowfabric._check_lease(renew.lease_ms);
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(f.item) filter (where f.fault is null and f.place is not null) as items,
               array_agg(f.place) filter (where f.fault is null and f.place is not null) as places,
               array_agg(f.item) filter (where f.fault is not null) as refused,
               array_agg(f.fault) filter (where f.fault is not null) as faults,
               array_agg(f.item) filter (where f.fault is null and f.place is null) as locked
        into checked
        from flowfabric._try_fenced(renew.partitions, renew.ids, renew.lease_ids, renew.epochs, renew.attempts, rounds,
                                    round, now) f;

        return query
        with renewed as (
            update flowfabric.tickets t
            set expires_at = greatest(t.expires_at, now + renew.lease_ms * interval '1 ms'),
                running = case when renew.running is null then t.running
                               when renew.running[x.item] is not null
                               then flowfabric._started_steps(renew.running[x.item]::jsonb, now) end
            from (select x.* from unnest(checked.items, checked.places) as x (item, place)
                  limit cardinality(checked.items)) x
            where t.ctid = x.place
            returning x.item, t.partition, t.id, t.lane, t.expires_at, t.worker, t.instance, t.lease_id, t.epoch,
                      t.attempt
        ), noted as (
            select flowfabric._append_all(
                'lease_renewed', array_agg(r.partition), array_agg(r.id),
                array_agg(jsonb_build_object('worker', r.worker, 'instance', r.instance, 'lease_id', r.lease_id,
                                             'epoch', r.epoch, 'attempt', r.attempt, 'expires_at', r.expires_at)))
            from renewed r
            where r.lane in (select l.name from flowfabric.lanes l where l.keep_renewals)
            having count(*) > 0
        )
        select r.item, 'renewed', null, jsonb_build_object('expires_at', r.expires_at)::text from renewed r
        left join noted n on true
        union all
        select x.item, 'locked', null, jsonb_build_object('expires_at', coalesce(
            (select t.expires_at from flowfabric.tickets t
             where t.partition = renew.partitions[x.item] and t.id = renew.ids[x.item]), now))::text
        from unnest(checked.locked) as x (item)
        union all
        select x.item, null, x.fault ->> 'code', (x.fault - 'code')::text
        from unnest(checked.refused, checked.faults) as x (item, fault);
    end loop;
end $$;

-- Record that these runs begin: if their leases expire, that counts as a reclaim. A worker calls this before it calls a
-- handler, for what it claimed with `must_mark`, and for the first run of a task that has versions: with the version,
-- which the execution then keeps, and which routes it to workers that have the version. If an execution has a version
-- already, that one is kept. `wait` is as for complete.
--
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, row_locked,
--            invalid_body
--   returns  per item 'begun' and its version, or its refusal
create or replace function flowfabric.mark_begun(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], versions int[] default null,
    wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    rounds int[] := flowfabric._rounds(mark_begun.partitions, mark_begun.ids);
    checked record;
    routes int[];
begin
    perform flowfabric._limit_waits(mark_begun.wait);
    for round in 1 .. cardinality(rounds) loop
        exit when round <> all (rounds);
        select array_agg(x.item) filter (where x.fault is null) as items,
               array_agg(x.place) filter (where x.fault is null) as places,
               array_agg(x.item) filter (where x.fault is not null) as refused,
               array_agg(x.fault) filter (where x.fault is not null) as faults
        into checked from (
            select f.item, f.place, coalesce(f.fault, flowfabric._version_fault(mark_begun.versions[f.item])) as fault
            from flowfabric._fenced(mark_begun.partitions, mark_begun.ids, mark_begun.lease_ids, mark_begun.epochs,
                                    mark_begun.attempts, rounds, round, mark_begun.wait) f) x;
        if array_remove(mark_begun.versions, null) <> '{}' then
            routes := flowfabric._version_routes(checked.places, checked.items, mark_begun.versions);
        end if;

        return query
        with marked as (
            update flowfabric.tickets t
            set begun = true, route = coalesce(x.route, t.route),
                version = case when x.route is null then t.version else mark_begun.versions[x.item] end
            from (select x.* from unnest(checked.items, checked.places, routes) as x (item, place, route)
                  limit cardinality(checked.items)) x
            where t.ctid = x.place
            returning x.item, t.version
        )
        select m.item, 'begun', null, jsonb_build_object('version', m.version)::text from marked m
        union all
        select x.item, null, x.fault ->> 'code', (x.fault - 'code')::text
        from unnest(checked.refused, checked.faults) as x (item, fault);
    end loop;
end $$;

-- Check the version of a task.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if it is valid or missing
create or replace function flowfabric._version_fault(version int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('invalid_body', format('version %s is invalid; use 1 or more', _version_fault.version),
                             '{"field": "version"}')
    where _version_fault.version < 1
$$;

-- The routes for executions whose first run begins under a version of their task. Missing ones are created in a fixed
-- order, so that two calls cannot deadlock. The caller has locked the tickets.
--
--   returns  per ticket the id of its new route; null if it keeps its route
create or replace function flowfabric._version_routes(places tid[], items int[], versions int[])
returns int[]
language plpgsql as $$
declare
    found int[];
    starting record;
begin
    for starting in
        select x.route, x.task, x.version, array_agg(x.number) as numbers
        from (
            select p.number, t.route, e.task, _version_routes.versions[p.item] as version
            from unnest(_version_routes.places, _version_routes.items) with ordinality as p (place, item, number)
            cross join lateral (
                select t.partition, t.id, t.route from flowfabric.tickets t
                where t.ctid = p.place and t.version is null offset 0) t
            cross join lateral (
                select e.task from flowfabric.executions e
                where e.partition = t.partition and e.id = t.id offset 0) e
            where _version_routes.versions[p.item] is not null) x
        group by x.route, x.task, x.version
        order by x.route, x.task, x.version
    loop
        starting.route := flowfabric._version_route(starting.route, starting.task, starting.version);
        found := coalesce(found, array_fill(null::int, array[cardinality(_version_routes.places)]));
        for place in 1 .. cardinality(starting.numbers) loop
            found[starting.numbers[place]] := starting.route;
        end loop;
    end loop;
    return found;
end $$;

-- Whether an execution runs alone in its worker: for the second time, a lease of it has expired while its handler may
-- have been running, and it may be what ended those workers.
create or replace function flowfabric._runs_alone(crashes int, attempt_state flowfabric.attempt_state)
returns boolean
language sql immutable as $$
    select coalesce(_runs_alone.crashes > 1, false) and _runs_alone.attempt_state = 'pending_reclaim_attempt'
$$;

-- End leases that expired or were revoked. Their executions are claimable as a reclaim: immediately, or if the run had
-- begun and it is not the first lease to expire, after a pause that grows by a second each time, to a minute. A first
-- lease counts as a possible crash even if it is unknown whether the run had begun. The caller has locked the tickets.
--
--   moves    active → runnable: pending_reclaim_attempt, eligible_now or not_eligible_until_time /
--            waiting_for_retry_backoff
--   emits    lease_expired, lease_revoked
create or replace function flowfabric._end_leases(
    partitions smallint[], ids uuid[], how flowfabric.lease_end, by text default null, reason text default null)
returns void
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    lost record;
begin
    perform flowfabric._close_attempts(_end_leases.partitions, _end_leases.ids, 'interrupted_reclaimed', null);
    with released as (
        update flowfabric.tickets t
        set phase = 'runnable', attempt_state = 'pending_reclaim_attempt', lease_end = _end_leases.how,
            attempt_deadline = null, crashes = x.crashes, due_at = x.due_at,
            eligibility = case when x.due_at is null then 'eligible_now'
                               else 'not_eligible_until_time' end::flowfabric.eligibility,
            reason = case when x.due_at is null then 'waiting_for_worker'
                          else 'waiting_for_retry_backoff' end::flowfabric.reason
        from (
            select t.place, t.crashes,
                   case when t.is_crash and t.begun and t.crashes > 1
                        then now + least(t.crashes - 1, 60) * interval '1 second' end as due_at
            from (
                select x.* from unnest(_end_leases.partitions, _end_leases.ids) as x (partition, id)
                limit cardinality(_end_leases.ids)) x
            cross join lateral (
                select t.ctid as place, t.begun, c.is_crash,
                       case when c.is_crash then least(coalesce(t.crashes, 0) + 1, 32767)
                            else t.crashes end::smallint as crashes
                from flowfabric.tickets t
                cross join lateral (
                    select _end_leases.how = 'expired' and (t.begun is true or t.crashes is null) as is_crash) c
                where t.partition = x.partition and t.id = x.id offset 0) t) x
        where t.ctid = x.place
        returning t.*
    )
    select array_agg(r.partition) as partitions, array_agg(r.id) as ids,
           array_agg(jsonb_strip_nulls(jsonb_build_object(
               'lease_id', r.lease_id, 'worker', r.worker, 'instance', r.instance, 'epoch', r.epoch,
               'attempt', r.attempt, 'reason', _end_leases.reason, 'due_at', r.due_at,
               'counted', case when _end_leases.how = 'expired' then coalesce(r.begun, false) end))) as details
    into lost from released r;
    perform flowfabric._append_all(case _end_leases.how when 'expired' then 'lease_expired' else 'lease_revoked' end,
                                   lost.partitions, lost.ids, lost.details, _end_leases.by);
end $$;

-- Whether an execution was reclaimed as often as its policy allows: the end of its lease ends it, if the run had begun.
create or replace function flowfabric._is_last_reclaim(ticket flowfabric.tickets)
returns boolean
language plpgsql stable as $$
begin
    return (select ticket.begun is true and ticket.reclaims >= coalesce((e.policy ->> 'max_reclaim_count')::int, 10)
            from flowfabric.executions e where e.partition = ticket.partition and e.id = ticket.id);
end $$;

-- End expired leases: any worker can claim the executions again, unless they have been reclaimed as often as their
-- policy allows. The caller has locked the tickets.
--
--   moves    active → runnable: pending_reclaim_attempt; over the cap → ended: failed
--   emits    lease_expired, execution_failed
--   returns  the lanes that have work again, and the executions that ended
create or replace function flowfabric._end_expired_leases(
    partitions smallint[], ids uuid[], out lanes text[], out ended text[])
language plpgsql as $$
declare
    spent record;
begin
    perform flowfabric._end_leases(_end_expired_leases.partitions, _end_expired_leases.ids, 'expired');
    select array_agg(t.partition) filter (where t.is_spent) as partitions,
           array_agg(t.id) filter (where t.is_spent) as ids,
           array_agg(distinct t.lane) filter (where not t.is_spent) as lanes,
           array_agg(flowfabric._id(t.partition, t.id)) filter (where t.is_spent) as ended
    into spent
    from unnest(_end_expired_leases.partitions, _end_expired_leases.ids) as x (partition, id)
    cross join lateral (select t from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) f
    cross join lateral (select (f.t).*, flowfabric._is_last_reclaim(f.t) as is_spent offset 0) t;
    lanes := spent.lanes;
    if spent.ids is not null then
        ended := spent.ended || (flowfabric._end(spent.partitions, spent.ids, 'failed', failures => array_fill(
            '{"class": "infra_crash", "reason": "max_reclaims_exceeded"}'::jsonb,
            array[cardinality(spent.ids)]))).ended;
    end if;
end $$;

-- Sweep: end the leases that have expired. Only an expiry that ends a member of a flow needs the flow.
--
--   moves    active → runnable: pending_reclaim_attempt; over the cap → ended: failed
--   locks    the tickets it moves, after their flows if they end (skips locked ones); the budgets of their
--            reservations, in key order
--   emits    lease_expired, execution_failed, edge_group_impossible, edge_group_satisfied, execution_cancelled,
--            execution_skipped, reservation_released, waitpoint_closed
--   returns  how many were moved and how many could not be, the lanes that have work again, the executions that ended
create or replace function flowfabric.expire_leases(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due record;
    held uuid[];
    expired record;
begin
    select array_agg(d.partition) as partitions, array_agg(d.id) as ids,
           array_agg(case when flowfabric._is_last_reclaim(d.ticket) then d.flow end) as flows
    into due from (
        select t.partition, t.id, t.flow, t as ticket from flowfabric.tickets t
        where t.phase = 'active' and t.expires_at <= now
        order by t.expires_at, t.partition, t.id limit expire_leases.take offset expire_leases.passing) d;
    held := flowfabric._try_members(due.partitions, due.ids, due.flows);
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids into expired
    from unnest(due.partitions, due.ids) as x (partition, id)
    cross join lateral (
        select t.partition, t.id from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id and t.phase = 'active' and t.expires_at <= now
          and (t.flow is null or t.id = any (held) or not flowfabric._is_last_reclaim(t))
        for update skip locked) t;
    expired := flowfabric._with_free_budgets(expired.partitions, expired.ids, held);
    moved := coalesce(cardinality(expired.ids), 0);
    locked := coalesce(cardinality(due.ids), 0) - moved;
    if moved > 0 then
        select l.lanes, l.ended into lanes, ended
        from flowfabric._end_expired_leases(expired.partitions, expired.ids) l;
    end if;
end $$;

-- Take a lease away from its worker. The execution is claimable immediately, and this does not count as a reclaim.
--
--   moves    active → runnable: pending_reclaim_attempt
--   locks    the ticket
--   emits    lease_revoked, reservation_released
--   refuses  execution_not_found, invalid_body
--   returns  'revoked' and the lease, or 'noop' with the cause: no_active_lease, lease_id_mismatch, already_revoked,
--            already_expired
create or replace function flowfabric.revoke(
    partition int, id uuid, by text, reason text default null, expected uuid default null,
    out outcome text, out cause text, out lease_id uuid, out epoch bigint, out lane text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    ticket flowfabric.tickets;
begin
    perform flowfabric._check_by(revoke.by);
    select t.* into ticket from flowfabric.tickets t
    where t.partition = revoke.partition and t.id = revoke.id for update;
    if not found and not exists (select from flowfabric.executions e
                                 where e.partition = revoke.partition and e.id = revoke.id) then
        perform flowfabric._refuse_missing(revoke.partition, revoke.id);
    end if;
    outcome := 'noop';
    cause := case
        when ticket.phase is distinct from 'active' and ticket.attempt_state is distinct from 'pending_reclaim_attempt'
            then 'no_active_lease'
        when ticket.lease_id <> revoke.expected then 'lease_id_mismatch'
        when ticket.attempt_state = 'pending_reclaim_attempt' then 'already_' || ticket.lease_end
        when ticket.expires_at <= now then 'already_expired'
    end;
    if cause is null then
        perform flowfabric._end_leases(array[ticket.partition], array[ticket.id], 'revoked', revoke.by, revoke.reason);
        outcome := 'revoked';
        lease_id := ticket.lease_id;
        epoch := ticket.epoch;
        lane := ticket.lane;
    end if;
end $$;
