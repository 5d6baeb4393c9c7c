-- Grants: a signed claim on one execution for one worker, for workers without a database connection.

-- Reserve locked tickets for one worker. Tickets past their deadline are skipped: the sweep ends them.
--
--   moves    eligible_now → granted
--   emits    grant_issued
--   returns  one row per grant, in the order of the tickets
create or replace function flowfabric._grant(
    places tid[], stripes tid[], worker text, instance text, kid text, expires_at timestamptz, now timestamptz)
returns table (partition int, id uuid, route int)
language plpgsql as $$
begin
    return query
    with granted as (
        update flowfabric.tickets t
        set eligibility = 'granted', expires_at = _grant.expires_at, grant_kid = _grant.kid,
            grant_worker = _grant.worker, grant_instance = _grant.instance
        from unnest(_grant.places) with ordinality as p (place, number)
        where t.ctid = p.place and (t.deadline_at is null or t.deadline_at > _grant.now)
        returning t.partition, t.id, t.route, p.number, t.epoch + 1 as epoch,
                  t.attempt + (t.attempt_state <> 'attempt_interrupted')::int as attempt
    ), admitted as (
        select case when count(*) > 0 then flowfabric._admit(
            array_agg(g.partition), array_agg(g.id), array_agg(g.epoch), array_agg(g.attempt), array_agg(g.route),
            _grant.stripes, _grant.now, _grant.expires_at) end
        from granted g join flowfabric.routes r on r.id = g.route where r.quotas <> '{}'
    ), noted as (
        select flowfabric._append_all(
            'grant_issued', array_agg(g.partition order by g.number), array_agg(g.id order by g.number),
            array_agg(jsonb_build_object('worker', _grant.worker, 'instance', _grant.instance,
                                         'expires_at', _grant.expires_at, 'kid', _grant.kid)))
        from granted g having count(*) > 0
    )
    select g.partition::int, g.id, g.route from granted g cross join noted cross join admitted order by g.number;
end $$;

-- The message that a grant's signature covers.
--
--   returns  the message; none of its parts can contain a `|`
create or replace function flowfabric._grant_message(
    partition int, id uuid, worker text, instance text, expires_ms bigint)
returns text
language sql immutable as $$
    select format('{fp:%s}|%s|%s|%s|%s', _grant_message.partition, _grant_message.id, _grant_message.worker,
                  _grant_message.instance, _grant_message.expires_ms)
$$;

-- Reserve up to `take` executions for a worker: the same admission and order as claim, but each with a signed grant
-- instead of a lease. Any worker can claim an execution again when its grant expires unused.
--
--   moves    eligible_now → granted; not_eligible_until_time → eligible_now when due; past its deadline → ended
--   locks    the tickets it takes, skipping locked ones; the quotas of their routes
--   emits    grant_issued, grant_expired, execution_expired, edge_group_impossible, edge_group_satisfied,
--            execution_cancelled, execution_skipped, reservation_released, waitpoint_closed
--   refuses  invalid_worker, invalid_capabilities, invalid_lane, invalid_limit, invalid_grant_lifetime, no_active_key
--   returns  the grants
create or replace function flowfabric.issue_grant(
    worker text, instance text, lanes text[], capabilities text default '[]', take int default 1,
    ttl_ms bigint default 10000, after_route int default 0, namespace text default null, partitions int[] default null)
returns table (partition int, id uuid, grant_key text, expires_at timestamptz, route int)
language plpgsql as $$
declare
    signer flowfabric.keys;
    taken record;
    now timestamptz;
    ends_at timestamptz;
    expires_ms bigint;
begin
    if issue_grant.ttl_ms is null or issue_grant.ttl_ms not between 1 and 60000 then
        perform flowfabric._refuse('invalid_grant_lifetime', format(
            'ttl of %s ms is invalid; use 1 to 60,000 ms (one minute)', issue_grant.ttl_ms));
    end if;
    taken := flowfabric._take_ready(issue_grant.worker, issue_grant.instance, issue_grant.lanes,
                                    issue_grant.capabilities::jsonb, issue_grant.take, issue_grant.after_route,
                                    issue_grant.namespace, issue_grant.partitions);
    signer := flowfabric._active_key();
    now := flowfabric.clock();
    -- Whole milliseconds, because the signed message holds milliseconds.
    ends_at := date_trunc('milliseconds', now + issue_grant.ttl_ms * interval '1 ms');
    expires_ms := extract(epoch from ends_at) * 1000;
    return query
    select g.partition, g.id,
           format('pg:%s:%s:%s:%s', flowfabric._tagged_id(g.partition, g.id), expires_ms, signer.kid, flowfabric._hmac(
               signer,
               flowfabric._grant_message(g.partition, g.id, issue_grant.worker, issue_grant.instance, expires_ms))),
           ends_at, g.route
    from flowfabric._grant(taken.chosen, taken.stripes, issue_grant.worker, issue_grant.instance, signer.kid, ends_at,
                           now)
         with ordinality as g (partition, id, route, number)
    order by g.number;
end $$;

-- Parse a grant key. Each grant has exactly one valid spelling.
--
--   returns  its parts; all of them null if the text is not a grant key
create or replace function flowfabric._parse_grant(
    grant_key text, out partition int, out id uuid, out expires_ms bigint, out kid text, out digest text)
language plpgsql immutable as $$
declare
    part text[] := regexp_match(_parse_grant.grant_key,
        '^pg:\{fp:(0|[1-9][0-9]{0,4})\}:([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})'
        ':(0|[1-9][0-9]{0,14}):([A-Za-z0-9._-]{1,64}):([0-9a-f]{64})$');
begin
    partition := part[1];
    id := part[2];
    expires_ms := part[3];
    kid := part[4];
    digest := part[5];
end $$;

-- Check a grant: its format, its signing key, whether the ticket is reserved by it, its signature, its expiry. A passed
-- deadline makes it invalid even before the sweep has run.
--
--   refuses  invalid_grant, grant_expired, as a value
--   returns  the fault, or null if it is valid
create or replace function flowfabric._grant_fault(
    ticket flowfabric.tickets, expires_ms bigint, kid text, digest text, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    signer flowfabric.keys;
    expires_at timestamptz := timestamptz 'epoch' + _grant_fault.expires_ms * interval '1 ms';
    cause text;
begin
    select k.* into signer from flowfabric.keys k
    where k.kid = _grant_fault.kid and coalesce(k.expires_at > _grant_fault.now, true);
    cause := case
        when _grant_fault.kid is null then 'malformed'
        when signer.kid is null then 'unknown_kid'
        when ticket.phase is distinct from 'runnable' or ticket.eligibility <> 'granted'
             or ticket.grant_kid <> _grant_fault.kid or ticket.deadline_at <= _grant_fault.now then 'unknown_grant'
        when not flowfabric._is_same_digest(_grant_fault.digest, flowfabric._hmac(signer, flowfabric._grant_message(
                 ticket.partition, ticket.id, ticket.grant_worker, ticket.grant_instance, _grant_fault.expires_ms)))
             then 'signature_mismatch'
        -- An earlier grant of the same execution for the same worker.
        when expires_at <> ticket.expires_at then 'unknown_grant'
    end;
    if cause is not null then
        return flowfabric._fault('invalid_grant',
            format('the grant is invalid: %s; request another', replace(cause, '_', ' ')),
            jsonb_build_object('cause', cause));
    end if;
    if expires_at <= _grant_fault.now then
        return flowfabric._fault('grant_expired',
            format('the grant expired at %s; request another', flowfabric._moment(expires_at)));
    end if;
    return null;
end $$;

-- Check a grant and read its content. Changes nothing.
--
--   refuses  invalid_grant, grant_expired
--   returns  the execution, the worker it is for, and when it expires
create or replace function flowfabric.verify_grant(
    grant_key text, out partition int, out id uuid, out worker text, out instance text, out expires_at timestamptz)
language plpgsql as $$
declare
    said record := flowfabric._parse_grant(verify_grant.grant_key);
    ticket flowfabric.tickets;
begin
    select t.* into ticket from flowfabric.tickets t where t.partition = said.partition and t.id = said.id;
    perform flowfabric._raise(flowfabric._grant_fault(ticket, said.expires_ms, said.kid, said.digest,
                                                      flowfabric.clock()));
    partition := ticket.partition;
    id := ticket.id;
    worker := ticket.grant_worker;
    instance := ticket.grant_instance;
    expires_at := ticket.expires_at;
end $$;

-- Turn a grant into a lease, once, for the worker it was issued to, unless its lane was paused since.
--
--   moves    granted → active
--   locks    the ticket
--   emits    lease_acquired
--   refuses  invalid_grant, grant_expired, invalid_lease
--   returns  what the worker needs to run the execution
create or replace function flowfabric.claim_granted(
    grant_key text, worker text, instance text, lease_ms bigint default 30000)
returns setof flowfabric.claimed
language plpgsql as $$
declare
    said record := flowfabric._parse_grant(claim_granted.grant_key);
    ticket flowfabric.tickets;
    now timestamptz;
    fault jsonb;
begin
    perform flowfabric._check_lease(claim_granted.lease_ms);
    select t.* into ticket from flowfabric.tickets t where t.partition = said.partition and t.id = said.id for update;
    now := flowfabric.clock();
    fault := flowfabric._grant_fault(ticket, said.expires_ms, said.kid, said.digest, now);
    if fault is null and (ticket.grant_worker, ticket.grant_instance)
                         is distinct from (claim_granted.worker, claim_granted.instance) then
        fault := flowfabric._fault('invalid_grant',
            'the grant is invalid: it was issued to another worker; request another', '{"cause": "other_worker"}');
    elsif fault is null and exists (
        select from flowfabric.lanes l where l.name = ticket.lane and l.state = 'paused') then
        fault := flowfabric._fault('invalid_grant', format(
            'the grant is invalid while lane %s is paused; use it after the lane resumes, or request another',
            ticket.lane), '{"cause": "lane_paused"}');
    end if;
    perform flowfabric._raise(fault);
    perform flowfabric._use_entries(ticket);
    return query
    select c.* from flowfabric._lease(
        array(select t.ctid from flowfabric.tickets t where t.partition = ticket.partition and t.id = ticket.id), '{}',
        claim_granted.worker, claim_granted.instance, claim_granted.lease_ms * interval '1 ms', now) c;
end $$;

-- Sweep: make executions claimable again whose grants expired unused. A claim does it for its lanes, `among`.
--
--   moves    granted → eligible_now
--   locks    the tickets it moves, skipping locked ones
--   emits    grant_expired
--   returns  how many were moved, and the lanes that have work again
create or replace function flowfabric.expire_grants(
    take int default 500, passing int default 0, among text[] default null, out moved int, out lanes text[],
    out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    expired record;
begin
    with late as (
        select t.ctid as place from flowfabric.tickets t
        where t.lane = any (coalesce(expire_grants.among, array(select l.name from flowfabric.lanes l)))
          and t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at <= now
        limit expire_grants.take offset expire_grants.passing
        for update skip locked
    ), moved as (
        update flowfabric.tickets t set eligibility = 'eligible_now', grant_kid = null
        where t.ctid = any (array(select l.place from late l))
        returning t.partition, t.id, t.lane, t.grant_worker, t.grant_instance
    )
    select array_agg(m.partition) as partitions, array_agg(m.id) as ids, array_agg(distinct m.lane) as lanes,
           array_agg(jsonb_build_object('worker', m.grant_worker, 'instance', m.grant_instance)) as details
    into expired from moved m;
    perform flowfabric._append_all('grant_expired', expired.partitions, expired.ids, expired.details);
    moved := coalesce(cardinality(expired.ids), 0);
    lanes := coalesce(expired.lanes, '{}');
end $$;
