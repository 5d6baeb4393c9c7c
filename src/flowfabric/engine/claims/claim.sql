-- Claiming: take executions under a lease.

-- Lease locked tickets and log it. Tickets past their deadline are skipped: the sweep ends them. Tickets beyond 16 MiB
-- of payload stay ready. Executions that may have run before come with their journal, up to 1 MiB in total, and members
-- of flows with their inputs; the rest is read on demand. The lease begins when everything else has been read, so that
-- a slow answer does not use it up. `now` is the time at which the tickets were chosen, `stripes` the stripes of quotas
-- that were locked for them.
--
-- A lease id is the id of the request with a 1 and the position of the ticket as its last 12 digits, so that a repeated
-- request finds its leases without an index or a column for it.
--
-- With `slots`, the lease does not yet count as the begin of the run, and `_startable` limits what is leased. An
-- execution of which a lease expired before, or that must not lose any lease, then comes with `must_mark`.
--
--   moves    runnable → active: running_attempt, epoch + 1, attempt + 1 unless it resumes after a wait
--   emits    lease_acquired
--   returns  what a worker needs to run them, in the order of the tickets
create or replace function flowfabric._lease(
    places tid[], stripes tid[], worker text, instance text, lease interval, now timestamptz,
    request uuid default gen_random_uuid(), slots int default null)
returns setof flowfabric.claimed
language plpgsql set enable_memoize = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    rare record;
    inputs flowfabric.inputs[];
    journals text[];
    previous text[];
    leased_at timestamptz;
    prefix text := left(_lease.request::text, 24);
begin
    select x.*, case when x.first = x.last then (select r.namespace from flowfabric.routes r where r.id = x.first)
                     end as namespace, -- of their route, if they all have the same
           exists (select from flowfabric.routes r
                   where r.id between x.first and x.last and r.quotas <> '{}') as is_counted into rare
    from (
        select bool_or(t.attempt_state <> 'pending_first_attempt' or t.bytes is not null) as has_more,
               bool_or(t.attempt_state = 'pending_reclaim_attempt') as is_reclaimed,
               bool_or(t.flow is not null) as in_flow, min(t.route) as first, max(t.route) as last
        from flowfabric.tickets t where t.ctid = any (_lease.places)) x;
    if rare.has_more then
        _lease.places := flowfabric._first_bytes(flowfabric._startable(_lease.places, _lease.slots), 16777216);
        journals := flowfabric._read_journals(_lease.places);
    end if;
    if rare.is_reclaimed then
        previous := flowfabric._instances_of(_lease.places);
    end if;
    if rare.in_flow then
        inputs := flowfabric._inputs_of(_lease.places);
    end if;
    perform flowfabric._lock_log();
    leased_at := flowfabric.clock();
    if rare.is_counted then
        perform flowfabric._admit_places(_lease.places, _lease.stripes, _lease.now, leased_at);
    end if;
    return query
    with leased (number, partition, id, route, lane, priority, version, lease_id, epoch, attempt, attempt_type,
                 attempt_started_at, attempt_deadline, deadline_at, expires_at, created_at, flow, task, tags, payload,
                 encoding, policy, namespace, resumed, must_mark, alone) as (
        update flowfabric.tickets t
        set phase = 'active', reason = 'none', attempt_state = 'running_attempt',
            lease_id = (prefix || to_hex(17592186044416 + p.number))::uuid,
            worker = _lease.worker, instance = _lease.instance, expires_at = leased_at + _lease.lease,
            lease_end = null, due_at = null, eligibility = 'eligible_now', grant_kid = null, grant_worker = null,
            grant_instance = null, suspension = null, running = null, attempt_left = null, epoch = t.epoch + 1,
            started_at = coalesce(t.started_at, leased_at), begun = nullif(_lease.slots is null, false),
            attempt = t.attempt + (t.attempt_state <> 'attempt_interrupted')::int,
            attempt_epoch = case when t.attempt_state = 'attempt_interrupted' then t.attempt_epoch else t.epoch + 1 end,
            attempt_started_at = case t.attempt_state when 'attempt_interrupted' then t.attempt_started_at
                                      else leased_at end,
            -- The remaining time in seconds: an interval with days in it changes its length at a clock change.
            attempt_deadline = leased_at + case t.attempt_state
                when 'attempt_interrupted' then extract(epoch from t.attempt_left) * interval '1 second'
                else (e.policy ->> 'attempt_timeout_ms')::bigint * interval '1 ms' end,
            attempt_type = case t.attempt_state
                when 'pending_first_attempt' then 'initial' when 'pending_retry_attempt' then 'retry'
                when 'pending_reclaim_attempt' then 'reclaim' when 'pending_replay_attempt' then 'replay'
                else t.attempt_type end::flowfabric.attempt_type,
            reclaims = t.reclaims + (t.attempt_state = 'pending_reclaim_attempt'
                                     and t.lease_end is distinct from 'revoked' and t.begun is true)::int
        from (select * from unnest(_lease.places) with ordinality x limit cardinality(_lease.places)) p (place, number)
        cross join flowfabric.executions e
        where t.ctid = p.place and (t.deadline_at is null or t.deadline_at > _lease.now)
          and e.partition = any (array[t.partition]) and e.id between t.id and t.id
        returning p.number, t.partition, t.id, t.route, t.lane, t.priority, t.version, t.lease_id, t.epoch,
                  t.attempt, t.attempt_type::text, t.attempt_started_at, t.attempt_deadline, t.deadline_at,
                  t.expires_at, t.created_at, e.flow, e.task, e.tags, e.payload, e.encoding, e.policy,
                  coalesce(rare.namespace, (select r.namespace from flowfabric.routes r where r.id = t.route)),
                  t.attempt_epoch <> t.epoch,
                  _lease.slots is not null and flowfabric._must_mark(t.crashes, e.policy),
                  t.crashes > 1 is true and t.attempt_type = 'reclaim' and t.attempt_epoch = t.epoch
    ), noted as (
        insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, worker, instance, lease_id,
                                       epoch, attempt, attempt_type, resumed, detail)
        select leased_at, 'lease_acquired', l.partition, l.id, l.route, l.tags, l.flow, _lease.worker, _lease.instance,
               l.lease_id, l.epoch, l.attempt, l.attempt_type::flowfabric.attempt_type, l.resumed,
               case when previous[l.number] is not null and l.attempt_type = 'reclaim' and not l.resumed
                    then jsonb_build_object('previous_instance', previous[l.number]) end
        from leased l
    )
    select l.partition::int, l.id, l.flow, l.task, l.namespace, l.lane, l.priority::int, l.version, l.tags::text,
           l.payload, coalesce(l.encoding, 'json'), l.lease_id, l.epoch, l.attempt, l.attempt_type,
           l.attempt_started_at, l.resumed, l.expires_at, l.attempt_deadline, l.deadline_at, l.policy::text, l.route,
           l.created_at, journals[l.number], (inputs[l.number]).names, (inputs[l.number]).results,
           (inputs[l.number]).encodings, (inputs[l.number]).upstreams, coalesce((inputs[l.number]).more, false),
           l.must_mark, l.alone
    from leased l; -- in ticket order: every join above is a nested loop
end $$;

-- The instances that had these tickets last.
--
--   returns  an instance or null for each ticket, in the order of the tickets
create or replace function flowfabric._instances_of(places tid[])
returns text[]
language sql stable as $$
    select array_agg(t.instance order by p.number)
    from unnest(_instances_of.places) with ordinality as p (place, number)
    cross join lateral (select t.instance from flowfabric.tickets t where t.ctid = p.place offset 0) t
$$;

-- Record in their quotas that these tickets, chosen at `now`, are leased at `leased_at`. Granted tickets were admitted
-- with their grant.
create or replace function flowfabric._admit_places(places tid[], stripes tid[], now timestamptz, leased_at timestamptz)
returns void
language plpgsql as $$
declare
    admitted record;
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(t.epoch) as epochs,
           array_agg(t.attempt) as attempts, array_agg(t.route) as routes into admitted
    from unnest(_admit_places.places) as p (place)
    cross join lateral (
        select t.partition, t.id, t.route, t.epoch + 1 as epoch,
               t.attempt + (t.attempt_state <> 'attempt_interrupted')::int as attempt
        from flowfabric.tickets t
        where t.ctid = p.place and t.eligibility <> 'granted'
          and (t.deadline_at is null or t.deadline_at > _admit_places.now) offset 0) t
    cross join lateral (select from flowfabric.routes r where r.id = t.route and r.quotas <> '{}' offset 0) r;
    if admitted.ids is not null then
        perform flowfabric._admit(admitted.partitions, admitted.ids, admitted.epochs, admitted.attempts,
                                  admitted.routes, _admit_places.stripes, _admit_places.leased_at);
    end if;
end $$;

-- Whether a worker must call mark_begun before it runs an execution: a lease of it has expired before, or must not.
create or replace function flowfabric._must_mark(crashes int, policy jsonb)
returns boolean
language sql immutable as $$
    select (_must_mark.crashes > 0 or _must_mark.policy ->> 'max_reclaim_count' = '0') is true
$$;

-- The first of these tickets that a worker with so many free slots may lease. A ticket of which a lease has expired is
-- not leased ahead: it gets a free slot, or is left with all tickets behind it, so that others do not overtake it for
-- ever. A ticket that runs alone is the last one leased.
--
--   returns  the ctids of the tickets
create or replace function flowfabric._startable(places tid[], slots int)
returns tid[]
language plpgsql stable as $$
declare
    most bigint;
begin
    if _startable.slots is null then
        return _startable.places;
    end if;
    select min(case when p.number > _startable.slots then p.number - 1
                    when flowfabric._runs_alone(t.crashes, t.attempt_state) then p.number end) into most
    from unnest(_startable.places) with ordinality as p (place, number)
    cross join lateral (select t.crashes, t.attempt_state from flowfabric.tickets t
                        where t.ctid = p.place and t.crashes > 0 offset 0) t;
    return _startable.places[: coalesce(most, cardinality(_startable.places))];
end $$;

-- The first of these tickets whose large payloads fit into `most` bytes together; at least one.
--
--   returns  the ctids of the tickets
create or replace function flowfabric._first_bytes(places tid[], most bigint)
returns tid[]
language plpgsql stable as $$
begin
    return array(
        select x.place from (
            select p.place, p.number, coalesce(sum(t.bytes) over (order by p.number), 0) as bytes
            from unnest(_first_bytes.places) with ordinality as p (place, number)
            cross join lateral (select t.bytes from flowfabric.tickets t where t.ctid = p.place offset 0) t) x
        where x.number = 1 or x.bytes <= _first_bytes.most
        order by x.number);
end $$;

-- Take up to `take` executions under a lease: open routes of these lanes only, strict priority, round-robin between
-- routes of equal priority starting after the route served last, oldest first within a route. If the worker passes the
-- priority and creation time of its last execution, it gets executions created after that one, if there are any. It
-- must omit them from time to time, to get executions that committed late.
--
-- With `slots`, the number of executions that the worker can run at once, a claim does not count as the begin of a run:
-- a lease that expires is a reclaim only if the worker has called mark_begun, as it must for rows with `must_mark`. The
-- rest is claimed ahead; executions of which a lease has expired are not. An execution that may have ended two workers
-- comes as the last one, with `alone`: it should run when nothing else does.
--
-- A worker that got no answer repeats the claim with the same request and `repeated`: it gets the leases of the first
-- call again, and only if there are none, new ones. Without `wait`, a quota that another transaction has locked admits
-- nothing, instead of delaying the claim.
--
--   moves    runnable: eligible_now → active; not_eligible_until_time → eligible_now when due; past its deadline →
--            ended
--   locks    the tickets it takes, skipping locked ones; the quotas of their routes
--   emits    lease_acquired, execution_expired, grant_expired, edge_group_impossible, edge_group_satisfied,
--            execution_cancelled, execution_skipped, reservation_released, waitpoint_closed
--   refuses  invalid_worker, invalid_capabilities, invalid_lane, invalid_lease, invalid_limit
--   returns  what a worker needs to run them; no rows if nothing is open to this worker
create or replace function flowfabric.claim(
    worker text, instance text, lanes text[], capabilities text default '[]', take int default 1,
    lease_ms bigint default 30000, after_route int default 0, namespace text default null,
    partitions int[] default null, last_priority int default null, last_created timestamptz default null,
    request uuid default gen_random_uuid(), repeated boolean default false, wait boolean default true,
    slots int default null)
returns setof flowfabric.claimed
language plpgsql as $$
declare
    taken record;
begin
    perform flowfabric._check_lease(claim.lease_ms);
    if claim.slots < 0 then
        perform flowfabric._refuse('invalid_limit', format('slots %s is invalid; use 0 or more', claim.slots));
    end if;
    if claim.repeated then
        return query
        select l.* from flowfabric._lease_again(claim.request, claim.instance, claim.lanes,
                                                claim.lease_ms * interval '1 ms', flowfabric.clock()) l;
        if found then
            return;
        end if;
    end if;
    taken := flowfabric._take_ready(claim.worker, claim.instance, claim.lanes, claim.capabilities::jsonb, claim.take,
                                    claim.after_route, claim.namespace, claim.partitions, claim.last_priority,
                                    claim.last_created, claim.wait);
    if cardinality(taken.chosen) > 0 then
        return query
        select l.* from flowfabric._lease(taken.chosen, taken.stripes, claim.worker, claim.instance,
                                          claim.lease_ms * interval '1 ms', flowfabric.clock(), claim.request,
                                          claim.slots) l;
    end if;
end $$;

-- Extend the leases that an earlier claim with the same request has given to this instance. They come without their
-- journals and inputs, which can be read on demand.
--
--   locks    the tickets it extends (skips locked ones)
--   returns  what a worker needs to run them, in the order of the first claim; no rows when it holds none of them
create or replace function flowfabric._lease_again(
    request uuid, instance text, lanes text[], lease interval, now timestamptz)
returns setof flowfabric.claimed
language plpgsql set enable_memoize = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    first uuid := left(_lease_again.request::text, 24) || '000000000000';
    last uuid := left(_lease_again.request::text, 24) || 'ffffffffffff';
begin
    return query
    with held as materialized (
        select t.ctid as place from flowfabric.tickets t
        where t.phase = 'active' and t.instance = _lease_again.instance and t.lane = any (_lease_again.lanes)
          and t.lease_id between first and last and t.expires_at > _lease_again.now
        order by t.partition, t.id
        for update skip locked
    ), extended as (
        update flowfabric.tickets t set expires_at = greatest(t.expires_at, _lease_again.now + _lease_again.lease)
        from held h where t.ctid = h.place
        returning t.*
    )
    select x.partition::int, x.id, e.flow, e.task, r.namespace, x.lane, x.priority::int, x.version, e.tags::text,
           e.payload, coalesce(e.encoding, 'json'), x.lease_id, x.epoch, x.attempt, x.attempt_type::text,
           x.attempt_started_at, x.attempt_epoch <> x.epoch, x.expires_at, x.attempt_deadline, x.deadline_at,
           e.policy::text, x.route, x.created_at, null::text, null::text[], null::bytea[], null::text[],
           null::uuid[], e.flow is not null, x.begun is null and flowfabric._must_mark(x.crashes, e.policy),
           x.crashes > 1 is true and x.attempt_type = 'reclaim' and x.attempt_epoch = x.epoch
    from extended x
    cross join lateral (
        select e.flow, e.task, e.tags, e.payload, e.encoding, e.policy
        from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e
    cross join lateral (select r.namespace from flowfabric.routes r where r.id = x.route offset 0) r
    order by x.lease_id;
end $$;

-- Choose and lock the tickets that a worker may be given now, and end those whose deadline has passed. Executions that
-- have started under a version of their task are for instances that have registered that version.
--
--   moves    not_eligible_until_time → eligible_now when due; granted → eligible_now when expired; past its deadline
--            → ended
--   returns  the ctids of the tickets, and of the stripes of quotas that were locked for them
create or replace function flowfabric._take_ready(
    worker text, instance text, lanes text[], capabilities jsonb, take int, after_route int, namespace text,
    partitions int[], last_priority int default null, last_created timestamptz default null,
    wait boolean default true, out chosen tid[], out stripes tid[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    covered text[];
    seen record;
    late record;
    skips_late boolean := false;
begin
    perform flowfabric._check_claim(_take_ready.worker, _take_ready.instance, _take_ready.lanes,
                                    _take_ready.capabilities, _take_ready.take);
    covered := flowfabric._sorted_set(_take_ready.capabilities);
    -- One query for the rare cases: due tickets, expired grants, passed deadlines.
    select array_agg(l.name) as lanes, bool_or(exists (
               select from flowfabric.tickets t
               where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time'
                 and t.due_at <= now)) as is_due,
           bool_or(exists (
               select from flowfabric.tickets t
               where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'granted'
                 and t.expires_at <= now)) as is_expired,
           exists (select from flowfabric.tickets t where t.deadline_at <= now) as is_late,
           sum(cardinality(r.places)) as ready, max(r.places[1]) as first,
           case when exists (select from flowfabric.routes r where r.version is not null) then (
               select w.versions from flowfabric.workers w where w.instance = _take_ready.instance) end as versions
    into seen from flowfabric.lanes l
    cross join lateral (select case when _take_ready.last_created is null then array(
        select t.ctid from flowfabric.tickets t
        where t.lane = l.name and t.phase = 'runnable' and t.eligibility = 'eligible_now'
        limit 2) end as places offset 0) r
    where l.name = any (_take_ready.lanes) and l.state <> 'paused';
    if seen.lanes is null then
        return;
    end if;
    covered := covered || seen.versions;
    if not (seen.is_due or seen.is_expired or seen.is_late) then
        if seen.ready = 0 then
            return;
        elsif seen.ready = 1 then
            chosen := flowfabric._lock_only(seen.first, covered, _take_ready.namespace, _take_ready.partitions);
            if chosen <> '{}' then
                return;
            end if;
        end if;
    end if;
    if seen.is_due then
        perform flowfabric.promote_due(_take_ready.take + 100, among => seen.lanes);
    end if;
    if seen.is_expired then
        perform flowfabric.expire_grants(_take_ready.take + 100, among => seen.lanes);
    end if;
    if _take_ready.last_created is not null and not seen.is_late and _take_ready.partitions is null then
        chosen := flowfabric._continue_in_route(
            seen.lanes, covered, _take_ready.namespace, _take_ready.take, _take_ready.after_route,
            _take_ready.last_priority, _take_ready.last_created);
        if chosen <> '{}' then
            return;
        end if;
    end if;
    for pass in 1 .. 100 loop
        select * into chosen, stripes from flowfabric._choose(
            seen.lanes, covered, _take_ready.namespace, _take_ready.partitions, _take_ready.take,
            greatest(_take_ready.after_route, 0), now, pass = 1 and _take_ready.wait, skips_late);
        exit when not seen.is_late or skips_late or cardinality(chosen) = 0;
        -- Tickets past their deadline are ended and replaced by others. Ending them may have locked more than quotas,
        -- so later passes do not wait for locks. What such a pass cannot end is left out of the last pass, and so are
        -- the others if there are very many: the sweep ends them.
        late := flowfabric._expire_chosen(chosen, now, pass = 1 and _take_ready.wait);
        exit when late.ended = 0 and late.remaining = 0;
        skips_late := late.remaining > 0 or pass = 99;
    end loop;
end $$;

-- End the chosen tickets whose deadline has passed, so that they are not claimed. A claim that already holds budget
-- locks must not wait for more, so the sweep ends tickets with reservations. The sweep also ends members of flows,
-- because a flow must be locked before its tickets.
--
--   moves    runnable → ended: expired
--   returns  how many tickets it ended, and how many remain among the chosen
create or replace function flowfabric._expire_chosen(
    places tid[], now timestamptz, may_wait boolean, out ended int, out remaining int)
language plpgsql as $$
declare
    late record;
begin
    select array_agg(x.partition) filter (where x.is_free) as partitions,
           array_agg(x.id) filter (where x.is_free) as ids, count(*) filter (where not x.is_free) as remaining
    into late from (
        select x.partition, x.id, x.flow is null and (_expire_chosen.may_wait or flowfabric._budgets_to_lock(
                   '{}', array[x.partition], array[x.id]) = '{}') as is_free
        from (
            select t.partition, t.id, t.deadline_at, t.flow
            from unnest(_expire_chosen.places) as p (place) join flowfabric.tickets t on t.ctid = p.place
            offset 0) x -- by ctid, not by the index on deadlines
        where x.deadline_at <= _expire_chosen.now
        offset 0) x;
    ended := coalesce(cardinality(late.ids), 0);
    remaining := late.remaining;
    if ended > 0 then
        perform flowfabric._expire(late.partitions, late.ids);
    end if;
end $$;

-- Refuse invalid arguments of a claim.
--
--   refuses  invalid_limit
create or replace function flowfabric._check_claim(
    worker text, instance text, lanes text[], capabilities jsonb, take int)
returns void
language plpgsql stable as $$
begin
    perform flowfabric._check_worker(_check_claim.worker, _check_claim.instance);
    if _check_claim.capabilities is distinct from '[]' then
        perform flowfabric._raise(flowfabric._capabilities_fault('capabilities', _check_claim.capabilities));
    end if;
    perform flowfabric._check_lanes(_check_claim.lanes);
    if _check_claim.take is null or _check_claim.take not between 1 and 1000 then
        perform flowfabric._refuse('invalid_limit', format('take %s is invalid; use 1 to 1,000', _check_claim.take));
    end if;
end $$;

-- Refuse a lease that is too short to be renewed in time, or so long that work of a dead worker would wait too long.
--
--   refuses  invalid_lease
create or replace function flowfabric._check_lease(lease_ms bigint)
returns void
language plpgsql immutable as $$
begin
    if _check_lease.lease_ms is null or _check_lease.lease_ms not between 1000 and 3600000 then
        perform flowfabric._refuse('invalid_lease', format(
            'lease of %s ms is invalid; use 1,000 to 3,600,000 ms (one hour)', _check_lease.lease_ms));
    end if;
end $$;
