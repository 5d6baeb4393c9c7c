-- Waitpoints: named places where an execution can receive signals, each with a signed token.

-- Compute the token of a waitpoint. It is always the same, and valid only under the signing key that the waitpoint was
-- created with.
--
--   returns  kid:digest, or null if that signing key has been removed
create or replace function flowfabric._waitpoint_token(partition int, execution uuid, waitpoint uuid, kid text)
returns text
language sql stable as $$
    select k.kid || ':' || flowfabric._hmac(
        k, flowfabric._tagged_id(_waitpoint_token.partition, _waitpoint_token.execution) || ':'
               || _waitpoint_token.waitpoint)
    from flowfabric.keys k where k.kid = _waitpoint_token.kid
$$;

-- Find the newest waitpoint of a key, the only one that can be open.
--
--   returns  its id, or null
create or replace function flowfabric._newest_waitpoint(partition int, execution uuid, key text)
returns uuid
language plpgsql stable as $$
begin
    return (
        select p.id from flowfabric.waitpoints p
        where p.partition = _newest_waitpoint.partition and p.execution = _newest_waitpoint.execution
          and p.key = _newest_waitpoint.key
        order by p.partition, p.execution, p.key, p.created_at desc, p.id desc limit 1);
end $$;

-- Whether a wait can use a waitpoint: it is open, has not expired, and its signing key exists. Otherwise its token can
-- never be valid again.
create or replace function flowfabric._is_usable(point flowfabric.waitpoints, now timestamptz)
returns boolean
language plpgsql stable as $$
begin
    return coalesce(point.state <> 'closed', false) and coalesce(point.expires_at > _is_usable.now, true)
       and exists (select from flowfabric.keys k where k.kid = point.kid);
end $$;

-- Choose the waitpoints of a requested wait: the usable ones of its keys, and ids for those that do not exist yet.
--
--   returns  a JSON list of ids, or null if it needs none
create or replace function flowfabric._points_to_use(partition int, execution uuid, points jsonb, now timestamptz)
returns jsonb
language plpgsql stable as $$
begin
    return (
        select jsonb_agg(coalesce(p.id, gen_random_uuid()) order by g.number)
        from jsonb_array_elements(_points_to_use.points) with ordinality as g (point, number)
        cross join lateral (
            select flowfabric._newest_waitpoint(
                _points_to_use.partition, _points_to_use.execution, g.point ->> 'key') as id offset 0) n
        left join lateral (
            select p.id, flowfabric._is_usable(p, _points_to_use.now) as is_usable from flowfabric.waitpoints p
            where p.id = n.id offset 0) p on p.is_usable);
end $$;

-- Create waitpoints, signed with the active signing key: active ones of waits, or pending ones until `expires_at`. The
-- caller has locked the tickets.
--
--   moves    waitpoint – → pending or active
--   emits    waitpoint_created
--   returns  their tokens, in the same order
create or replace function flowfabric._create_waitpoints(
    signer flowfabric.keys, partitions smallint[], executions uuid[], keys text[], ids uuid[], waits uuid[],
    times timestamptz[], expires_at timestamptz, now timestamptz)
returns text[]
language plpgsql as $$
declare
    tokens text[] := array(
        select signer.kid || ':' || flowfabric._hmac(
                   _create_waitpoints.signer, flowfabric._tagged_id(x.partition, x.execution) || ':' || x.id)
        from unnest(_create_waitpoints.partitions, _create_waitpoints.executions, _create_waitpoints.ids)
             with ordinality as x (partition, execution, id, number)
        order by x.number);
begin
    perform flowfabric._lock_log();
    with minted as (
        insert into flowfabric.waitpoints (
            partition, execution, id, key, state, wait, kid, fingerprint, created_at, activated_at, expires_at)
        select x.partition, x.execution, x.id, x.key,
               case when x.wait is null then 'pending' else 'active' end::flowfabric.waitpoint_state, x.wait,
               signer.kid, left(encode(sha256(convert_to(x.token, 'UTF8')), 'hex'), 16), x.created_at,
               case when x.wait is not null then _create_waitpoints.now end, _create_waitpoints.expires_at
        from unnest(_create_waitpoints.partitions, _create_waitpoints.executions, _create_waitpoints.keys,
                    _create_waitpoints.ids, _create_waitpoints.waits, tokens, _create_waitpoints.times)
             as x (partition, execution, key, id, wait, token, created_at)
        returning partition, execution, id, key
    )
    insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, detail)
    select _create_waitpoints.now, 'waitpoint_created', e.partition, e.id, e.route, e.tags, e.flow,
           jsonb_build_object('waitpoint_id', m.id, 'key', m.key, 'kid', signer.kid)
    from minted m
    cross join lateral (
        select e.partition, e.id, e.route, e.tags, e.flow from flowfabric.executions e
        where e.partition = m.partition and e.id = m.execution offset 0) e;
    return tokens;
end $$;

-- Open waitpoints: those that do not exist are created, pending ones become active. Without waits they are created as
-- pending until `expires_at`. Unusable ones with the same key are closed. The caller has locked the tickets.
--
--   moves    waitpoint – → pending or active, or pending → active; an unusable pending one → closed
--   returns  their tokens, in the same order
create or replace function flowfabric._open_waitpoints(
    partitions smallint[], executions uuid[], keys text[], ids uuid[], waits uuid[], expires_at timestamptz,
    now timestamptz)
returns text[]
language plpgsql as $$
declare
    known record;
    created text[];
begin
    -- Later than the newest of its key, even if the clock was set back.
    select array_agg(case when p.id = x.id then p.kid end order by x.number) as kids,
           array_agg(x.partition order by x.number) filter (where p.id is distinct from x.id) as new_partitions,
           array_agg(x.execution order by x.number) filter (where p.id is distinct from x.id) as new_executions,
           array_agg(x.key order by x.number) filter (where p.id is distinct from x.id) as new_keys,
           array_agg(x.id order by x.number) filter (where p.id is distinct from x.id) as new_ids,
           array_agg(x.wait order by x.number) filter (where p.id is distinct from x.id) as new_waits,
           array_agg(greatest(_open_waitpoints.now, p.created_at + interval '1 us') order by x.number)
               filter (where p.id is distinct from x.id) as new_times,
           array_agg(p.place) filter (where p.id = x.id) as places,
           array_agg(x.wait) filter (where p.id = x.id) as waits,
           array_agg(p.id) filter (where p.id <> x.id and p.state <> 'closed') as stale
    into known
    from unnest(_open_waitpoints.partitions, _open_waitpoints.executions, _open_waitpoints.keys, _open_waitpoints.ids,
                _open_waitpoints.waits) with ordinality as x (partition, execution, key, id, wait, number)
    cross join lateral (select flowfabric._newest_waitpoint(x.partition, x.execution, x.key) as id offset 0) n
    left join lateral (
        select p.ctid as place, p.id, p.kid, p.state, p.created_at from flowfabric.waitpoints p
        where p.id = n.id offset 0) p on true;
    if known.stale is not null then
        perform flowfabric._close_waitpoints(known.stale, 'never_committed');
    end if;
    if known.places is not null then
        update flowfabric.waitpoints p
        set wait = x.wait, state = 'active', activated_at = _open_waitpoints.now, expires_at = null
        from (select x.* from unnest(known.places, known.waits) as x (place, wait)
              limit cardinality(known.places)) x
        where p.ctid = x.place;
    end if;
    if known.new_ids is not null then
        created := flowfabric._create_waitpoints(
            flowfabric._active_key(), known.new_partitions, known.new_executions, known.new_keys, known.new_ids,
            known.new_waits, known.new_times, _open_waitpoints.expires_at, _open_waitpoints.now);
    end if;
    if known.new_ids = _open_waitpoints.ids then
        return created;
    end if;
    return array(
        select coalesce(created[array_position(known.new_ids, x.id)],
                        flowfabric._waitpoint_token(x.partition, x.execution, x.id, x.kid))
        from unnest(_open_waitpoints.partitions, _open_waitpoints.executions, _open_waitpoints.ids, known.kids)
             with ordinality as x (partition, execution, id, kid, number)
        order by x.number);
end $$;

-- Close open waitpoints, with the reason. The caller has locked the tickets.
--
--   moves    waitpoint pending, active → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_waitpoints(ids uuid[], reason text)
returns void
language plpgsql as $$
declare
    closed record;
begin
    with shut as (
        update flowfabric.waitpoints w
        set state = 'closed', closed_at = flowfabric.clock(), close_reason = _close_waitpoints.reason, expires_at = null
        from (
            select w.place
            from unnest(_close_waitpoints.ids) as x (id)
            cross join lateral (
                select w.ctid as place from flowfabric.waitpoints w where w.id = x.id offset 0) w
            limit cardinality(_close_waitpoints.ids)) x
        where w.ctid = x.place
        returning w.partition, w.execution, w.id, w.key
    )
    select array_agg(s.partition) as partitions, array_agg(s.execution) as executions,
           array_agg(jsonb_build_object(
               'waitpoint_id', s.id, 'key', s.key, 'reason', _close_waitpoints.reason)) as details
    into closed from shut s;
    perform flowfabric._append_all('waitpoint_closed', closed.partitions, closed.executions, closed.details);
end $$;

-- Create a waitpoint before the suspension that will wait on it, so that its token can be given away first. The
-- waitpoint belongs to the execution, not to the attempt: it survives a crash in between.
--
--   moves    waitpoint – → pending; an expired one with that key → closed
--   locks    the ticket
--   emits    waitpoint_created, waitpoint_closed
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_name,
--            invalid_time, no_active_key
--   returns  'created', or 'existing' while a waitpoint with that key is open; with its id, token and expiry
create or replace function flowfabric.create_waitpoint(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, key text, expires_in_ms bigint default 86400000,
    out outcome text, out waitpoint_id uuid, out token text, out expires_at timestamptz)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    held record := flowfabric._lock_fenced(
        create_waitpoint.partition, create_waitpoint.id, create_waitpoint.lease_id, create_waitpoint.epoch,
        create_waitpoint.attempt);
    now timestamptz := flowfabric.clock();
    point flowfabric.waitpoints;
begin
    if held.fault is not null then
        perform flowfabric._raise(held.fault);
    end if;
    if coalesce(octet_length(create_waitpoint.key), 0) not between 1 and 128 then
        perform flowfabric._refuse('invalid_name', format(
            'waitpoint key %s is invalid; use 1 to 128 bytes', flowfabric._shown(create_waitpoint.key)));
    end if;
    if coalesce(create_waitpoint.expires_in_ms, 0) not between 1 and 2592000000 then
        perform flowfabric._refuse('invalid_time', format(
            'expires_in of %s ms is invalid; use 1 to 2,592,000,000 ms (30 days)',
            create_waitpoint.expires_in_ms));
    end if;
    waitpoint_id := flowfabric._newest_waitpoint(
        create_waitpoint.partition, create_waitpoint.id, create_waitpoint.key);
    select p.* into point from flowfabric.waitpoints p where p.id = waitpoint_id;
    expires_at := now + create_waitpoint.expires_in_ms * interval '1 ms';
    if flowfabric._is_usable(point, now) then
        outcome := 'existing';
        token := flowfabric._waitpoint_token(point.partition, point.execution, point.id, point.kid);
        -- An active waitpoint (of one of several waits of the run) has no expiry: it stays open as long as its wait.
        expires_at := coalesce(point.expires_at, expires_at);
        return;
    end if;
    outcome := 'created';
    waitpoint_id := gen_random_uuid();
    token := (flowfabric._open_waitpoints(
        array[create_waitpoint.partition::smallint], array[create_waitpoint.id], array[create_waitpoint.key],
        array[waitpoint_id], array[null]::uuid[], expires_at, now))[1];
    perform flowfabric._mark_for_closing(create_waitpoint.partition, create_waitpoint.id);
end $$;

-- Sweep: close the pending waitpoints that have expired.
--
--   moves    waitpoint pending → closed
--   locks    the tickets whose waitpoints it closes, skipping locked ones
--   emits    waitpoint_closed
--   returns  how many were closed
create or replace function flowfabric.close_waitpoints(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    late uuid[];
begin
    late := array(
        select w.id
        from (select w.* from flowfabric.waitpoints w where w.expires_at <= now
              order by w.expires_at, w.partition, w.execution offset 0) w
        cross join lateral (
            select from flowfabric.tickets t
            where t.partition = w.partition and t.id = w.execution for update skip locked) t
        limit close_waitpoints.take offset close_waitpoints.passing);
    -- Optimistic re-check under the lock: the execution may have suspended on one in between.
    late := array(
        select w.id from unnest(late) as x (id)
        cross join lateral (select w.id, w.expires_at from flowfabric.waitpoints w where w.id = x.id offset 0) w
        where w.expires_at <= now);
    moved := cardinality(late);
    if moved > 0 then
        perform flowfabric._close_waitpoints(late, 'never_committed');
    end if;
end $$;
