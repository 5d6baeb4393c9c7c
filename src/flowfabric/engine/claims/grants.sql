-- Grants: a signed promise of one execution to one worker, for workers without a connection to the database.

-- Put tickets that are locked aside for one worker. One past its deadline is left for its sweep.
--
--   moves    eligible_now → granted
--   emits    grant_issued
--   returns  a grant each
create or replace function flowfabric._grant(places tid[], worker text, instance text, kid text, expires_at timestamptz, now timestamptz)
returns table (partition int, id uuid, expiry timestamptz, route int)
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    return query
    with granted as (
        update flowfabric.tickets t
        set eligibility = 'granted', worker = _grant.worker, instance = _grant.instance, expires_at = _grant.expires_at, grant_kid = _grant.kid
        where t.ctid = any (_grant.places) and (t.deadline_at is null or t.deadline_at > _grant.now)
        returning t.partition, t.id, t.expires_at, t.route
    ), noted as (
        select flowfabric._append_each('grant_issued', array_agg(g.partition), array_agg(g.id), array_agg(g.route), array_agg(e.tags),
            array_agg(jsonb_build_object('worker', _grant.worker, 'instance', _grant.instance, 'expires_at', g.expires_at, 'kid', _grant.kid)),
            flows => array_agg(e.flow))
        from granted g join flowfabric.executions e on e.partition = g.partition and e.id = g.id
        having count(*) > 0
    )
    select g.partition::int, g.id, g.expires_at, g.route from granted g cross join noted;
end $$;

-- Promise up to so many executions to a worker: the same admission and order as claim, and a signed grant each instead of
-- a lease. One that is not used in time is claimable again by anyone.
--
--   moves    eligible_now → granted; not_eligible_until_time → eligible_now when due; past its deadline → ended
--   locks    the tickets it takes; skips those that are locked
--   emits    grant_issued, grant_expired, execution_expired
--   refuses  invalid_worker, invalid_capabilities, invalid_lane, invalid_limit, invalid_grant_lifetime, no_active_key
--   returns  the grants
create or replace function flowfabric.issue_grant(
    worker text, instance text, lanes text[], capabilities text default '[]', take int default 1, ttl_ms bigint default 10000,
    after_route int default 0, namespace text default null, partitions int[] default null)
returns table (partition int, id uuid, grant_key text, expires_at timestamptz, route int)
language plpgsql as $$
#variable_conflict use_column
declare
    -- Whole milliseconds, because that is what is signed.
    now timestamptz := date_trunc('milliseconds', flowfabric.clock());
    signer flowfabric.keys := flowfabric._active_key();
    chosen tid[];
begin
    if issue_grant.ttl_ms is null or issue_grant.ttl_ms not between 1 and 60000 then
        perform flowfabric._refuse('invalid_grant_lifetime', format('a grant of %s ms: give 1 to 60 000', issue_grant.ttl_ms));
    end if;
    chosen := flowfabric._take_ready(issue_grant.worker, issue_grant.instance, issue_grant.lanes, issue_grant.capabilities::jsonb, issue_grant.take,
                                     issue_grant.after_route, issue_grant.namespace, issue_grant.partitions);
    return query
    select g.partition, g.id,
           format('pg:%s:%s:%s:%s', flowfabric._id(g.partition, g.id), m.expires_ms, signer.kid, flowfabric._hmac(signer, m.message)),
           g.expiry, g.route
    from flowfabric._grant(chosen, issue_grant.worker, issue_grant.instance, signer.kid, now + issue_grant.ttl_ms * interval '1 ms', now) g
    cross join lateral (select (extract(epoch from g.expiry) * 1000)::bigint) x (expires_ms)
    cross join lateral (select x.expires_ms, format('{fp:%s}|%s|%s|%s|%s', g.partition, g.id, issue_grant.worker, issue_grant.instance, x.expires_ms)) m (expires_ms, message);
end $$;

-- Judge a grant: its shape, its key, whether it stands, its signature, its time, and whose it is.
--
--   locks    the ticket, where asked to
--   refuses  invalid_grant, grant_expired, as a value
--   returns  the fault, or null when it is good; and what it says
create or replace function flowfabric._read_grant(
    grant_key text, now timestamptz, with_lock boolean,
    out ticket flowfabric.tickets, out partition int, out id uuid, out expires_at timestamptz, out fault jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    part text[] := regexp_match(_read_grant.grant_key,
        '^pg:\{fp:(0|[1-9][0-9]{0,4})\}:([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}):([0-9]{1,15}):([A-Za-z0-9._-]{1,64}):([0-9a-f]{64})$');
    signer flowfabric.keys;
    cause text := 'malformed';
begin
    if part is not null then
        partition := part[1];
        id := part[2];
        expires_at := to_timestamp(part[3]::numeric / 1000);
        select k.* into signer from flowfabric.keys k where k.kid = part[4] and coalesce(k.expires_at > now, true);
        if with_lock then
            perform from flowfabric.tickets t where t.partition = _read_grant.partition and t.id = _read_grant.id for update;
        end if;
        select t.* into ticket from flowfabric.tickets t where t.partition = _read_grant.partition and t.id = _read_grant.id;
        cause := case
            when signer.kid is null then 'unknown_kid'
            when ticket.eligibility is distinct from 'granted' or ticket.phase <> 'runnable' or ticket.grant_kid <> part[4] then 'unknown_grant'
            when not flowfabric._is_same_digest(part[5], flowfabric._hmac(signer, format('{fp:%s}|%s|%s|%s|%s', part[1], part[2],
                ticket.worker, ticket.instance, part[3]))) then 'signature_mismatch'
            when expires_at <> ticket.expires_at then 'unknown_grant' end;
    end if;
    if cause is not null then
        fault := flowfabric._fault('invalid_grant', format('the grant is not good: %s', replace(cause, '_', ' ')), jsonb_build_object('cause', cause));
    elsif expires_at <= now then
        fault := flowfabric._fault('grant_expired', format('the grant was good until %s; ask for another', flowfabric._moment(expires_at)));
    end if;
end $$;

-- Whether a grant is good, and what it says. Changes nothing.
--
--   refuses  invalid_grant, grant_expired
--   returns  the execution, whose it is, and until when
create or replace function flowfabric.verify_grant(
    grant_key text, out partition int, out id uuid, out worker text, out instance text, out expires_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    good record;
begin
    good := flowfabric._read_grant(verify_grant.grant_key, flowfabric.clock(), false);
    perform flowfabric._raise(good.fault);
    partition := good.partition;
    id := good.id;
    worker := (good.ticket).worker;
    instance := (good.ticket).instance;
    expires_at := good.expires_at;
end $$;

-- Turn a grant into a lease, once, for the worker it was given to.
--
--   moves    granted → active
--   locks    the ticket
--   emits    lease_acquired
--   refuses  invalid_grant, grant_expired, invalid_lease
--   returns  what the worker needs to run it
create or replace function flowfabric.claim_granted(grant_key text, worker text, instance text, lease_ms bigint default 30000)
returns table (
    partition int, id uuid, flow uuid, kind text, namespace_name text, lane text, priority int, tags text, payload bytea, encoding text,
    lease_id uuid, epoch bigint, attempt int, attempt_type text, attempt_started_at timestamptz, resumed boolean, expires_at timestamptz,
    attempt_deadline timestamptz, deadline_at timestamptz, policy text, route int, resumed_by text)
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    good record;
begin
    perform flowfabric._check_lease(claim_granted.lease_ms);
    good := flowfabric._read_grant(claim_granted.grant_key, now, true);
    perform flowfabric._raise(coalesce(good.fault, case
        when ((good.ticket).worker, (good.ticket).instance) is distinct from (claim_granted.worker, claim_granted.instance) then
            flowfabric._fault('invalid_grant', 'the grant is not good: other worker', '{"cause": "other_worker"}') end));
    return query
    select c.* from flowfabric._lease(
        array(select t.ctid from flowfabric.tickets t where t.partition = good.partition and t.id = good.id),
        claim_granted.worker, claim_granted.instance, claim_granted.lease_ms * interval '1 ms', now) c;
end $$;

-- Give back what was granted and not used in time.
--
--   moves    granted → eligible_now
--   locks    the tickets it moves; skips those that are locked
--   emits    grant_expired
--   returns  how many were moved, and the lanes with work again
create or replace function flowfabric.expire_grants(take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql as $$
#variable_conflict use_column
begin
    lanes := flowfabric._lapse_grants(array(select l.name from flowfabric.lanes l), expire_grants.take, flowfabric.clock(), expire_grants.passing);
    moved := coalesce(cardinality(lanes), 0);
end $$;

-- Make what was granted and not used in time claimable again, a bounded number at a time.
--
--   moves    granted → eligible_now
--   locks    the tickets it moves; skips those that are locked
--   emits    grant_expired
--   returns  the lanes of those it moved, one entry each
create or replace function flowfabric._lapse_grants(lanes text[], take int, now timestamptz, passing int default 0)
returns text[]
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    lapsed record;
begin
    with late as (
        select t.ctid as place from flowfabric.tickets t
        where t.lane = any (_lapse_grants.lanes) and t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at <= _lapse_grants.now
        limit _lapse_grants.take offset _lapse_grants.passing
        for update skip locked
    ), moved as (
        update flowfabric.tickets t set eligibility = 'eligible_now', grant_kid = null
        where t.ctid = any (array(select l.place from late l))
        returning t.partition, t.id, t.route, t.lane, t.worker, t.instance
    )
    select array_agg(m.partition) as partitions, array_agg(m.id) as ids, array_agg(m.route) as routes, array_agg(e.tags) as tags,
           array_agg(e.flow) as flows, array_agg(m.lane) as lanes,
           array_agg(jsonb_build_object('worker', m.worker, 'instance', m.instance)) as details
    into lapsed from moved m join flowfabric.executions e on e.partition = m.partition and e.id = m.id;
    if lapsed.ids is not null then
        perform flowfabric._append_each('grant_expired', lapsed.partitions, lapsed.ids, lapsed.routes, lapsed.tags, lapsed.details, flows => lapsed.flows);
    end if;
    return lapsed.lanes;
end $$;
